"""Local objectives: the function that a client minimises, the starting point, and the memory of the client."""

from __future__ import annotations

from typing import Protocol

from fedstride.client.objective.ditto import Ditto
from fedstride.client.objective.feddyn import FedDynObjective
from fedstride.client.objective.fedsplit import FedSplitProx
from fedstride.client.objective.moon import Moon
from fedstride.client.objective.plain import Plain
from fedstride.client.objective.proximal import Proximal
from fedstride.client.objective.terms import Terms
from fedstride.core.rows import Rows, State, Vec

__all__ = ["Ditto", "FedDynObjective", "FedSplitProx", "Moon", "Objective", "Plain", "Proximal", "Terms"]


class Objective(Protocol):
    """A local objective. With personal=, x has a row for each client, with the client's own parameters in it.

    One that declares `trains_own` also has own_terms(x, memory) -> Terms, for a second model of each client, memory["own"].
    """

    def memory(self, x: Vec) -> State:
        """Return the initial memory of a client."""
        ...

    def terms(self, x: Vec, memory: State) -> Terms:
        """Return the terms added to f_B, and the starting point of the local steps."""
        ...

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        """Return the memory of the clients after their local steps."""
        ...
