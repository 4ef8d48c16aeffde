"""FedAvgM: momentum on the server.

Hsu, Qi, Brown. Measuring the effects of non-identical data distribution. 2019.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import decay, positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM: v = Dbar + beta v; x -= lr v.

    Args:
        lr: step size.
        beta: momentum in [0, 1); 0 turns it off.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.ServerMomentum(beta=0.5)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr: float = 1.0
    beta: float = 0.9
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    has_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)
        decay(self, beta=self.beta)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_tensor(self.lr), "v": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        state["v"] = mean.update + self.beta * state["v"]
        return x - self.lr * state["v"]

    def output(self, x: Vec, state: State) -> Vec:
        return x
