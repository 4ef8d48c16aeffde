"""The moments of inputs by a secure sum: exact whatever the scales, and sums of digits tell no more than the sum."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

import fedstride as fs
from fedstride.core.normalise import moments, scaling_of
from fedstride.wire.moments import MomentSum
from fedstride.wire.secure import INPUTS, Secure
from tests.wire.test_secure import summed

COLUMNS = [(0.0, 1e-3), (1e-3, 1e-3), (40.0, 12.0), (2020.0, 2.0), (5e4, 2e4), (1e5, 1e5), (-3.7, 0.0), (0.0, 0.0)]


def clients(many: int) -> list[torch.Tensor]:
    """Samples with features of the scales 1e-3 to 1e5, another mean for each client, and constant features."""
    source, parts = torch.Generator().manual_seed(many), []
    for i in range(many):
        z = i % 3 + torch.randn(3 + i % 20, len(COLUMNS), generator=source, dtype=torch.float64)
        parts.append(torch.stack([mean + scale * z[:, j] for j, (mean, scale) in enumerate(COLUMNS)], 1))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1e6, INPUTS, 1e25])
@pytest.mark.parametrize("many", [3, 4, 5, 64, 1000])
def test_the_scaling_is_that_of_all_samples(many, bound):
    parts, layout = clients(many), MomentSum(len(COLUMNS), bound, many)
    vectors = [layout.encode(moments(X)) for X in parts]
    assert all(len(v) == layout.size for v in vectors)
    sums, X = layout.decode(summed(vectors, layout)), torch.cat(parts)
    torch.testing.assert_close(sums, sum(moments(X) for X in parts), rtol=1e-12, atol=1e-12)
    mean, deviation = scaling_of(sums, torch.float64).chunk(2)
    torch.testing.assert_close(mean, X.mean(0), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(deviation[:6], X.std(0, correction=0)[:6], rtol=1e-7, atol=0)
    assert deviation[6:].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("many", [3, 4, 7, 100, 1000, 10**5])
def test_the_largest_inputs_of_a_cohort_do_not_overflow(many, sign):
    layout, X = MomentSum(1, 1024.0, many), torch.full((2**10, 1), sign * 1024.0, dtype=torch.float64)
    room = layout.levels // 2
    assert max(float(layout.encode(moments(X)).abs().max()) for _ in range(20)) <= room
    few = [layout.encode(moments(X)) for _ in range(3)]
    assert torch.equal(layout.decode(sum(few)), 3 * moments(X))


def test_the_same_sum_gives_the_same_bits():
    """Whatever the random carries are."""
    parts, layout = clients(5), MomentSum(len(COLUMNS), INPUTS, 5)
    one, two = ([layout.encode(moments(X)) for X in parts] for _ in range(2))
    assert not any(torch.equal(u, v) for u, v in zip(one, two, strict=True))
    assert torch.equal(layout.decode(sum(one)), layout.decode(sum(two)))


def digit_sums(layout: MomentSum, *means: float) -> torch.Tensor:
    """What the server sees of the sum of these means, digit by digit."""
    each = [torch.tensor([1.0, mean, 0.0, 0.0], dtype=torch.float64) for mean in means]
    return sum(layout.encode(v) for v in each).view(-1, 4)[:, 1]


@pytest.mark.slow
def test_sums_of_digits_tell_nothing_but_the_sum(monkeypatch):
    """0.375 + 0.375 and 0.25 + 0.5 differ in a carry. Under random carries, their digits have the same distribution."""
    layout = MomentSum(1, 1.0, 3)
    one, two = (torch.stack([digit_sums(layout, *v) for _ in range(3000)]) for v in ((0.375, 0.375), (0.25, 0.5)))
    deviation = one.std(0)
    assert (deviation > 1000).all()
    assert ((one.mean(0) - two.mean(0)).abs() < 6 * deviation * math.sqrt(2 / len(one))).all()
    assert ((two.std(0) / deviation - 1).abs() < 5 / math.sqrt(len(one))).all()
    monkeypatch.setattr("fedstride.wire.moments._random", lambda bits, numbers: torch.zeros(numbers).double())
    bare = [digit_sums(layout, *v) for v in ((0.375, 0.375), (0.25, 0.5))]
    assert not torch.equal(*bare)


@pytest.mark.parametrize("value", [1e7, -1e7, math.nan, math.inf])
def test_inputs_beyond_the_bound_are_refused_without_a_word_of_their_values(value):
    X = torch.tensor([[3.25], [value]], dtype=torch.float64)
    with pytest.raises(fs.InvalidInput, match=r'exceed the bound inputs=1e\+06.*secure="10, inputs=1e\+08"') as caught:
        MomentSum(1, 1e6, 3).encode(moments(X))
    assert not any(text in str(caught.value) for text in ("3.25", "1e+07", "5e+06", "nan", "inf "))


def test_server_and_clients_share_a_layout_as_text():
    layout = MomentSum(7, Secure(1.0, {"inputs": 50}).inputs, 4)
    assert MomentSum(**json.loads(json.dumps(dataclasses.asdict(layout)))) == layout
    assert layout.bound == 50


@pytest.mark.parametrize("bad", [1e-200, 1e200])
def test_a_bound_must_have_a_square(bad):
    with pytest.raises(fs.InvalidInput, match=r"inputs=.* square"):
        Secure(1.0, {"inputs": bad})
