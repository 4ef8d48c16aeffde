"""The benchmark compares like with like; how long it takes is not a test's business."""

import pytest

from fedstride.research.bench.overhead import cnn, measure

pytestmark = pytest.mark.slow


def test_both_loops_end_at_the_same_model():
    assert sum(p.numel() for p in cnn().parameters()) == 582_026
    (result,) = measure(repeats=1)
    assert result.difference < 1e-12
    assert result.by_hand > 0 and result.fedstride > 0 and result.ratio > 0
