"""Drift corrections: the direction of a local step is g + corr. Each has a client's and a server's half."""

from __future__ import annotations

from typing import ClassVar, Protocol

from fedstride.client.drift.gradient_correction import GradientCorrection
from fedstride.client.drift.scaffold import Scaffold
from fedstride.core.rows import Col, Rows, State, Vec

__all__ = ["Drift", "GradientCorrection", "Scaffold"]


class Drift(Protocol):
    exchanges_gradients: ClassVar[bool]  # True: a gradient exchange comes before the local steps
    uploads: ClassVar[tuple[str, ...]]  # fields that join the model's upload

    def memory(self, x: Vec) -> State:
        """What a client that never took part remembers."""
        ...

    def correction(self, broadcast: State, memory: State) -> Rows:
        """corr, fixed within a round."""
        ...

    def finish(self, update: Rows, total: Col, broadcast: State, memory: State) -> tuple[State, State]:
        """(uploads, memory) after the local steps; total = the sum of the step sizes used."""
        ...

    def init(self, x: Vec) -> State:
        """The server's half."""
        ...

    def absorb(self, mean: State, share: float, state: State) -> None:
        """Take in the mean of the uploads; share = the cohort's weight in the whole federation."""
        ...
