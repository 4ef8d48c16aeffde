"""NGN: the Gauss-Newton step for the square root of the loss, between a constant step and the Polyak step.

Orvieto, Xiao. An adaptive stochastic gradient method with non-negative Gauss-Newton stepsizes. 2024.
Deviations: negative losses are treated as 0. The default sigma = 1 is ours; the paper tunes it. With drift correction
or clipping, the step is computed from the loss and gradient without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import positive
from fedstride.core.rows import Col, Rows, State, Vec, sq
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class NGN:
    """Non-negative Gauss-Newton steps: y -= eta g with eta = sigma / (1 + sigma |g|^2 / (2 f_B)).

    Args:
        sigma: maximum step size.

    Raises:
        InvalidInput: if sigma is not positive.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.NGN(sigma=1.0)), rounds=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    sigma: float = 1.0
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, sigma=self.sigma)

    def init(self, x: Vec, context: Context) -> State:
        return {"eta": torch.full_like(context.size, self.sigma)}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        L, g = getattr(oracle, "plain", None) or (L, G)
        twice = 2 * L.clamp(min=0)
        below = twice + self.sigma * sq(g)
        state["eta"] = torch.where(below > 0, self.sigma * twice / below, 0.0)  # NGN
        return -state["eta"] * G
