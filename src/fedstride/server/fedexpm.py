"""FedExP-M: extrapolation combined with server momentum.

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023 (FedExP app. F).
Deviations: none; as in the paper, eta may be less than 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import decay, not_negative, yes_or_no
from fedstride.core.rows import State, Vec, sq
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedExPM:
    """FedExP-M: v = Dbar + beta v; s = S + beta/2 s; x -= eta v with eta = s / (2 (|v|^2 + eps)).

    Args:
        eps: keeps eta finite as v vanishes; 0 turns it off.
        beta: momentum in [0, 1); 0 turns it off.
        last_two: whether to return the mean of the last two iterates.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.FedExPM(beta=0.5)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    eps: float = 1e-3
    beta: float = 0.9
    last_two: bool = True
    needs: ClassVar[tuple[str, ...]] = ("square",)
    slot: ClassVar[str] = "server"
    extrapolates: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True
    damped_by: ClassVar[str] = "eps"

    def __post_init__(self) -> None:
        not_negative(self, eps=self.eps)
        decay(self, beta=self.beta)
        yes_or_no(self, last_two=self.last_two)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_ones(()), "v": torch.zeros_like(x), "s": x.new_zeros(()), "previous": x}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        v = state["v"] = mean.update + self.beta * state["v"]
        s = state["s"] = mean.square + self.beta / 2 * state["s"]
        below = 2 * (sq(v) + self.eps)
        state["eta"] = torch.where(below > 0, s / below, 1.0)  # FedExP eq. (115)
        state["previous"] = x
        return x - state["eta"] * v

    def output(self, x: Vec, state: State) -> Vec:
        return (x + state["previous"]) / 2 if self.last_two else x  # the last iterate oscillates (FedExP sec. 5)
