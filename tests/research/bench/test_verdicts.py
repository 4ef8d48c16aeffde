"""Points ahead with intervals, by task and by group, and claims that can come out either way."""

from __future__ import annotations

import math

import pytest

from fedstride.research.bench import verdicts
from fedstride.research.bench.tasks import GROUPS
from fedstride.research.bench.verdicts import BEST, EVERY, paired, summary

pytestmark = pytest.mark.slow


def test_paired_differences_and_their_interval():
    d = paired([3.0, 5.0, 7.0], [1.0, 2.0, 6.0])
    assert d["mean"] == pytest.approx(2) and d["seeds"] == [2, 3, 1]
    assert d["half"] == pytest.approx(4.303 / math.sqrt(3))
    assert paired([3.0], [1.0]) == {"mean": 2.0, "half": None, "seeds": [2.0]}
    assert paired([1.0] * 40, [0.0] * 40)["half"] == 0


def test_a_summary():
    values = {
        t: {"mean": m, "half": h} for t, m, h in (("a", 4.0, 1.0), ("b", 1.0, 2.0), ("c", -3.0, 1.0), ("d", 0, 0))
    }
    assert summary(values) == {
        **{"tasks": 4, "mean": 0.5, "median": 0.5, "worst": -3.0, "worst_on": "c"},
        **{"won": 2, "lost": 1, "won_clearly": 1, "lost_clearly": 1},
    }


def tried(method, *scores, **more):
    row = {"method": method, "scores": list(scores), "score": sum(scores) / len(scores), "diverged": 0}
    return {**row, "own_gradients": 1000, "gradients": 1000, "forwards": 100, **more}


def judged(auto, scaled=None, groups=("looked",)):
    """One task per group, on which FedAvgM is the best of three with 81 points and FedAvg has 80."""
    tasks = {group: {"group": group} for group in groups}
    three = [tried("fedavg", 79.0, 81.0), tried("fedavgm", 80.0, 82.0), tried("fedexp", 70.0, 70.0)]
    return verdicts.judge(tasks, {task: [*three, auto] for task in tasks}, scaled or {})


def missed(report):
    return {claim["what"] for claim in report["claims"] if not claim["kept"]}


MEAN, WORST = "points ahead of tuned FedAvg, mean", "points ahead of tuned FedAvg, worst task"
OF_THREE = "points ahead of the best of tuned FedAvg, FedAvgM, FedExP, mean"


@pytest.mark.parametrize(
    ("points", "more", "broken"),
    [
        (82.0, {}, set()),
        (81.9, {}, {MEAN}),
        (80.9, {}, {MEAN, OF_THREE}),
        (79.4, {}, {MEAN, WORST, OF_THREE}),
        (82.0, {"gradients": 1100, "forwards": 300}, set()),
        (82.0, {"gradients": 1101}, {"gradients per local step"}),
        (82.0, {"forwards": 301}, {"forward passes per local step"}),
        (82.0, {"diverged": 1}, {"runs that diverged"}),
    ],
)
def test_claims_are_kept_and_missed(points, more, broken):
    report = judged(tried("auto", points, points, **more))
    assert missed(report) == broken and len(report["claims"]) == 6
    assert report["ahead"]["looked"][BEST]["method"] == "fedavgm"


def test_claims_by_group_and_for_all():
    report = judged(tried("auto", 82.0, 82.0), groups=("looked", "users"))
    assert list(report["groups"]) == [GROUPS["looked"], GROUPS["users"], EVERY]
    assert len(report["claims"]) == 18
    assert report["groups"][EVERY]["fedavg"]["tasks"] == 2


@pytest.mark.parametrize(
    ("mean", "half", "broken"),
    [(0.4, 0.5, 0), (0.4, 0.1, 1), (2.0, 2.5, 1), (2.0, 0.5, 2), (-1.0, 0.1, 0), (0.1, None, 1)],
)
def test_scaling_may_cost_no_more_than_noise(mean, half, broken):
    report = judged(tried("auto", 82.0, 82.0), {"a": {"inputs x 20": {"mean": mean, "half": half, "seeds": []}}})
    assert len(missed(report)) == broken
    assert report["claims"][-1]["task"] == "a, inputs x 20"
