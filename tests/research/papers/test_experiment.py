"""Choosing experiments, judging them, and drawing their curves."""

from __future__ import annotations

import json

import pytest

from fedstride import FedstrideWarning, InvalidInput
from fedstride.app.sweep import Cell
from fedstride.research.papers import EXPERIMENTS, Experiment, Lab, experiment, select
from fedstride.research.papers.experiment import AGREES, DIFFERS, IN_KIND, NO_INFORMATION, UNDECIDED, curves
from tests.app.report.figures import check

pytestmark = pytest.mark.slow

calls = []


def square(n):
    calls.append(n)
    return {"square": n * n}


@pytest.fixture
def three(monkeypatch):
    known = {name: Experiment(name, name, None) for name in ("fedexp-b", "fedsls-a", "fedexp-a")}
    monkeypatch.setattr(experiment, "EXPERIMENTS", known)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fedsls-a", ["fedsls-a"]), ("fedexp", ["fedexp-a", "fedexp-b"]), ("all", ["fedexp-a", "fedexp-b", "fedsls-a"])],
)
def test_select(three, name, expected):
    assert [e.name for e in select(name)] == expected


@pytest.mark.parametrize(("old", "new"), [("000-a", "fedsls-a"), ("003", "fedexp")])
def test_the_number_of_a_paper_works_for_one_more_release(three, old, new):
    with pytest.warns(FedstrideWarning, match=f"^{old} is now {new}; "):
        assert select(old) == select(new)


@pytest.mark.parametrize("name", ["00", "fedexp-", "fedlin", ""])
def test_an_unknown_name_is_refused(three, name):
    with pytest.raises(InvalidInput, match="is not an experiment"):
        select(name)


def test_every_experiment_is_of_a_paper():
    assert {name.rpartition("-")[0] for name in EXPERIMENTS} >= {"fedsls", "delta-sgd", "fedexp", "fedlin"}
    assert all(e.name == name and e.title for name, e in EXPERIMENTS.items())


@pytest.mark.parametrize(
    ("scale", "full", "expected"),
    [
        *(("small", None, IN_KIND), ("small", True, AGREES), ("small", False, IN_KIND)),
        *(("paper", None, AGREES), ("paper", True, AGREES), ("paper", False, IN_KIND)),
    ],
)
def test_judge(tmp_path, scale, full, expected):
    lab = Lab(scale, 1, tmp_path)
    assert lab.judge("what", "1", "1", True, full).verdict == expected
    assert lab.judge("what", "1", "2", False, full).verdict == DIFFERS


@pytest.mark.parametrize(
    ("margins", "accuracy", "expected"),
    [
        ([0.1], 50, IN_KIND),
        ([-9.0], 50, UNDECIDED),  # one seed has no interval
        ([-9.0, 1.0], 50, UNDECIDED),
        ([-9.0, -9.1, -9.2], 50, DIFFERS),
        ([-9.0, -9.1, -9.2], 19.9, NO_INFORMATION),
        ([0.1, 0.1], 19.9, NO_INFORMATION),
        ([0.1, 0.1], 20, IN_KIND),
        ([0.0, 0.0], 50, UNDECIDED),
        ([float("nan"), float("-inf")], 50, UNDECIDED),
    ],
)
def test_weigh(tmp_path, margins, accuracy, expected):
    lab = Lab("small", len(margins), tmp_path)
    mean = sum(margins) / len(margins)
    claim = lab.weigh("what", "1", "2", lambda v: v, mean, margins, best=[60, accuracy])
    assert claim.verdict == expected
    assert ("interval" in claim.ours) == (len(margins) > 1)
    assert lab.weigh("what", "1", "2", lambda v: v, 0.0, [0.0], strict=False).verdict == IN_KIND


def test_weigh_shows_students_interval_of_the_paired_margins(tmp_path):
    """Half the width for 1, 2, 3 is 4.303 / sqrt(3) = 2.48."""
    claim = Lab("small", 3, tmp_path).weigh("what", "1", "2", lambda v: v, 2.0, [1.0, 2.0, 3.0])
    assert claim.ours == "2; margin 2, interval -0.484 to 4.48 (3 seeds)"


def test_tasks_and_rates():
    table, other = EXPERIMENTS["delta-sgd-table1"], EXPERIMENTS["fedexp-fig1"]
    assert experiment.check_tasks("mnist, fashion_mnist", None, [table]) == ("mnist", "fashion_mnist")
    assert experiment.check_tasks(None, None, [other]) == ()
    assert experiment.given_rates("SGD=0.1,SGDM=0.05,Adam=0.001,Adagrad=0.01")["SGDM"] == 0.05
    for wrong in ("mnst", ""):
        with pytest.raises(InvalidInput, match="is not a task of delta-sgd-table1"):
            experiment.check_tasks(wrong, None, [table])
    with pytest.raises(InvalidInput, match="fedexp-fig1 does not accept --tasks; expected one of delta-sgd-table1"):
        experiment.check_tasks("mnist", None, [other])
    with pytest.raises(InvalidInput, match="niid-bench does not accept --rates; expected one of delta-sgd-table1"):
        experiment.check_tasks(None, "SGD=0.1", [EXPERIMENTS["niid-bench"]])
    for wrong in ("SGD=0.1", "SGD=x,SGDM=1,Adam=1,Adagrad=1", "SGD=-1,SGDM=1,Adam=1,Adagrad=1", ""):
        with pytest.raises(InvalidInput, match="--rates"):
            experiment.given_rates(wrong)


def test_a_lab_runs_what_is_missing_and_counts_the_hours_of_all(tmp_path):
    calls.clear()
    cells = [Cell(f"square {n}", square, {"n": n}) for n in (2, 3)]
    assert Lab("small", 1, tmp_path).run(cells[:1]) == {"square 2": {"square": 4}}
    file = cells[0].file(tmp_path / "cells" / "small")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seconds": 7200}))
    again = Lab("small", 1, tmp_path)
    assert again.run(cells, workers=1)["square 3"] == {"square": 9}
    assert calls == [2, 3]
    assert again.hours == pytest.approx(2, abs=1e-3)
    assert Lab("paper", 1, tmp_path).run(cells[:1]) == {"square 2": {"square": 4}}
    assert calls == [2, 3, 2], "another scale has cells of its own"


@pytest.mark.parametrize(
    ("old", "new"),
    [("003-fig1 2", "fedexp-fig1 2"), ("003 mnist 2", "fedexp mnist 2"), ("000-" + 60 * "a b", "fedsls-" + 60 * "a b")],
)
def test_results_saved_under_the_number_of_a_paper_are_found(tmp_path, old, new):
    calls.clear()
    Lab("small", 1, tmp_path).run([Cell(old, square, {"n": 2})])
    assert Lab("small", 1, tmp_path).run([Cell(new, square, {"n": 2})]) == {new: {"square": 4}}
    assert calls == [2]


@pytest.mark.parametrize("values", [[1.0, None, 1e-30], [3.0, 2.0, 1.0], [0.0, 0.0], []])
def test_curves_are_figures(values):
    picture = curves("title", "note", {"a": (range(len(values)), values)}, y="F", log=True)
    check(picture.figure)
    assert picture.figure["layout"]["yaxis"]["type"] == "log"
    assert picture.figure["layout"]["yaxis"]["title"]["text"] == "F"
    assert picture.figure["data"][0]["y"] == values
