"""Partitions: exact, seeded, and distributed as in their papers."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import fedstride as fs

partition = fs.data.partition


@st.composite
def problems(draw, classes=5, each=1):
    """Draw labels (a class may be missing), a number of clients with at least `each` samples on average, and a seed."""
    labels = torch.tensor(draw(st.lists(st.integers(0, classes - 1), min_size=each, max_size=60)))
    return labels, draw(st.integers(1, len(labels) // each)), draw(st.integers(0, 2**40))


def covers(parts, n):
    return torch.equal(torch.cat(parts).sort().values, torch.arange(n))


def disjoint(parts):
    whole = torch.cat(parts)
    return len(whole) == len(whole.unique())


def sizes(parts):
    return [len(part) for part in parts]


@given(problems())
def test_iid_assigns_all_samples_evenly(problem):
    labels, clients, seed = problem
    parts = partition.iid(labels, clients, seed)
    assert len(parts) == clients
    assert covers(parts, len(labels))
    assert max(sizes(parts)) - min(sizes(parts)) <= 1


@given(problems(), st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0, 1e6]))
def test_dirichlet_gives_each_client_its_size_without_duplicates(problem, alpha):
    labels, clients, seed = problem
    parts = partition.dirichlet(labels, clients, seed, alpha)
    assert sizes(parts) == [len(labels) // clients] * clients
    assert disjoint(parts)


@given(st.data(), problems())
def test_dirichlet_with_a_number_for_each_client(data, problem):
    labels, clients, seed = problem
    wanted = data.draw(st.lists(st.integers(1, len(labels) // clients), min_size=clients, max_size=clients))
    parts = partition.dirichlet(labels, clients, seed, 0.3, wanted)
    assert sizes(parts) == wanted
    assert disjoint(parts)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_the_mix_of_dirichlet_has_concentration_alpha_times_the_prior(alpha):
    """E sum f^2 = 1/m + (1 - 1/m) E sum q^2, where q ~ Dir(alpha N p) has E q^2 = p (1 - p) / (alpha N + 1) + p^2."""
    labels = torch.arange(10).repeat_interleave(torch.tensor([10_000, 30_000] * 5))
    parts = partition.dirichlet(labels, 1000, 0, alpha, samples=50)
    p, m = torch.tensor([0.05, 0.15] * 5), 50
    q_squared = (p * (1 - p) / (len(p) * alpha + 1) + p**2).sum()
    f = partition.histogram(labels, parts, 10) / m
    assert float((f**2).sum(1).mean()) == pytest.approx(float(1 / m + (1 - 1 / m) * q_squared), abs=0.02)
    assert torch.allclose(f.mean(0), p, atol=0.05)


def law_of_counts(left, p, size):
    """Return the distribution of a client's counts if samples are drawn one by one and empty classes leave the mix."""

    @functools.cache
    def law(taken, size):
        if size == 0:
            return {taken: 1.0}
        mix = [q if t < l else 0 for q, t, l in zip(p, taken, left, strict=True)]
        found: dict = {}
        for c, q in enumerate(mix):
            if q:
                then = tuple(t + (i == c) for i, t in enumerate(taken))
                for counts, chance in law(then, size - 1).items():
                    found[counts] = found.get(counts, 0) + chance * q / sum(mix)
        return found

    return law((0,) * len(left), size)


def test_exhausted_classes_leave_the_mix_as_in_sequential_sampling():
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])
    law = law_of_counts((1, 2, 5), (1 / 8, 2 / 8, 5 / 8), 5)
    draws = 3000
    seen = dict.fromkeys(law, 0)
    for seed in range(draws):
        (part,) = partition.dirichlet(labels, 1, seed, alpha=1e8, samples=5)
        seen[tuple(torch.bincount(labels[part], minlength=3).tolist())] += 1
    for counts, chance in law.items():
        assert seen[counts] / draws == pytest.approx(chance, abs=4 * (chance * (1 - chance) / draws) ** 0.5)


def test_dirichlet_can_use_all_samples():
    labels = torch.arange(3).repeat(20)
    assert covers(partition.dirichlet(labels, 6, 0, 0.01), 60)


