"""FedAvg's server: the mean of the updates, times a constant.

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
    """x -= lr Dbar."""

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
