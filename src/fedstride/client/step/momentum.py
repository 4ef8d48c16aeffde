"""Heavy-ball momentum, as torch.optim.SGD computes it; its state is new in every round. Deviations: none."""

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
    """Heavy-ball momentum: v = beta v + g; y -= lr v.

    Args:
        lr: step size.
        beta: momentum in [0, 1); 0 turns it off.
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Momentum(lr=0.05))
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=20, local_steps=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

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
        """Return a_i of FedNova: (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)."""
        rho, tau = self.beta, context.tau.double()  # float64, because of cancellation for rho near 1
        return ((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)).to(context.tau.dtype)
