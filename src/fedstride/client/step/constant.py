"""A constant step size, equal for all clients or divided by each client's number of steps.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks. AISTATS 2017.
Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin), for PerStep.
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
    """Return a_i of FedNova for constant steps: tau, or (1 - (1 - eta mu)^tau) / (eta mu) with a proximal term."""
    s = eta.double() * mu  # 1 - eta mu would round to 1 in float32
    return torch.where(s > 1e-12, (1 - (1 - s) ** tau.double()) / s, tau.double()).to(tau.dtype)


@dataclass(frozen=True)
class Constant:
    """Gradient steps with a constant step size: y -= lr g; the default.

    Args:
        lr: step size.
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if lr is not positive.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Constant(lr=0.1, schedule=fs.Exponential(0.5)))
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=3)
        >>> [round(row["client_step"], 6) for row in run.history]
        [0.1, 0.05, 0.025]
    """

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
        return G.mul_(-state["eta"])  # in place: no other code uses this gradient

    def effective_steps(self, context: Context, mu: float) -> Col:
        return fednova_weight(self.init(context.size, context)["eta"], context.tau, mu)


@dataclass(frozen=True)
class PerStep:
    """The constant steps of FedLin: y -= (lr / tau_i) g, so clients with more local steps take smaller ones.

    Args:
        lr: step size for a single local step; a client with tau_i local steps uses lr / tau_i.
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if lr is not positive.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.PerStep(lr=0.1))
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=1, local_steps=4)
        >>> round(run.history[0]["client_step"], 6)
        0.025
    """

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
        return G.mul_(-state["eta"])  # in place: no other code uses this gradient

    def effective_steps(self, context: Context, mu: float) -> Col:
        return fednova_weight(self.init(context.size, context)["eta"], context.tau, mu)
