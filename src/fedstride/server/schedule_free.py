"""Schedule-free SGD at the server: clients start between the last iterate and the mean of all; the mean is returned.

Defazio, Yang, Mehta, Mishchenko, Khaled, Cutkosky. The road less scheduled. NeurIPS 2024.
Deviations: the mean update takes the gradient's place. c = 1/t as in the authors' code, so that the start has no part in
the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.errors import decay, positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class ScheduleFree:
    """z -= lr Dbar; x = (1 - 1/t) x + z / t; clients start from y = (1 - beta) z + beta x; x is returned."""

    lr: float = 1.0
    beta: float = 0.9
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)
        decay(self, beta=self.beta)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_tensor(self.lr), "z": x, "x": x, "t": x.new_zeros(())}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        """From y_t, which is the model that clients get, to y_(t+1)."""
        state["t"] = state["t"] + 1
        z = state["z"] = state["z"] - self.lr * mean.update
        average = state["x"] = state["x"] + (z - state["x"]) / state["t"]
        return (1 - self.beta) * z + self.beta * average  # schedule-free SGD: y

    def output(self, x: Vec, state: State) -> Vec:
        return state["x"]
