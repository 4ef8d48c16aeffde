"""FedAvg on the server: a constant times the mean update.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks. AISTATS 2017.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.errors import positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class Average:
    """FedAvg: x -= lr Dbar; the default.

    Args:
        lr: step size; 1 replaces the model by the mean of the clients' models.

    Raises:
        InvalidInput: if lr is not positive.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.Average(lr=0.5)), rounds=1)
        >>> run.history[0]["server_step"]
        0.5
    """

    lr: float = 1.0
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_tensor(self.lr)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        return x - self.lr * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
