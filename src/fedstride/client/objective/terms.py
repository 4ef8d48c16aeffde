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

    @property
    def plain(self) -> bool:
        """True if no term is added and local steps start at x."""
        return not self.curvature and self.start is None and self.linear is None and self.contrast is None
