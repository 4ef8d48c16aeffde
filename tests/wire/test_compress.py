"""Compressors: how much they keep, how wrong they are, how many bytes they take."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstride import InvalidInput, Quantize, RandomK, TopK
from fedstride.core.rows import dot, generator, sq

numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3))  # whole numbers make ties
matrices = st.integers(1, 30).flatmap(
    lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=4)
).map(lambda rows: torch.tensor(rows, dtype=torch.float64))  # fmt: skip


def sources(C, seed=0):
    return [generator(seed, i) for i in range(C)]


def stable_top_k(V, k):
    """The twin: sort by magnitude, equals in their order, keep the first k."""
    kept = torch.zeros_like(V)
    for row, out in zip(V, kept, strict=True):
        chosen = torch.sort(row.abs(), descending=True, stable=True).indices[:k]
        out[chosen] = row[chosen]
    return kept


@given(matrices, st.integers(1, 35))
def test_top_k_is_a_stable_sort(V, k):
    assert torch.equal(TopK(k).compress(V), stable_top_k(V, k))


@given(st.integers(1, 30), st.integers(1, 35), st.booleans())
def test_top_k_keeps_exactly_k(d, k, ties):
    V = torch.ones(3, d) if ties else torch.randn(3, d, generator=generator(d))
    assert (TopK(k).compress(V) != 0).sum(1).tolist() == [min(k, d)] * 3


@given(matrices, st.integers(1, 30))
def test_top_k_keeps_lemma_14(V, k):
    d = V.shape[1]
    share = min(k, d) / d  # 1 / delta
    C = TopK(k).compress(V)
    assert torch.equal(dot(C, V), sq(C))
    assert bool((sq(C) >= share * sq(V) * (1 - 1e-12)).all())
    assert bool((sq(V - C) <= (1 - share) * sq(V) + 1e-12 * sq(V)).all())


@pytest.mark.parametrize(
    ("fraction", "d", "kept"),
    [(0.5, 20, 10), (0.1, 20, 2), (0.01, 20, 1), (1.0, 20, 20), (0.29, 100, 29), (0.1, 27, 3)],
)
@pytest.mark.parametrize("rule", [TopK, RandomK])
def test_a_fraction_is_a_share_of_the_entries(rule, fraction, d, kept):
    V = torch.arange(1.0, d + 1)[None]
    assert int((rule(fraction).compress(V, sources(1)) != 0).sum()) == kept
    assert rule(fraction).bytes(d, 4) == rule(kept).bytes(d, 4)


@pytest.mark.parametrize("rule", [TopK(20), TopK(99), TopK(1.0), RandomK(20), RandomK(1.0)])
def test_keeping_everything_changes_nothing(rule):
    V = torch.randn(3, 20, generator=generator(0))
    assert torch.equal(rule.compress(V, sources(3)), V)


UNBIASED = [RandomK(3, unbiased=True), RandomK(0.4, unbiased=True), Quantize(2), Quantize(4), Quantize(8)]


@pytest.mark.parametrize("rule", UNBIASED, ids=repr)
def test_unbiased_rules_are_right_on_average(rule):
    v = torch.tensor([3.0, -2.0, 0.5, 0.1, 0.0, -1.7, 2.2, 1e-3], dtype=torch.float64)
    n = 4000
    sent = rule.compress(v.expand(n, -1), sources(n, seed=1))
    error = (sent.mean(0) - v).abs()
    assert bool((error <= 4.5 * sent.std(0) / n**0.5 + 1e-12).all())


@pytest.mark.parametrize("rule", UNBIASED, ids=repr)
def test_rows_draw_their_own_luck(rule):
    V = torch.randn(20, generator=generator(0), dtype=torch.float64).expand(3, -1)
    together = rule.compress(V, sources(3))
    assert not torch.equal(together[0], together[1])
    assert torch.equal(together[2:], rule.compress(V[2:], sources(3)[2:]))


@given(matrices, st.integers(2, 16), st.integers(0, 5))
def test_quantised_numbers_are_at_most_one_unit_off(V, bits, seed):
    levels = 2 ** (bits - 1) - 1
    unit = V.abs().amax(1, keepdim=True) / levels
    sent = Quantize(bits).compress(V, sources(len(V), seed))
    assert bool(((sent - V).abs() <= unit * (1 + 1e-9)).all())
    whole = sent / torch.where(unit > 0, unit, 1.0)
    torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-6)
    assert float(whole.abs().max()) <= levels + 1e-6


@given(matrices, st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_random_k_sends_k_entries(V, k, seed, unbiased):
    d = V.shape[1]
    k = min(k, d)
    sent = RandomK(k, unbiased).compress(V, sources(len(V), seed))
    kept = sent != 0
    assert int(kept.sum(1).max()) <= k
    torch.testing.assert_close(sent[kept], (V * (d / k if unbiased else 1))[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [TopK(3), RandomK(3), Quantize(8)])
def test_the_type_is_kept(rule, dtype):
    assert rule.compress(torch.ones(2, 9, dtype=dtype), sources(2)).dtype == dtype


@pytest.mark.parametrize(
    ("rule", "itemsize", "expected"),
    [
        (TopK(5), 4, 5 * (4 + 4)),
        (TopK(5), 8, 5 * (8 + 4)),
        (TopK(0.25), 4, 25 * (4 + 4)),
        (TopK(100), 4, 400),  # whole: no indices
        (RandomK(5), 8, 5 * (8 + 4)),
        (Quantize(8), 4, 100 + 4),
        (Quantize(4), 4, 50 + 4),
        (Quantize(3), 8, 38 + 8),  # 300 bits are 37.5 bytes
    ],
    ids=repr,
)
def test_bytes_of_a_row_of_one_hundred(rule, itemsize, expected):
    assert rule.bytes(100, itemsize) == expected


@pytest.mark.parametrize("rule", [TopK, RandomK])
@pytest.mark.parametrize("k", [0, -1, 1.5, 0.0, -0.1, True, "3", None, float("nan")])
def test_an_impossible_k_is_refused(rule, k):
    with pytest.raises(InvalidInput, match=f"{rule.__name__}: k="):
        rule(k)


@pytest.mark.parametrize("bits", [1, 17, 0, -8, 8.0, 7.5, "8", None, True])
def test_an_impossible_number_of_bits_is_refused(bits):
    with pytest.raises(InvalidInput, match="Quantize: bits="):
        Quantize(bits)
