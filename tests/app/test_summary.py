"""The round that reaches a target is the first whose accuracy is at least the target."""

from __future__ import annotations

import pytest

from fedstride.app.summary import reached


def history(*accuracies):
    return [{"round": t, "test_accuracy": a} for t, a in enumerate(accuracies, start=1)]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((0.4, 0.5, 0.9), 2), ((0.4, None, 0.6, 0.7), 3), ((0.4, 0.499), None), ((0.5,), 1), ((0.6, 0.2), 1)],
)
def test_the_first_round_at_or_above_the_target(accuracies, expected):
    assert reached(history(*accuracies), 0.5) == expected
