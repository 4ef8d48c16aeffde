"""What an objective adds to f_B: a quadratic, a linear term, a contrast; and the starting point."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedstride.core.rows import Rows
from fedstride.oracle import Contrast


@dataclass(frozen=True)
class Terms:
    """f_B(y) + curvature/2 |y - center|^2 + <linear, y> + contrast(y)."""

    start: Tensor | None = None  # x if None
    curvature: float = 0.0
    center: Tensor | None = None
    linear: Rows | None = None
    contrast: Contrast | None = None

    @property
    def plain(self) -> bool:
        """True if nothing is added, and steps start at x."""
        return not self.curvature and self.start is None and self.linear is None and self.contrast is None
