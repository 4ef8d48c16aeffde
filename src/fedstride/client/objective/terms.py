"""Terms that an objective adds to f_B, quadratic, linear and contrastive, and the starting point of local steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedstride.core.rows import Rows
from fedstride.oracle import Contrast


@dataclass(frozen=True)
class Terms:
    """f_B(y) + curvature/2 |y - center|^2 + <linear, y> + contrast(y)."""

    start: Tensor | None = None  # starting point; None for x
    curvature: float = 0.0
    center: Tensor | None = None
    linear: Rows | None = None
    contrast: Contrast | None = None
    moves: Tensor | None = None  # 1 for entries that local steps change, 0 for frozen ones; None: all change

    @property
    def plain(self) -> bool:
        """True if no term is added and local steps start at x."""
        other = self.start is not None or self.moves is not None
        return not (self.curvature or other or self.linear is not None or self.contrast is not None)
