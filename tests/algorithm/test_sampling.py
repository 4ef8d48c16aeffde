"""Client sampling: sizes, probabilities, weights."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
import pytest
import torch

import fedstride as fs
from fedstride.algorithm.sampling import sampler
from fedstride.core.rows import generator
from fedstride.training.round import drawn_clients

SIZES = [10, 10, 10, 10, 200]


def cohorts(chosen, rounds=2000, sizes=SIZES):
    return [chosen.draw(sizes, generator(0, t)) for t in range(rounds)]


@pytest.mark.parametrize("rule", [fs.Uniform(3), fs.Weighted(3)])
def test_cohorts_have_the_given_size_without_duplicates(rule):
    assert all(len(set(c)) == len(c) == 3 for c in cohorts(rule, 200))


def test_uniform_draws_all_clients_equally_often():
    count = Counter(i for c in cohorts(fs.Uniform(2)) for i in c)
    assert all(abs(count[i] / 2000 - 2 / 5) < 4.5 * (0.24 / 2000) ** 0.5 for i in range(5))


def test_weighted_draws_the_first_in_proportion_to_the_samples():
    count = Counter(i for c in cohorts(fs.Weighted(1)) for i in c)
    p = 200 / 240
    assert abs(count[4] / 2000 - p) < 4.5 * (p * (1 - p) / 2000) ** 0.5


def test_bernoulli_draws_each_client_with_its_probability():
    drawn = cohorts(fs.Bernoulli(0.3), sizes=[1] * 20)
    share = sum(map(len, drawn)) / (20 * len(drawn))
    assert abs(share - 0.3) < 4.5 * (0.21 / (20 * len(drawn))) ** 0.5  # empty rounds, 0.08 %, hardly count


def test_bernoulli_never_draws_an_empty_cohort():
    assert min(map(len, cohorts(fs.Bernoulli(0.05), 500))) == 1


@pytest.mark.parametrize("rule", [fs.Uniform(2), fs.Weighted(2), fs.Bernoulli(0.4)])
def test_sizes_may_be_any_kind_of_sequence(rule):
    drawn = [cohorts(rule, 20, sizes) for sizes in (SIZES, tuple(SIZES), array("q", SIZES), torch.tensor(SIZES))]
    assert drawn == drawn[:1] * 4


@pytest.mark.parametrize("rule", [fs.Uniform(2), fs.Weighted(2), fs.Bernoulli(0.4)])
def test_a_used_generator_draws_another_cohort(rule):
    source = torch.Generator().manual_seed(0)
    assert len({tuple(sorted(rule.draw(SIZES, source))) for _ in range(20)}) > 3


def test_uniform_takes_constant_time():
    class Counted(list):
        def __iter__(self):
            raise AssertionError("walked")

        __getitem__ = None

    assert len(fs.Uniform(3).draw(Counted(SIZES), torch.Generator())) == 3


@pytest.mark.parametrize("rule", [fs.Uniform(2), fs.Weighted(2), fs.Bernoulli(0.4)])
def test_cohorts_follow_the_seed_and_change_from_round_to_round(rule):
    assert cohorts(rule, 20) == cohorts(rule, 20)
    assert len({tuple(sorted(c)) for c in cohorts(rule, 20)}) > 3


def test_a_run_draws_a_cohort_for_every_round_and_seed():
    drawn = [tuple(drawn_clients(fs.Uniform(2), SIZES, seed, t)) for seed in (0, 1) for t in range(20)]
    assert len(set(drawn[:20])) > 3
    assert drawn[:20] != drawn[20:]
    assert all(one == tuple(sorted(one)) for one in drawn)


@pytest.mark.parametrize(
    ("cohort", "size"), [(None, 5), (1, 1), (5, 5), (0.4, 2), (1.0, 5), (0.01, 1), (fs.Uniform(3), 3)]
)
def test_cohort_arguments_are_converted(cohort, size):
    assert len(sampler(cohort, 5).draw(SIZES, torch.Generator())) == size


def test_all_clients_take_part_in_order():
    assert sampler(None, 5).draw(SIZES, torch.Generator()) == [0, 1, 2, 3, 4]


def test_numpy_integers_are_accepted():
    assert len(sampler(np.int64(3), 5).draw(SIZES, torch.Generator())) == 3


@pytest.mark.parametrize(
    "cohort", [0, -1, 6, 1.5, 0.0, -0.5, float("nan"), True, "3", fs.Uniform(6), fs.Weighted(0), fs.Bernoulli(0.0)]
)
def test_invalid_cohorts_are_refused(cohort):
    with pytest.raises(fs.InvalidInput, match=r"cohort=|Bernoulli: p="):
        sampler(cohort, 5)


@pytest.mark.parametrize(("share", "clients", "size"), [(0.29, 100, 29), (0.1, 27, 3), (0.01, 20, 1), (1.0, 7, 7)])
def test_a_share_is_rounded_to_the_nearest_number_of_clients(share, clients, size):
    assert sampler(share, clients) == fs.Uniform(size)  # 0.29 x 100 is 28.999...
