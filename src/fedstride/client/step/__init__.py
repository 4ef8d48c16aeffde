"""Client step rules: from the loss and the gradient to the move of a local step."""

from __future__ import annotations

from typing import Protocol

from fedstride.client.context import Context
from fedstride.client.step.adamw import AdamW
from fedstride.client.step.adaptive import Adagrad, Adam
from fedstride.client.step.armijo import Armijo
from fedstride.client.step.capped_polyak import CappedPolyak
from fedstride.client.step.constant import Constant, PerStep
from fedstride.client.step.decsps import DecSPS
from fedstride.client.step.delta_sgd import DeltaSGD
from fedstride.client.step.momentum import Momentum
from fedstride.client.step.ngn import NGN
from fedstride.client.step.polyak import Polyak
from fedstride.client.step.schedule import Exponential, Stepwise
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.oracle import Oracle

__all__ = [
    "NGN",
    "Adagrad",
    "Adam",
    "AdamW",
    "Armijo",
    "CappedPolyak",
    "Constant",
    "DecSPS",
    "DeltaSGD",
    "Exponential",
    "Momentum",
    "PerStep",
    "Polyak",
    "Step",
    "Stepwise",
]


class Step(Protocol):
    """A step rule. Its state is new in every round; state["eta"], a Col, holds the last step sizes."""

    def init(self, x: Vec, context: Context) -> State:
        """Return the state at the start of a round."""
        ...

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        """Return the move, W += result. L and G are loss and gradient of the oracle at W; G may be overwritten."""
        ...
