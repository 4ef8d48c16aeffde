"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging. ICML 2020 (003 alg. 2).
Deviations: divides by the actual sum of step sizes, so that adaptive steps and schedules are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.rows import Col, Rows, State, Vec


@dataclass(frozen=True)
class Scaffold:
    """corr = c - c_i; then c_i+ = c_i - c + Delta_i / sum(eta), and c += sum pi_i (c_i+ - c_i)."""

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
        change = torch.where(moved, update / torch.where(moved, total, 1.0) - broadcast["control"], 0.0)  # 003 alg. 2
        return {"control": change}, {"control": memory["control"] + change}

    def init(self, x: Vec) -> State:
        return {"control": torch.zeros_like(x)}

    def absorb(self, mean: State, share: float, state: State) -> None:
        state["control"] = state["control"] + share * mean["control"]
