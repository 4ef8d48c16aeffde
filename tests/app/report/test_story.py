"""The sentences at the top of a report say what the figures say."""

from __future__ import annotations

import pytest

from fedstride.app.report import story
from fedstride.app.report.read import Comparison, Record


def run(*accuracies, planned=None, column="test_accuracy"):
    rows = [{"round": t, column: a} for t, a in enumerate(accuracies, 1)]
    return Record("run", rows, config={"training": {"rounds": planned}} if planned else {})


RUNS = {
    "rises": (run(0.1, 0.5, 0.9), "Test accuracy rose from 10.0 % to 90.0 % in 3 rounds."),
    "peak": (
        run(0.1, 0.9, 0.5),
        "Test accuracy rose from 10.0 % to 50.0 % in 3 rounds; the best was 90.0 % in round 2.",
    ),
    "same": (run(0.5, 0.5), "Test accuracy stayed at 50.0 % in 2 rounds."),
    "one": (run(0.5), "Test accuracy is 50.0 % after 1 round."),
    "loss": (run(2.0, None, 0.5, column="train_loss"), "Training loss fell from 2 to 0.5 in 3 rounds."),
    "early": (
        run(0.1, 0.2, planned=9),
        "Test accuracy rose from 10.0 % to 20.0 % in 2 rounds. The run ended after 2 of 9 rounds.",
    ),
    "nothing": (run(None, None), ""),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run(name):
    found, words = RUNS[name]
    assert story.of_run(found) == words


def compared(**ends):
    return Comparison("toys", None, {name: [run(0.1, end) for end in several] for name, several in ends.items()})


def test_a_comparison_names_the_best_and_says_if_it_can_be_chance():
    clear = compared(a=[0.7, 0.72], b=[0.9, 0.91], lost=[])
    assert story.best_of(clear) == "b"
    assert story.of_comparison(clear) == "b is best: test accuracy 90.5 % at the end, 19.5 points above a."
    assert story.of_comparison(compared(a=[0.7, 0.9], b=[0.8, 0.85])).endswith("so this can be chance.")
    assert story.of_comparison(compared(a=[0.7], b=[0.8])).endswith("With one seed, such a difference can be chance.")
    assert story.best_of(compared(a=[0.7])) is None and story.of_comparison(compared(a=[0.7])) == ""


def test_the_lowest_loss_is_best():
    runs = {"a": [run(2.0, 0.5, column="test_loss")] * 2, "b": [run(2.0, 0.4, column="test_loss")] * 2}
    assert story.of_comparison(Comparison("toys", None, runs)).startswith(
        "b is best: test loss 0.4 at the end, 0.1 below a"
    )
