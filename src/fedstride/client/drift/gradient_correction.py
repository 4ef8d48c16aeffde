"""Gradient correction: clients replace their own gradient at x by the gradient of the federation.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin eq. 37); FedTrack line 7.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.rows import Col, Rows, State, Vec


@dataclass(frozen=True)
class GradientCorrection:
    """Gradient correction of FedLin and FedTrack: corr = g_t - grad f_i(x), with g_t the mean gradient at x.

    Gradients are exchanged before the local steps, so a round has two exchanges.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.PerStep(lr=0.1), drift=fs.GradientCorrection())
        >>> algorithm.exchanges_gradients
        True
    """

    exchanges_gradients: ClassVar[bool] = True
    uploads: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "drift"

    def memory(self, x: Vec) -> State:
        return {}

    def correction(self, broadcast: State, memory: State) -> Rows:
        return broadcast["gradient"] - memory["anchor"]  # FedLin eq. (37)

    def finish(self, update: Rows, total: Col, broadcast: State, memory: State) -> tuple[State, State]:
        return {}, {}

    def init(self, x: Vec) -> State:
        return {}

    def absorb(self, mean: State, share: float, state: State) -> None:
        pass
