"""FedNova: updates normalised by each client's effective number of steps.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem. NeurIPS 2020 (004 prop. 2).
Deviations: none. Clients upload Delta_i / a_i and a_i, so that the server still sees means only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.errors import positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedNova:
    """x -= lr tau_eff sum p_i Delta_i / a_i with tau_eff = sum p_i a_i."""

    lr: float = 1.0
    needs: ClassVar[tuple[str, ...]] = ("effective_steps",)
    slot: ClassVar[str] = "server"
    exact_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, lr=self.lr)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_tensor(self.lr)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        return x - self.lr * mean.fields["effective_steps"] * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