@given(problems(each=8), st.sampled_from([0.5, 1.0, 100.0]), st.integers(1, 2))
def test_dirichlet_split_uses_all_samples_and_keeps_the_minimum(problem, alpha, least):
    labels, clients, seed = problem
    parts = partition.dirichlet_split(labels, clients, seed, alpha, least)
    assert len(parts) == clients
    assert covers(parts, len(labels))
    assert min(sizes(parts)) >= least


def test_dirichlet_split_shares_each_class_by_a_draw_over_the_clients():
    """E of a share squared: (1/C)(1 - 1/C) / (C alpha + 1) + 1/C^2 with C clients."""
    labels = torch.arange(200).repeat_interleave(1000)
    shares = partition.histogram(labels, partition.dirichlet_split(labels, 5, 0, 0.5), 200) / 1000
    assert float((shares**2).mean()) == pytest.approx(0.2 * 0.8 / 3.5 + 0.04, rel=0.05)


@given(st.data(), problems())
def test_pathological_gives_exactly_k_classes_and_uses_all_samples(data, problem):
    labels, clients, seed = problem
    present, counts = labels.unique(return_counts=True)
    k = data.draw(st.integers(1, len(present)))
    holders = -(-clients * k // len(present))
    assume(clients * k >= len(present) and int(counts.min()) >= holders)
    parts = partition.pathological(labels, clients, seed, k)
    table = partition.histogram(labels, parts, 5)[:, present]
    assert covers(parts, len(labels))
    assert ((table > 0).sum(1) == k).all()
    held = (table > 0).sum(0)
    assert held.max() - held.min() <= 1
    for column in table.T:
        assert column[column > 0].max() - column[column > 0].min() <= 1


def test_pathological_draws_the_classes_of_a_client_at_random():
    """With two of ten classes each, all 45 pairs occur."""
    labels, pairs = torch.arange(10).repeat(40), set()
    for seed in range(40):
        pairs |= {tuple(labels[part].unique().tolist()) for part in partition.pathological(labels, 10, seed, 2)}
    assert pairs == set(itertools.combinations(range(10), 2))


@given(st.data(), problems())
def test_shards_use_all_samples(data, problem):
    labels, clients, seed = problem
    each = data.draw(st.integers(1, len(labels) // clients))
    parts = partition.shards(labels, clients, seed, each)
    assert covers(parts, len(labels))
    assert max(sizes(parts)) - min(sizes(parts)) <= each


def test_a_shard_is_of_one_class_when_the_numbers_divide():
    labels = torch.arange(10).repeat(60)  # 200 shards of 3
    parts = partition.shards(labels, 100, 0, 2)
    assert sizes(parts) == [6] * 100
    assert set((partition.histogram(labels, parts, 10) > 0).sum(1).tolist()) == {1, 2}


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_quantity_draws_the_sizes_from_its_range(alpha):
    labels = torch.arange(10).repeat(100)
    parts = partition.quantity(labels, 200, 3, 2, 5, alpha)
    assert set(sizes(parts)) == {2, 3, 4, 5}
    assert disjoint(parts)
    mixed = (partition.histogram(labels, parts, 10) > 0).sum(1).float().mean()
    assert mixed > 2.5 if alpha is None else mixed < 2


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_natural_has_one_client_per_group(numbers):
    groups = torch.tensor(numbers)
    parts = partition.natural(groups)
    assert [groups[part].unique().tolist() for part in parts] == [[g] for g in sorted(set(numbers))]
    assert covers(parts, len(groups))


def test_natural_can_keep_some_clients_whole():
    groups = torch.arange(20).repeat(3)
    parts = partition.natural(groups, clients=5, seed=1)
    assert sizes(parts) == [3] * 5
    assert all(len(groups[part].unique()) == 1 for part in parts)
    chosen = {seed: groups[torch.cat(partition.natural(groups, 5, seed))].unique().tolist() for seed in range(5)}
    assert len({tuple(c) for c in chosen.values()}) > 1


LABELS = torch.arange(4).repeat(25)
CALLS = {
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "dirichlet_split": {"alpha": 1.0},
    "pathological": {"classes": 2},
    "shards": {},
    "quantity": {"low": 1, "high": 10},
}


@pytest.mark.parametrize("scheme", CALLS)
def test_partitions_depend_only_on_the_seed(scheme):
    def make(seed):
        return partition.SCHEMES[scheme](LABELS, 10, seed, **CALLS[scheme])

    first = make(0)
    np.random.seed(5)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again, other = make(0), make(1)
    assert all(itertools.starmap(torch.equal, zip(first, again, strict=True)))
    assert not all(torch.equal(a.sort().values, b.sort().values) for a, b in zip(first, other, strict=True))
    assert torch.equal(before, torch.get_rng_state())
    assert all(part.dtype == torch.int64 for part in first)


def test_the_schemes_by_name():
    assert set(partition.SCHEMES) == {*CALLS, "natural"}


BAD = {
    "more clients than samples": ("iid", {"clients": 101}, "iid: clients=101.*from 1 to 100"),
    "no clients": ("shards", {"clients": 0}, "shards: clients=0"),
    "half a client": ("iid", {"clients": 2.5}, "iid: clients=2.5"),
    "a yes for clients": ("iid", {"clients": True}, "iid: clients=True"),
    "seed": ("iid", {"seed": -1}, "seed=-1"),
    "labels of two dimensions": ("iid", {"labels": LABELS[:, None]}, r"labels: got shape \(100, 1\)"),
    "a list for labels": ("iid", {"labels": [0, 1]}, "labels: got list"),
    "no samples": ("iid", {"labels": LABELS[:0]}, "clients=10"),
    "fractional labels": ("dirichlet", {"labels": LABELS.float()}, "labels are torch.float32"),
    "alpha 0": ("dirichlet", {"alpha": 0}, "alpha=0"),
    "alpha below 0": ("dirichlet_split", {"alpha": -0.1}, "alpha=-0.1"),
    "alpha nan": ("dirichlet", {"alpha": float("nan")}, "alpha=nan"),
    "too many samples": ("dirichlet", {"samples": 11}, "need 110 samples, but there are 100; expected at most 10"),
    "no samples each": ("dirichlet", {"samples": 0}, "samples=0"),
    "samples of nine": ("dirichlet", {"samples": [1] * 9}, "or one for each client"),
    "a minimum out of reach": ("dirichlet_split", {"min_samples": 11}, "min_samples=11.*expected 1 to 10"),
    "a minimum never drawn": ("dirichlet_split", {"alpha": 0.001, "tries": 3}, "none of 3 draws.*larger alpha"),
    "more classes than there are": ("pathological", {"classes": 5}, "classes=5 per client; expected 1 to 4"),
    "no classes": ("pathological", {"classes": 0}, "classes=0"),
    "classes nobody gets": (
        "pathological",
        {"clients": 3, "classes": 1},
        "not use all samples; expected at least 4 clients",
    ),
    "a class too rare": (
        "pathological",
        {"labels": torch.tensor([0] * 99 + [1])},
        "class number 1 has 1 samples for 10",
    ),
    "more shards than samples": ("shards", {"shards": 11}, "shards=11.*expected 1 to 10"),
    "range upside down": ("quantity", {"low": 5, "high": 4}, "low=5, high=4"),
    "range from 0": ("quantity", {"low": 0}, "low=0"),
    "range too high": ("quantity", {"high": 11}, "expected high <= 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_partitions_are_refused(case):
    scheme, changes, message = BAD[case]
    given = {"labels": LABELS, "clients": 10, "seed": 0, **CALLS[scheme], **changes}
    with pytest.raises(fs.InvalidInput, match=message):
        partition.SCHEMES[scheme](**given)


def test_natural_refuses_missing_groups():
    with pytest.raises(fs.InvalidInput, match="no groups"):
        partition.natural(None)
    with pytest.raises(fs.InvalidInput, match="clients=3, but the data has 2 groups"):
        partition.natural(torch.tensor([0, 1, 0]), clients=3)


def test_federate_uses_the_given_parts():
    table = fs.data.load("digits")
    parts = partition.shards(table.train[1], 20, 0)
    federation = fs.data.federate(table, parts)
    assert federation.sizes == sizes(parts)
    inputs, targets = federation[7].take()
    assert torch.equal(inputs, table.train[0][parts[7]])
    assert torch.equal(targets, table.train[1][parts[7]])


@pytest.mark.parametrize(
    "part", [torch.tensor([0, 1437]), torch.tensor([-1]), torch.tensor([[0]]), torch.tensor([0.5])]
)
def test_federate_refuses_invalid_indices(part):
    with pytest.raises(fs.InvalidInput, match=r"parts\[1\]: expected .* 0 to 1436"):
        fs.data.federate(fs.data.load("digits"), [torch.tensor([0]), part])
