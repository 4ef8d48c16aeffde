"""The experiments of FedSLS on made-up results: verdicts come out both ways, and every cell is one that can be run."""

from __future__ import annotations

import pytest

from fedstride.research.papers import fedsls
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
    assert all(s["training"]["clip_norm"] is None and set(s["algorithm"]) <= {"name", "c"} for s in searches)
