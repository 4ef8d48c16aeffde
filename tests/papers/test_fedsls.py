"""The experiments of 000 on made-up results: verdicts come out both ways, and every cell is one that can be run."""

from __future__ import annotations

import json

import pytest

from fedstride.papers import fedsls
from fedstride.papers.experiment import AGREES, DIFFERS, IN_KIND, NOT_RUN
from tests.papers.pretend import Pretended, learned

MINE = ["000-table1", "000-table2", "000-fig4", "000-fig5"]
PLACE = {"cifar10": "cifar10", "mnist_writers": "femnist", "shakespeare": "shakespeare"}


def as_in_000(config):
    algorithm, place = config["algorithm"], PLACE[config["task"]]
    name, c = algorithm["name"], algorithm.get("c", 0.1)
    if name == "fedadam":
        return learned(config, 20, 1, train=3.0)
    i = fedsls.METHODS.index(name)
    trials = c / 0.1 if c > 0.1 else (lambda t: 1.0 + (t < 5) * (place != "shakespeare"))
    return learned(config, fedsls.TABLE_2[place][i] - 10 * c, 1, trials=trials, train=fedsls.TABLE_1[place][i])


def against_000(config):
    """The other way round: line search is worst, FedAdam is best, trials grow, and c helps."""
    algorithm = config["algorithm"]
    name, c = algorithm["name"], algorithm.get("c", 0.1)
    rank = ("fedsls", "fedexpsls", "fedexprox", "fedexp", "fedavg", "fedadam").index(name)
    return learned(config, 40 + 5 * rank + 10 * c, 1, trials=lambda t: t - 40 * c, train=2 - 0.2 * rank)


@pytest.mark.parametrize("name", MINE)
def test_what_000_says_is_in_kind_at_small_scale_and_agrees_at_its_own(name, monkeypatch, tmp_path):
    small = Pretended(monkeypatch, tmp_path, as_in_000).verdicts(name)
    assert set(small) - {NOT_RUN} == {IN_KIND}
    full = Pretended(monkeypatch, tmp_path, as_in_000, "paper").verdicts(name)
    assert set(full) - {NOT_RUN} == {AGREES}


@pytest.mark.parametrize("name", MINE)
def test_the_contrary_differs(name, monkeypatch, tmp_path):
    verdicts = Pretended(monkeypatch, tmp_path, against_000).verdicts(name)
    assert set(verdicts) - {NOT_RUN} == {DIFFERS}


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_a_name_belongs_to_one_configuration_and_fits_a_file_system(scale, monkeypatch, tmp_path):
    pretended = Pretended(monkeypatch, tmp_path, as_in_000, scale, seeds=2)
    for name in MINE:
        pretended.verdicts(name)
    by_name = {}
    for cell in pretended.cells:
        assert by_name.setdefault(cell.name, cell.arguments) == cell.arguments
        assert len(cell.file(tmp_path).name) < 250
    assert len({json.dumps(a, sort_keys=True) for a in by_name.values()}) == len(by_name)


def test_a_line_search_is_not_clipped_and_has_no_rate(monkeypatch, tmp_path):
    pretended = Pretended(monkeypatch, tmp_path, as_in_000)
    pretended.verdicts("000-table1")
    searches = [c.arguments["config"] for c in pretended.cells if "sls" in c.name]
    assert searches
    assert all(s["training"]["clip_norm"] is None and set(s["algorithm"]) <= {"name", "c"} for s in searches)
