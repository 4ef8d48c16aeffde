"""Adam and Adagrad on the clients, as torch.optim computes them; their state is new in every round.

Kingma, Ba. Adam. ICLR 2015. Duchi, Hazan, Singer. Adaptive subgradient methods. JMLR 2011.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.client.step.schedule import Schedule, rate
from fedstride.core.errors import betas, not_negative, positive
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Adam:
    """Adam: y -= lr m / (sqrt(v) + eps), with m and v the bias-corrected moving averages of g and g^2.

    Args:
        lr: step size.
        betas: decay factors of m and v, in [0, 1).
        eps: added to sqrt(v).
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.Adam(lr=0.1)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    along_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, eps=self.eps)
        betas(self, self.betas)

    def init(self, x: Vec, context: Context) -> State:
        zeros = x.new_zeros(len(context.clients), len(x))
        eta = torch.full_like(context.size, rate(self.lr, self.schedule, context.round, context.rounds))
        return {"eta": eta, "m": zeros, "v": zeros.clone(), "t": torch.zeros_like(eta)}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        b1, b2 = self.betas
        t = state["t"] = state["t"] + 1
        m = state["m"] = b1 * state["m"] + (1 - b1) * G
        v = state["v"] = b2 * state["v"] + (1 - b2) * G**2
        return -state["eta"] / (1 - b1**t) * m / (v.sqrt() / (1 - b2**t).sqrt() + self.eps)


@dataclass(frozen=True)
class Adagrad:
    """Adagrad: v += g^2; y -= lr g / (sqrt(v) + eps).

    Args:
        lr: step size.
        eps: added to sqrt(v).
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.Adagrad(lr=0.1)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr: float = 1e-2
    eps: float = 1e-10
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    along_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)
        not_negative(self, eps=self.eps)

    def init(self, x: Vec, context: Context) -> State:
        eta = torch.full_like(context.size, rate(self.lr, self.schedule, context.round, context.rounds))
        return {"eta": eta, "v": x.new_zeros(len(context.clients), len(x))}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        state["v"] = state["v"] + G**2
        return -state["eta"] * G / (state["v"].sqrt() + self.eps)
