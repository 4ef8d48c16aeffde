"""The plain objective: f_i and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.objective.terms import Terms
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class Plain:
    """f_i(y)."""

    slot: ClassVar[str] = "objective"

    def memory(self, x: Vec) -> State:
        return {}

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms()

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {}
