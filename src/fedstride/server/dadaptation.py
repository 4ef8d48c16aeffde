"""D-Adaptation on the server: SGD with a step from a growing lower bound on the distance to the solution.

Defazio, Mishchenko. Learning-rate-free learning by D-Adaptation. ICML 2023 (SGD with D-Adaptation).
Deviations: the mean update replaces the gradient, and the first non-zero one is g_0. gamma = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import decay, positive
from fedstride.core.rows import State, Vec, dot, norm
from fedstride.wire import Mean


@dataclass(frozen=True)
class DAdaptation:
    """D-Adaptation: s += l Dbar with l = d / |g_0|; z = x_0 - s; x = beta x + (1 - beta) z.

    Then d = max{d, 2 sum_i l_i <Dbar_i, s_i> / |s|}, a lower bound on the distance |x_0 - x*|.

    Args:
        d0: initial d.
        beta: momentum in [0, 1); 0 turns it off.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.DAdaptation(d0=0.01)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    d0: float = 1e-6
    beta: float = 0.0
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        positive(self, d0=self.d0)
        decay(self, beta=self.beta)

    def init(self, x: Vec) -> State:
        zero = x.new_zeros(())
        return {"eta": zero, "d": x.new_tensor(self.d0), "g0": zero, "x0": x, "s": torch.zeros_like(x), "sum": zero}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        g0 = state["g0"] = torch.where(state["g0"] > 0, state["g0"], norm(mean.update))
        eta = state["eta"] = torch.where(g0 > 0, state["d"] / g0, 0.0)
        state["sum"] = state["sum"] + eta * dot(mean.update, state["s"])
        s = state["s"] = state["s"] + eta * mean.update
        found = torch.where(norm(s) > 0, 2 * state["sum"] / norm(s), 0.0)  # D-Adaptation: d_hat
        state["d"] = torch.maximum(state["d"], found)
        return self.beta * x + (1 - self.beta) * (state["x0"] - s)

    def output(self, x: Vec, state: State) -> Vec:
        return x
