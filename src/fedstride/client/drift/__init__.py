"""Drift corrections: local steps follow g + corr. Each correction has a client half and a server half."""

from __future__ import annotations

from typing import ClassVar, Protocol

from fedstride.client.drift.gradient_correction import GradientCorrection
from fedstride.client.drift.scaffold import Scaffold
from fedstride.core.rows import Col, Rows, State, Vec

__all__ = ["Drift", "GradientCorrection", "Scaffold"]


class Drift(Protocol):
    """A drift correction."""

    exchanges_gradients: ClassVar[bool]  # whether gradients are exchanged before the local steps
    uploads: ClassVar[tuple[str, ...]]  # fields that clients upload in addition to the update

    def memory(self, x: Vec) -> State:
        """Return the initial memory of a client."""
        ...

    def correction(self, broadcast: State, memory: State) -> Rows:
        """Return corr, which is fixed within a round."""
        ...

    def finish(self, update: Rows, total: Col, broadcast: State, memory: State) -> tuple[State, State]:
        """Return (uploads, memory) after the local steps; `total` is the sum of their step sizes."""
        ...

    def init(self, x: Vec) -> State:
        """Return the initial state of the server half."""
        ...

    def absorb(self, mean: State, share: float, state: State) -> None:
        """Update the server state with the mean upload; `share` is the weight of the cohort in the federation."""
        ...
