"""AdamW on the clients, as torch.optim computes it; its state is new in every round.

Loshchilov, Hutter. Decoupled weight decay regularization. ICLR 2019.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.context import Context
from fedstride.client.step.adaptive import Adam
from fedstride.client.step.schedule import Schedule
from fedstride.core.errors import betas, not_negative, positive
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class AdamW:
    """AdamW: Adam's step and y -= lr weight_decay y; the decay does not enter the moments.

    Args:
        lr: step size.
        betas: decay factors of the two moments, in [0, 1).
        eps: added to sqrt(v).
        weight_decay: decay factor; 0 turns it off.
        schedule: factor of lr by round, such as fs.Exponential(); None for a constant lr.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.AdamW(lr=0.1)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    schedule: Schedule | None = None
    slot: ClassVar[str] = "step"
    along_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, eps=self.eps)
        not_negative(self, weight_decay=self.weight_decay)
        betas(self, self.betas)

    @property
    def _adam(self) -> Adam:
        return Adam(self.lr, self.betas, self.eps, self.schedule)

    def init(self, x: Vec, context: Context) -> State:
        return self._adam.init(x, context)

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        return self._adam.step(W, L, G, state, oracle) - self.weight_decay * state["eta"] * W
