"""FedNova: updates normalised by the effective number of local steps of each client.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem. NeurIPS 2020 (FedLin prop. 2).
Deviations: none. Clients upload Delta_i / a_i and a_i, so that the server receives only means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.errors import positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedNova:
    """FedNova: x -= lr tau_eff sum p_i Delta_i / a_i with tau_eff = sum p_i a_i.

    a_i is the effective number of local steps; for constant steps without momentum, a_i = tau_i.

    Args:
        lr: step size.

    Raises:
        InvalidInput: if lr is not positive.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Constant(0.05), server=fs.FedNova())
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=2, local_steps=[1, 2, 3, 4])
    """

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
