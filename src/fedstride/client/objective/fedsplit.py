"""FedSplit on the clients: an approximate proximal step from the reflected point.

Pathak, Wainwright. FedSplit: an algorithmic framework for fast federated optimization. NeurIPS 2020 (FedLin app. J).
Deviations: none. The server half is server/fedsplit.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.objective.terms import Terms
from fedstride.core.errors import positive
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class FedSplitProx:
    """FedSplit's local objective: f_i(y) + |y - u|^2 / (2s) with u = 2x - z_i, from y = u; then z_i += 2 (y - x).

    Use it with fs.FedSplit; fs.recipes.fedsplit() combines both. All clients must take part in every round.

    Args:
        s: step size of the proximal operator.

    Raises:
        InvalidInput: if s is not positive.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.FedSplitProx(s=0.5), server=fs.FedSplit())
    """

    s: float = 0.1
    slot: ClassVar[str] = "objective"
    starts_elsewhere: ClassVar[bool] = True
    needs_everyone: ClassVar[bool] = True
    half_of: ClassVar[str] = "FedSplit"

    def __post_init__(self) -> None:
        positive(self, s=self.s)

    def memory(self, x: Vec) -> State:
        return {"z": x.clone()}

    def terms(self, x: Vec, memory: State) -> Terms:
        U = 2 * x - memory["z"]  # FedLin eq. (153)
        return Terms(start=U, curvature=1 / self.s, center=U)

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {"z": memory["z"] + 2 * (W - x)}  # FedLin eq. (153)
