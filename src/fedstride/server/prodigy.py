"""Prodigy on the server: Adam with a step from an estimate of the distance to the solution, which grows in training.

Mishchenko, Defazio. Prodigy: an expeditiously adaptive parameter-free learner. ICML 2024 (the Adam version).
Deviations: the mean update replaces the gradient. m, v, r and s are stored divided by d_0 or d_0^2, which cancels and
avoids underflow in float32. Coordinates that have received no update do not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import betas, positive
from fedstride.core.rows import State, Vec, dot
from fedstride.wire import Mean


@dataclass(frozen=True)
class Prodigy:
    """Prodigy: x -= d m / (sqrt(v) + d eps), with m and v the moving averages of d Dbar and d^2 Dbar^2.

    Then d = max{d, r / |s|_1}; r and s are moving averages of d^2 <Dbar, x_0 - x> and d^2 Dbar with factor sqrt(b2).

    Args:
        betas: decay factors b1 and b2 of m and v, in [0, 1).
        d0: initial d.
        eps: added to the denominator, relative to d.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.Prodigy(d0=0.01)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    betas: tuple[float, float] = (0.9, 0.999)
    d0: float = 1e-6
    eps: float = 1e-8
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        betas(self, self.betas)
        positive(self, d0=self.d0, eps=self.eps)

    def init(self, x: Vec) -> State:
        d, zero = x.new_tensor(self.d0), torch.zeros_like(x)
        return {"eta": d, "d": d, "x0": x, "m": zero, "v": zero, "r": x.new_zeros(()), "s": zero}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        (b1, b2), b3, g = self.betas, self.betas[1] ** 0.5, mean.update
        d, q = state["d"], state["d"] / self.d0
        m = state["m"] = b1 * state["m"] + (1 - b1) * q * g
        v = state["v"] = b2 * state["v"] + (1 - b2) * q**2 * g**2
        r = state["r"] = b3 * state["r"] + (1 - b3) * q**2 * dot(g, state["x0"] - x)
        s = state["s"] = b3 * state["s"] + (1 - b3) * q**2 * g
        length = s.abs().sum()
        state["eta"], state["d"] = d, torch.where(length > 0, torch.maximum(d, r / length), d)  # Prodigy
        return x - d * m / (v.sqrt() + q * self.eps)

    def output(self, x: Vec, state: State) -> Vec:
        return x
