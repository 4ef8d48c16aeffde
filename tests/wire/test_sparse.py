"""Vectors in few bytes: nothing is lost, little is sent, and what was not encoded is refused."""

from __future__ import annotations

import pytest
import torch

from fedstride.wire import Quantize, RandomK, TopK
from fedstride.wire.sparse import decode, encode

D = 5000


def row(dtype=torch.float64, seed=0):
    return torch.randn(1, D, generator=torch.Generator().manual_seed(seed), dtype=dtype)


COMPRESSORS = {
    "whole": None,
    **{f"top {k}": TopK(k) for k in (1, 0.01, 0.1, 0.3, 0.45, 0.6, 0.99, D)},
    **{f"random {k}": RandomK(k, unbiased=True) for k in (1, 0.1, 0.9)},
    **{f"{bits} bits": Quantize(bits) for bits in (2, 4, 7, 8, 9, 16)},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kind", COMPRESSORS)
def test_nothing_is_lost_and_what_is_sent_is_what_is_counted(kind, dtype):
    v, compressor = row(dtype), COMPRESSORS[kind]
    if compressor is not None:
        v = compressor.compress(v, [torch.Generator().manual_seed(1)])
    parts = encode(v[0])
    assert torch.equal(decode(parts), v[0]) and torch.equal(decode(parts, D), v[0])
    sent = sum(part.nbytes for part in parts.values())
    assert sent <= v.nbytes
    told = v.nbytes if compressor is None else compressor.bytes(D, v.element_size())
    if isinstance(compressor, Quantize):
        told = D if compressor.bits <= 8 else v.nbytes  # a byte for each, or all of it
    assert sent <= told + 256 * v.element_size() + 512


@pytest.mark.parametrize(
    "v",
    [
        torch.zeros(0),
        torch.zeros(1),
        torch.zeros(3000),
        torch.full((3000,), 2.5),
        torch.tensor([0.0, torch.nan, torch.inf] + [0.0] * 3000),
        torch.arange(3000.0) % 256,
        torch.arange(3000.0) % 257,
        torch.cat([torch.zeros(2048), torch.randn(9000, generator=torch.Generator().manual_seed(0))]),
    ],
    ids=lambda v: f"{len(v)} numbers, {len(v.unique())} values",
)
def test_vectors_of_any_kind(v):
    torch.testing.assert_close(decode(encode(v), len(v)), v, rtol=0, atol=0, equal_nan=True)


def test_a_single_number_is_itself():
    assert decode(encode(torch.tensor(2.5))) == 2.5


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


ONES = torch.ones(2)
BAD = {
    "nothing": {},
    "half": {".where": ints(0, 1, 9)},
    "too many": {"": torch.ones(9), ".where": ints(0, 1, 9), ".values": ONES},
    "unknown": {".pickle": torch.ones(9)},
    "a matrix": {"": torch.ones(3, 3)},
    "a matrix of values": {".where": ints(0, 1, 9), ".values": ONES[None]},
    "too short": {"": torch.ones(8)},
    "no length": {".where": ints(0, 1), ".values": ONES},
    "no places": {".where": ints(), ".values": ONES[:0]},
    "below": {".where": ints(-1, 1, 9), ".values": ONES},
    "beyond": {".where": ints(1, 9, 9), ".values": ONES},
    "twice": {".where": ints(1, 1, 9), ".values": ONES},
    "huge": {".where": ints(0, 1, 2**60, dtype=torch.int64), ".values": ONES},
    "half places": {".where": torch.tensor([0.5, 1.5, 9.0]), ".values": ONES},
    "no kind": {".codes": torch.full((9,), 2, dtype=torch.uint8), ".kinds": ONES},
    "no kinds": {".codes": torch.zeros(9, dtype=torch.uint8), ".kinds": ONES[:0]},
    "wide codes": {".codes": torch.zeros(9, dtype=torch.int64), ".kinds": ONES},
    "few codes": {".codes": torch.zeros(8, dtype=torch.uint8), ".kinds": ONES},
}


@pytest.mark.parametrize("case", BAD)
def test_what_was_not_encoded_is_refused(case):
    with pytest.raises(ValueError, match=r"."):
        decode(BAD[case], 9)
