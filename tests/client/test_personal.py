"""Rows that are split into personal and shared entries, and local steps that change only some of them."""

from __future__ import annotations

import pytest
import torch

import fedstride as fs
from fedstride.client import local
from fedstride.client.local import LocalOptions
from fedstride.client.objective import Terms
from fedstride.client.personal import select
from fedstride.core.model import Replica
from tests.problems import Quadratic, classifier, context


def split(*patterns, first=0):
    return select(patterns, first, Replica(classifier()))


def test_patterns_are_matched_against_names():
    found = split("head.*")
    assert found.names == ("head.weight", "head.bias")
    assert len(found.own) == 12 and len(found.shared) == 15
    assert sorted([*found.own.tolist(), *found.shared.tolist()]) == list(range(27))
    assert split("*.bias").names == ("body.bias", "head.bias")
    assert split() is None


@pytest.mark.parametrize(
    ("patterns", "message"),
    [(["haed.*"], r"did you mean 'head\.\*'"), (["*"], "nothing is shared"), (["body.*", "head.*"], "all")],
)
def test_patterns_that_match_nothing_or_everything_are_refused(patterns, message):
    with pytest.raises(fs.InvalidInput, match=message):
        split(*patterns)


def test_entries_that_are_cut_come_back():
    found, row = split("head.*"), torch.arange(27.0)
    assert torch.equal(found.whole(found.cut(row), row), row)
    assert torch.equal(found.whole(found.cut(row)), row * found.mask(row, own=False))
    rows = torch.stack([row, -row])
    assert torch.equal(found.cut(rows), torch.stack([found.cut(row), -found.cut(row)]))
    assert torch.equal(found.put(row, rows[:, found.own])[1, found.own], -row[found.own])


@pytest.mark.parametrize(
    "step",
    [fs.Constant(0.1), fs.Momentum(0.1), fs.AdamW(0.1, weight_decay=0.5), fs.Armijo(), fs.DeltaSGD(), fs.Polyak()],
)
def test_frozen_entries_stay_where_they_are(step):
    """Whatever the rule: momentum and weight decay move entries without a gradient too."""
    H = torch.rand(2, 6, dtype=torch.float64) + 0.5
    x, moves = torch.ones(6, dtype=torch.float64), torch.tensor([1.0, 0, 1, 0, 0, 1], dtype=torch.float64)
    start = torch.stack([x, 2 * x])
    terms = Terms(start=start, moves=moves)
    out = local.run(step, lambda k, n: Quadratic(H[:n]), x, context((4, 3)), terms, None, LocalOptions(0.1))
    assert torch.equal(out.W[:, moves == 0], start[:, moves == 0])
    assert bool((out.W[:, moves == 1] != start[:, moves == 1]).all())
