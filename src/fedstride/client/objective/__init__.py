"""Local objectives: what a client minimises, where it starts, and what it remembers."""

from __future__ import annotations

from typing import Protocol

from fedstride.client.objective.feddyn import FedDynObjective
from fedstride.client.objective.fedsplit import FedSplitProx
from fedstride.client.objective.moon import Moon
from fedstride.client.objective.plain import Plain
from fedstride.client.objective.proximal import Proximal
from fedstride.client.objective.terms import Terms
from fedstride.core.rows import Rows, State, Vec

__all__ = ["FedDynObjective", "FedSplitProx", "Moon", "Objective", "Plain", "Proximal", "Terms"]


class Objective(Protocol):
    def memory(self, x: Vec) -> State:
        """What a client that never took part remembers."""
        ...

    def terms(self, x: Vec, memory: State) -> Terms:
        """What is added to f_B, and where the local steps start."""
        ...

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        """What the clients remember after their local steps."""
        ...
