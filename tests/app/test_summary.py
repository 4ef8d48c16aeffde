"""The round that reaches a target is the first whose accuracy is at least the target."""

from __future__ import annotations

import pytest

from fedstride.app.summary import _columns, frame_of, reached


def history(*accuracies):
    return [{"round": t, "test_accuracy": a} for t, a in enumerate(accuracies, start=1)]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((0.4, 0.5, 0.9), 2), ((0.4, None, 0.6, 0.7), 3), ((0.4, 0.499), None), ((0.5,), 1), ((0.6, 0.2), 1)],
)
def test_the_first_round_at_or_above_the_target(accuracies, expected):
    assert reached(history(*accuracies), 0.5) == expected


SEEDS = {"a": [history(0.1, 0.4), history(0.5, 0.6), history(0.2, 0.8)], "b": [history(0.1)]}  # last: 0.4, 0.6, 0.8
COUNTS = ("bytes_up", "bytes_down", "gradients", "forwards", "seconds")


@pytest.fixture
def seeds():
    more = {"test_loss": 1.0, "train_loss": 1.0, **dict.fromkeys(COUNTS, 10)}
    return {name: [[{**row, **more} for row in h] for h in every] for name, every in SEEDS.items()}


def test_the_table_has_means_and_deviations_over_the_seeds(seeds):
    columns = _columns(seeds, 0.5)
    assert columns["accuracy"] == ["60.0 ± 20.0 %", "10.0 %"]  # the deviation of a sample
    assert columns["to 50 %"] == ["2 (2 of 3)", "never"]  # after 1 and 2 rounds
    assert columns["gradients"] == ["20", "10"]


def test_the_frame_has_the_same_figures(seeds):
    frame = frame_of(seeds, 0.5)
    assert frame["test_accuracy"].tolist() == pytest.approx([0.6, 0.1])
    assert frame["test_accuracy_deviation"]["a"] == pytest.approx(0.2)
    assert frame["rounds_to_target"]["a"] == 1.5 and frame["reached"].tolist() == [2, 0]
    assert frame["bytes_up"].tolist() == [20, 10]
