"""Heavy-ball momentum as torch.optim.SGD computes it; fresh each round. Deviations: none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.client.step.schedule import Schedule, rate
from fedstride.core.errors import decay, positive
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Momentum:
    """v = beta v + g; y -= lr v."""

    lr: float = 0.1
    beta: float = 0.9
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    along_gradient: ClassVar[bool] = False
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)
        decay(self, beta=self.beta)

    @property
    def effective_steps_with_prox(self) -> bool:
        return not self.beta

    def init(self, x: Vec, context: Context) -> State:
        eta = torch.full_like(context.size, rate(self.lr, self.schedule, context.round, context.rounds))
        return {"eta": eta, "v": x.new_zeros(len(context.clients), len(x))}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        state["v"] = self.beta * state["v"] + G
        return -state["eta"] * state["v"]

    def effective_steps(self, context: Context, mu: float) -> Col:
        """a_i of FedNova: (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)."""
        rho, tau = self.beta, context.tau.double()  # a difference of like numbers when rho is near 1
        return ((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)).to(context.tau.dtype)
