"""The streaming mean: the bits depend on the cohort alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstride.core.rows import generator
from fedstride.wire import WeightedMean

cohorts = st.lists(st.one_of(st.just(1.0), st.floats(1e-3, 1e3)), min_size=1, max_size=20)


def fields(position):
    source = generator(position)
    return {"update": torch.randn(7, generator=source), "square": torch.rand(1, generator=source)}


def mean_of(weights, order):
    mean = WeightedMean()
    for position in order:
        mean.add(position, weights[position], fields(position))
    return mean


def same(one, other):
    return one[1] == other[1] and all(torch.equal(v, other[0][k]) for k, v in one[0].items())


@given(cohorts, st.randoms())
def test_the_order_of_arrival_changes_no_bit(weights, chance):
    order = list(range(len(weights)))
    chance.shuffle(order)
    assert same(mean_of(weights, order).finish(), mean_of(weights, range(len(weights))).finish())


@given(cohorts, st.randoms(), st.integers(1, 4))
def test_partial_means_merge_to_the_bits_of_the_whole(weights, chance, workers):
    order = list(range(len(weights)))
    chance.shuffle(order)
    merged = WeightedMean()
    for part in (order[i::workers] for i in range(workers)):
        merged.merge(mean_of(weights, part))
    assert same(merged.finish(), mean_of(weights, range(len(weights))).finish())


@given(cohorts)
def test_it_is_the_weighted_mean(weights):
    found, total = mean_of(weights, range(len(weights))).finish()
    assert math.isclose(total, sum(weights), rel_tol=1e-12)
    for name in found:
        naive = sum(w * fields(i)[name].double() for i, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(found[name].double(), naive, rtol=1e-5, atol=1e-6)


@given(cohorts)
def test_it_is_the_weighted_mean_in_double_precision(weights):
    mean = WeightedMean()
    values = torch.randn(len(weights), 7, generator=generator(0), dtype=torch.float64)
    for i, w in enumerate(weights):
        mean.add(i, w, {"update": values[i].clone()})
    naive = (torch.tensor(weights, dtype=torch.float64)[:, None] * values).sum(0) / sum(weights)
    torch.testing.assert_close(mean.finish()[0]["update"], naive, rtol=0, atol=1e-12)


def test_memory_grows_with_the_logarithm_of_the_cohort():
    mean, most = WeightedMean(), 0
    for i in range(1000):
        mean.add(i, 1.0, {"update": torch.ones(2)})
        most = max(most, len(mean.nodes))
    assert most <= math.ceil(math.log2(1000))


def test_nobody_has_no_mean():
    assert WeightedMean().finish() == ({}, 0.0)


@pytest.mark.parametrize("first", [0, 1, 2, 5])
@pytest.mark.parametrize("weights", [[1.0] * 7, [0.3, 2.0, 1.0, 5.0, 0.1, 1.0, 3.0]], ids=["equal", "unequal"])
def test_rows_together_get_the_bits_of_rows_alone(first, weights):
    V = torch.randn(7, 3, generator=torch.Generator().manual_seed(first))
    for cut in range(8):
        alone, together = WeightedMean(), WeightedMean()
        for i in range(7):
            alone.add(first + i, weights[i], {"v": V[i].clone()})
        for part in (slice(cut, 7), slice(0, cut)):
            together.add_rows(first + part.start, weights[part], {"v": V[part].clone()})
        (a, total), (b, same) = alone.finish(), together.finish()
        assert torch.equal(a["v"], b["v"])
        assert total == same
