"""Schedule-free SGD on the server: clients start between the last iterate and the mean iterate, which is returned.

Defazio, Yang, Mehta, Mishchenko, Khaled, Cutkosky. The road less scheduled. NeurIPS 2024.
Deviations: the mean update replaces the gradient. c = 1/t as in the authors' code, so that the mean excludes the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.errors import decay, positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class ScheduleFree:
    """Schedule-free SGD: z -= lr Dbar; x = (1 - 1/t) x + z / t; clients start from y = (1 - beta) z + beta x.

    Training iterates y; the mean x is evaluated and returned.

    Args:
        lr: step size.
        beta: weight of the mean in y, in [0, 1).

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.ScheduleFree(lr=1.0)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

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
        """Return y_(t+1), given y_t as x."""
        state["t"] = state["t"] + 1
        z = state["z"] = state["z"] - self.lr * mean.update
        average = state["x"] = state["x"] + (z - state["x"]) / state["t"]
        return (1 - self.beta) * z + self.beta * average  # schedule-free SGD: y

    def output(self, x: Vec, state: State) -> Vec:
        return state["x"]
