"""The stochastic Polyak step (SPS): the step that would reach f* if the loss were linear.

Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak step-size for SGD. AISTATS 2021 (Delta-SGD footnote 4).
Deviations: the step is 0 if the loss is below f*; a step of 0 does not bound the next one. With drift correction or
clipping, the step size is computed from the loss and gradient without them; the move is along the corrected gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import at_least_one, finite, positive
from fedstride.core.rows import Col, Rows, State, Vec, sq
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Polyak:
    """The stochastic Polyak step: eta = min{(f_B - f*) / (c |g|^2 + 1e-8), lr_max, growth^(b/n) eta_last}.

    Args:
        c: divisor of the step; larger values give smaller steps.
        lr_max: maximum step size; None for no limit.
        f_star: f*, the minimum of the loss or a lower bound.
        growth: maximum growth of the step per epoch, at least 1; None for no limit. b/n is the batch as a fraction of
            the data; the first step of a round is limited as if the last one was 1.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.Polyak(lr_max=1.0)), rounds=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    c: float = 0.5
    lr_max: float | None = None
    f_star: float = 0.0
    growth: float | None = None
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True
    rotation_invariant: ClassVar[bool] = True
    capped_by: ClassVar[str] = "lr_max"

    def __post_init__(self) -> None:
        positive(self, c=self.c, lr_max=self.lr_max)
        at_least_one(self, growth=self.growth)
        finite(self, f_star=self.f_star)

    @property
    def least_loss(self) -> float:
        return self.f_star

    def init(self, x: Vec, context: Context) -> State:
        one = torch.ones_like(context.size)
        return {"eta": one, "last": one.clone(), "growth": context.growth(self.growth or 1.0)}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        L, g = getattr(oracle, "plain", None) or (L, G)
        eta = ((L - self.f_star) / (self.c * sq(g) + 1e-8)).clamp(min=0)  # Delta-SGD fn 4
        if self.growth is not None:
            eta = torch.minimum(eta, state["growth"] * state["last"])
        eta = state["eta"] = eta if self.lr_max is None else eta.clamp(max=self.lr_max)
        state["last"] = torch.where(eta > 0, eta, state["last"])  # a batch with zero loss must not stop the next steps
        return -state["eta"] * G
