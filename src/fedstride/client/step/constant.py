"""A constant step, the same for all clients or divided by each client's number of steps.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks. AISTATS 2017.
Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (004), for PerStep.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.client.step.schedule import Schedule, rate
from fedstride.core.errors import positive
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.oracle import Oracle


def fednova_weight(eta: Col, tau: Col, mu: float) -> Col:
    """a_i of FedNova for plain steps: tau, or (1 - (1 - eta mu)^tau) / (eta mu) with a proximal term."""
    s = eta.double() * mu  # 1 - eta mu would round to 1 in float32
    return torch.where(s > 1e-12, (1 - (1 - s) ** tau.double()) / s, tau.double()).to(tau.dtype)


@dataclass(frozen=True)
class Constant:
    """y -= lr g."""

    lr: float = 0.1
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    fixed_step: ClassVar[bool] = True
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)

    def init(self, x: Vec, context: Context) -> State:
        return {"eta": torch.full_like(context.size, rate(self.lr, self.schedule, context.round, context.rounds))}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        return G.mul_(-state["eta"])  # in place: the gradient is nobody else's

    def effective_steps(self, context: Context, mu: float) -> Col:
        return fednova_weight(self.init(context.size, context)["eta"], context.tau, mu)


@dataclass(frozen=True)
class PerStep:
    """y -= (lr / tau_i) g: a client that takes more steps takes smaller ones (004)."""

    lr: float = 0.1
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    fixed_step: ClassVar[bool] = True
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)

    def init(self, x: Vec, context: Context) -> State:
        return {"eta": rate(self.lr, self.schedule, context.round, context.rounds) / context.tau}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        return G.mul_(-state["eta"])  # in place: the gradient is nobody else's

    def effective_steps(self, context: Context, mu: float) -> Col:
        return fednova_weight(self.init(context.size, context)["eta"], context.tau, mu)
