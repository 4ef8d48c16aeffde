"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging. ICML 2020 (FedExP alg. 2).
Deviations: updates are divided by the actual sum of the step sizes, as adaptive steps and schedules require.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.rows import Col, Rows, State, Vec


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD: corr = c - c_i; then c_i+ = c_i - c + Delta_i / sum(eta), and c += sum pi_i (c_i+ - c_i).

    Needs a step rule that moves along the gradient; with other rules, Algorithm raises Refused.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Constant(lr=0.05), drift=fs.Scaffold())
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=20, local_steps=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    exchanges_gradients: ClassVar[bool] = False
    uploads: ClassVar[tuple[str, ...]] = ("control",)
    slot: ClassVar[str] = "drift"
    needs_along_gradient: ClassVar[bool] = True

    def memory(self, x: Vec) -> State:
        return {"control": torch.zeros_like(x)}

    def correction(self, broadcast: State, memory: State) -> Rows:
        return broadcast["control"] - memory["control"]

    def finish(self, update: Rows, total: Col, broadcast: State, memory: State) -> tuple[State, State]:
        moved = total > 0
        slope = update / torch.where(moved, total, 1.0)
        change = torch.where(moved, slope - broadcast["control"], 0.0)  # FedExP alg. 2
        return {"control": change}, {"control": memory["control"] + change}

    def init(self, x: Vec) -> State:
        return {"control": torch.zeros_like(x)}

    def absorb(self, mean: State, share: float, state: State) -> None:
        state["control"] = state["control"] + share * mean["control"]
