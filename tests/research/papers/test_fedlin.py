"""The verdicts on FedLin and FedSplit come out both ways, and single cells compute what the papers define."""

from __future__ import annotations

import math

import pytest
import torch

from fedstride.research.papers import fedlin, fedlin_limits
from fedstride.research.papers.experiment import AGREES, DIFFERS, IN_KIND
from tests.research.papers.made_up import outcome, verdicts

pytestmark = pytest.mark.slow


def sparse(work, arguments, floor=0.01):
    """Gaps that halve every four rounds; at the clients down to a floor that grows with what is left out."""
    least = floor * (100 - arguments["k"]) if arguments["where"] == "up" else 0
    return {"gap": [300 * 2 ** (-t / 4) + least for t in range(arguments["rounds"] + 1)]}


def split(work, arguments, above=1.1):
    grows = arguments["e"] % 2
    return {"radius": above if grows else 0.9, "bias": 0.01, "distance": [1.0] * (arguments["rounds"] + 1)}


def round_map(work, arguments, long=1.5):
    far = arguments["eta"] * arguments["H"] >= 1
    return {"radius": long if far else 0.9, "second": 0.5, "wrong": 0.0}


def noisy(work, arguments, power=1):
    return {"square": [100 * 0.9**t + 7 * arguments["variance"] ** power for t in range(401)]}


GOOD = {
    "fedlin-K": (sparse, AGREES),
    "fedlin-J": (split, AGREES),
    "fedlin-E": (round_map, AGREES),
    "fedlin-L": (noisy, IN_KIND),
}


@pytest.fixture
def judged(monkeypatch, tmp_path):
    return lambda name, result, **more: outcome(monkeypatch, tmp_path, name, result, **more)


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", GOOD)
def test_results_as_in_the_paper_agree(judged, name, scale):
    result, good = GOOD[name]
    assert set(verdicts(judged(name, result, scale=scale))) == {good}


@pytest.mark.parametrize(
    ("name", "result", "differing"),
    [
        ("fedlin-K", lambda w, a: sparse(w, a, floor=0.0), 4),  # clients without a floor
        ("fedlin-K", lambda w, a: sparse(w, a | {"where": "up"}), 5),  # a floor at the server, too
        ("fedlin-J", lambda w, a: split(w, a, above=0.99), 2),  # odd e converge
        ("fedlin-J", lambda w, a: split(w, a | {"e": 1}), 2),  # even e diverge
        ("fedlin-E", lambda w, a: round_map(w, a, long=0.9), 1),  # long steps are stable
        ("fedlin-E", lambda w, a: round_map(w, a) | {"second": 0.1, "wrong": 1.0}, 2),
        ("fedlin-L", lambda w, a: noisy(w, a, power=0), 5),  # a floor whatever the noise
        (
            "fedlin-L",
            lambda w, a: noisy(w, a, power=-1) if a["variance"] else noisy(w, a),
            3,
        ),  # a floor that falls with it
    ],
)
def test_other_results_differ(judged, name, result, differing):
    assert verdicts(judged(name, result)).count(DIFFERS) == differing


def test_cells():
    assert fedlin_limits.split(1000.0, 1, 6)["radius"] == pytest.approx(1.658, abs=5e-4)
    assert fedlin_limits.split(1000.0, 40, 6)["bias"] == pytest.approx(0.0025, abs=5e-5)
    long = fedlin_limits.round_map(14.0, 2, 0.5)
    assert long["radius"] > 1 and long["wrong"] < 1e-12 and long["second"] == pytest.approx(0.25)


def test_a_floor_of_noise(monkeypatch):
    monkeypatch.setitem(fedlin.SIZES, "small", (3, 20, 4, 3, 0.5, 40))
    quiet, loud = (fedlin.noisy(variance, "small", 0)["square"] for variance in (0.0, 0.1))
    assert len(quiet) == 41 and quiet[0] == loud[0] and quiet[-1] < 1e-3 * loud[-1]


def test_sparse_gradients():
    every, some = (fedlin.sparse("up", k, True, 0.1, 2)["gap"] for k in (100, 60))
    assert every[0] == some[0] > every[1] and every[1] == some[1] and every[2] != some[2]  # the first round is whole


@pytest.mark.parametrize("variance", fedlin.NOISE)
def test_noise_has_the_variance_that_is_named(monkeypatch, variance):
    seen = []

    def iterates(problem, start, algorithm, *rest, **more):
        seen.append((algorithm, more))
        return [start], None

    monkeypatch.setattr(fedlin, "iterates", iterates)
    fedlin.noisy(variance, "small", 0)
    ((algorithm, more),) = seen
    assert algorithm.gradient.sigma**2 == pytest.approx(variance)
    assert len(more["local_steps"]) == 5 and len(set(more["local_steps"])) > 1
    assert all(2 <= tau <= 10 for tau in more["local_steps"])


def test_gaps_are_of_the_mean_of_the_clients_losses():
    """At x = 0 the logistic loss of each of the 10 x 500 samples is ln 2."""
    problem, _, star = fedlin._logistic()
    least = float(fedlin.logistic_sum(torch.cat(list(problem.A)) @ star, torch.cat(list(problem.b))))
    start, _ = fedlin.sparse("up", 100, True, 0.1, 1)["gap"]
    assert start == pytest.approx((5000 * math.log(2) - least) / 10)


def test_the_rates_of_sparse_gradients(monkeypatch, tmp_path):
    """Figures 6 and 7: etabar = 0.15 at the server and 0.1 at the clients; theorem 7: shorter by delta_s."""
    asked = []

    def result(work, arguments):
        asked.append((arguments["where"], arguments["k"], arguments["feedback"], round(arguments["lr"], 4)))
        return sparse(work, arguments)

    found = outcome(monkeypatch, tmp_path, "fedlin-K", result)
    assert asked == [
        *(("down", k, False, 0.15) for k in (100, 50, 25)),
        *(("down", k, True, 0.15) for k in (50, 25)),
        *(("down", 50, True, 0.075), ("down", 25, True, 0.0375)),
        *(("up", k, True, 0.1) for k in (80, 60)),
    ]
    gap = sparse("", {"where": "up", "k": 80, "rounds": 300})["gap"]
    assert found.figures["last quarter"]["delta_c = 1.25"] == pytest.approx(sum(gap[-75:]) / 75)


def test_the_factor_of_a_round_is_named(monkeypatch, tmp_path):
    claims = outcome(monkeypatch, tmp_path, "fedlin-L", noisy).claims
    assert claims[-1].what.startswith("factor of |x - x*|^2") and claims[-1].ours.startswith("0.9; ")
