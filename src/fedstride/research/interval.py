"""Interval of a mean over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Student's t at 97.5 % for 1, 2, ... degrees of freedom; the last value is also used for more, which is conservative.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean; None for a single value."""
    n = len(values)
    return STUDENT[min(n - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(n) if n > 1 else None
