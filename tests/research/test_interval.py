"""The interval of a mean over seeds is Student's."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy import stats

from fedstride.research.interval import half_width


@pytest.mark.parametrize("n", range(2, 13))
def test_half_the_width_is_students(n):
    values = [float(i * i) for i in range(n)]
    quantile = stats.t.ppf(0.975, min(n - 1, 10))  # from ten degrees of freedom on, that of ten
    assert half_width(values) == pytest.approx(quantile * statistics.stdev(values) / math.sqrt(n), rel=2e-4)


def test_a_single_value_has_none():
    assert half_width([1.0]) is None
