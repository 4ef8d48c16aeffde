"""The proximal objective of FedProx and, with mu = 1/gamma, of FedExProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
Li, Acharya, Richtarik. The power of extrapolation in federated learning. NeurIPS 2024.
Deviations: the client's step rule approximates the proximal point, as in FedSLS and FedExP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.objective.terms import Terms
from fedstride.core.errors import not_negative
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class Proximal:
    """The proximal objective of FedProx: f_i(y) + mu/2 |y - x|^2.

    Args:
        mu: weight of the proximal term; 0 turns it off.

    Raises:
        InvalidInput: if mu is negative.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.Proximal(mu=0.1))
    """

    mu: float = 0.01
    slot: ClassVar[str] = "objective"

    def __post_init__(self) -> None:
        not_negative(self, mu=self.mu)

    @property
    def prox(self) -> float:
        return self.mu

    def memory(self, x: Vec) -> State:
        return {}

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms(curvature=self.mu, center=x)

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {}
