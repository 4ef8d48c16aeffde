"""The experiments of FedSLS on made-up results: verdicts come out both ways, and every cell is one that can be run."""

from __future__ import annotations

import math

import pytest

from fedstride.research.papers import fedsls, tuning
from fedstride.research.papers.experiment import DIFFERS, EXPERIMENTS, IN_KIND, Lab
from tests.research.papers.pretend import Pretended, learned

pytestmark = pytest.mark.slow

MINE = ["fedsls-table1", "fedsls-table2", "fedsls-fig4", "fedsls-fig5"]
PLACE = {"cifar10": "cifar10", "mnist_writers": "femnist", "shakespeare": "shakespeare"}


def as_in_fedsls(config):
    algorithm, place = config["algorithm"], PLACE[config["task"]]
    name, c = algorithm["name"], algorithm.get("c", 0.1)
    if name == "fedadam":
        return learned(config, 20, 1, train=3.0)
    i = fedsls.METHODS.index(name)
    trials = c / 0.1 if c > 0.1 else (lambda t: 1.0 + (t < 5) * (place != "shakespeare"))
    return learned(config, fedsls.TABLE_2[place][i] - 10 * c, 1, trials=trials, train=fedsls.TABLE_1[place][i])


def against_fedsls(config):
    """The other way round: line search is worst, FedAdam is best, trials grow, and c helps."""
    algorithm = config["algorithm"]
    name, c = algorithm["name"], algorithm.get("c", 0.1)
    rank = ("fedsls", "fedexpsls", "fedexprox", "fedexp", "fedavg", "fedadam").index(name)
    return learned(config, 40 + 5 * rank + 10 * c, 1, trials=lambda t: t - 40 * c, train=2 - 0.2 * rank)


def test_a_line_search_is_not_clipped_and_has_no_rate(monkeypatch, tmp_path):
    pretended = Pretended(monkeypatch, tmp_path, as_in_fedsls)
    pretended.verdicts("fedsls-table1")
    searches = [c.arguments["config"] for c in pretended.cells if "sls" in c.name]
    assert searches
    assert all(
        s["training"]["clip_norm"] is None and set(s["algorithm"]) <= {"name", "c", "lr_max", "eps"} for s in searches
    )


def test_a_line_search_is_searched_as_its_rivals_are(monkeypatch, tmp_path):
    def result(config):
        algorithm = config["algorithm"]
        best = {"lr_max": 0.316, "c": 0.316, "eps": 0.01}
        return learned(config, 80 - 20 * sum(algorithm.get(key, v) != v for key, v in best.items()), 5)

    lab = Pretended(monkeypatch, tmp_path, result).lab
    found = tuning.tuned(lab, [("femnist", "fedsls"), ("femnist", "fedexpsls")])
    assert found["femnist", "fedsls"] == {"lr_max": 0.316, "c": 0.316}
    assert found["femnist", "fedexpsls"] == {"lr_max": 0.316, "c": 0.316, "eps": 0.01}


def test_losses_are_compared_at_the_parameters_with_the_lowest_loss(monkeypatch, tmp_path):
    """A rate of 1 is the most accurate, 0.01 has the lowest training loss: table 2 takes the first, table 1 the second."""

    def result(config):
        lr = config["algorithm"].get("lr", config["algorithm"].get("lr_max"))
        return learned(config, 50 - 10 * abs(math.log10(lr)), 5, train=1 + abs(math.log10(lr / 0.01)))

    lab = Pretended(monkeypatch, tmp_path, result).lab
    for name, best in (("fedsls-table1", 0.01), ("fedsls-table2", 1.0)):
        found = EXPERIMENTS[name].measure(lab).settings["parameters found"].values()
        assert {options.get("lr", options.get("lr_max")) for options in found} == {best}


def test_figure_4_names_the_steady_state_of_the_growing_start(monkeypatch, tmp_path):
    """Ten per cent of the data in a batch: 1 + 0.1 ln 2 / ln(1 / 0.9) = 1.66 trials, above `about one`."""

    def result(config):
        return learned(config, 80, 5, trials=lambda t: 1.66 + (t < 5))

    pretended = Pretended(monkeypatch, tmp_path, result, seeds=2)
    found = {c.what: c.verdict for c in EXPERIMENTS["fedsls-fig4"].measure(pretended.lab).claims}
    falls = {what: verdict for what, verdict in found.items() if what.startswith("CIFAR-10,")}
    assert [("1.66" in what, verdict) for what, verdict in falls.items()] == [
        (False, DIFFERS),  # keep
        (False, DIFFERS),  # max
        (True, IN_KIND),  # grow
    ]


@pytest.mark.parametrize(("moved", "verdict"), [(2, IN_KIND), (3, DIFFERS)])
def test_the_order_needs_eight_of_ten_pairs(tmp_path, moved, verdict):
    """The winner moves down by so many places."""
    paper = dict(zip(fedsls.METHODS, fedsls.TABLE_2["cifar10"], strict=True))
    order = sorted(paper, key=paper.__getitem__)
    winner = order.pop()
    order.insert(4 - moved, winner)
    runs = {}
    for i, recipe in enumerate(order):
        run = learned({"training": {"rounds": 20, "evaluate_every": 1}}, 50 + 2 * i, 0.1)
        runs[recipe] = [run, run]
    found = fedsls._compared(Lab("small", 2, tmp_path), "cifar10", paper, runs, 1)
    assert [c.verdict for c in found if "pairs" in c.what] == [verdict]


def test_trials_are_compared_between_the_first_and_the_last_fifth():
    run = {"history": {"trials": [5.0, 3.0, *[2.0] * 6, 1.0, 1.5]}}
    assert fedsls._ends(run, 10) == {"first fifth": 4.0, "last fifth": 1.25, "largest": 5.0}


def test_the_papers_values_of_c_and_of_its_tables():
    assert fedsls.CS == (0.1, 0.3, 0.5, 0.7)  # figure 5
    assert fedsls.METHODS == ("fedavg", "fedexp", "fedexpsls", "fedexprox", "fedsls")
    assert [round(sum(row), 2) for row in fedsls.TABLE_1.values()] == [1.92, 9.26, 9.31]
    assert [round(sum(row), 2) for row in fedsls.TABLE_2.values()] == [410.72, 274.1, 244.35]
