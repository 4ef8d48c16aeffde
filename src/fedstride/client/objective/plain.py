"""The plain objective: f_i without further terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.objective.terms import Terms
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class Plain:
    """The client's own objective f_i(y), without further terms; the default.

    Example:
        >>> fs.Algorithm(objective=fs.Plain()) == fs.Algorithm()
        True
    """

    slot: ClassVar[str] = "objective"

    def memory(self, x: Vec) -> State:
        return {}

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms()

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {}
