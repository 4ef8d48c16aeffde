"""DoG on the server: the distance from the start, divided by the root of the sum of squared updates.

Ivgi, Hinder, Carmon. DoG is SGD's best friend: a parameter-free dynamic step size schedule. ICML 2023.
Deviations: the mean update replaces the gradient. The authors' code adds 1e-8 to the sum; without it, steps do not
depend on the scale of the updates. The authors evaluate an average of the iterates: use readout="average".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import positive
from fedstride.core.rows import State, Vec, norm, sq
from fedstride.wire import Mean


@dataclass(frozen=True)
class DoG:
    """DoG: x -= eta Dbar, eta_t = max{r_eps (1 + |x_0|), max_(i <= t) |x_i - x_0|} / sqrt(sum_(i <= t) |Dbar_i|^2).

    Args:
        r_eps: length of the first move, relative to 1 + |x_0|.

    Raises:
        InvalidInput: if r_eps is not positive.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.DoG(r_eps=0.01)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    r_eps: float = 1e-6
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        positive(self, r_eps=self.r_eps)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_zeros(()), "x0": x, "r": self.r_eps * (1 + norm(x)), "squares": x.new_zeros(())}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        r = state["r"] = torch.maximum(state["r"], norm(x - state["x0"]))
        squares = state["squares"] = state["squares"] + sq(mean.update)
        state["eta"] = torch.where(squares > 0, r / squares.sqrt(), 0.0)  # DoG
        return x - state["eta"] * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
