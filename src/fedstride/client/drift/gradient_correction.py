"""Gradient correction: every client replaces its own gradient at x by the federation's.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (004 eq. 37); 002 line 7.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.rows import Col, Rows, State, Vec


@dataclass(frozen=True)
class GradientCorrection:
    """corr = g_t - grad f_i(x), from an exchange of gradients before the local steps."""

    exchanges_gradients: ClassVar[bool] = True
    uploads: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "drift"

    def memory(self, x: Vec) -> State:
        return {}

    def correction(self, broadcast: State, memory: State) -> Rows:
        return broadcast["gradient"] - memory["anchor"]  # 004 eq. (37)

    def finish(self, update: Rows, total: Col, broadcast: State, memory: State) -> tuple[State, State]:
        return {}, {}

    def init(self, x: Vec) -> State:
        return {}

    def absorb(self, mean: State, share: float, state: State) -> None:
        pass
