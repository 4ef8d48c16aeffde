"""Encode a vector in the fewest bytes: dense, as its non-zero entries, or as a table of its distinct values.

The encoding is lossless except for the sign of zeros. It needs no knowledge of the compressor: TOP-k and random-k give
sparse vectors, and Quantize gives vectors with few distinct values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

WORTH = 512  # minimum saving in bytes, because every part has a header
TABLE = 256  # maximum number of values in a table
FIRST = 2048  # entries that are checked before all are sorted
WHOLE, WHERE, VALUES, CODES, KINDS = "", ".where", ".values", ".codes", ".kinds"


def encode(v: Tensor) -> dict[str, Tensor]:
    """Return the parts of the encoding, by suffix of the vector's name."""
    n, item = v.numel(), v.element_size()
    index = torch.int32 if n < 2**31 else torch.int64
    sparse, table = int(v.count_nonzero()) * (item + index.itemsize), n + TABLE * item
    if table + WORTH < min(sparse, n * item) and len(torch.unique(v[:FIRST])) <= TABLE:
        kinds, codes = torch.unique(v, return_inverse=True)
        if len(kinds) <= TABLE:
            return {CODES: codes.to(torch.uint8), KINDS: kinds}
    if sparse + WORTH < n * item:
        where = v.nonzero()[:, 0]
        return {WHERE: torch.cat([where, where.new_tensor([n])]).to(index), VALUES: v[where]}
    return {WHOLE: v}


def decode(parts: Mapping[str, Tensor], n: int | None = None) -> Tensor:
    """Decode the parts of encode(); `n` is the expected length. Raises ValueError for invalid parts."""
    if len(parts) > 1 and any(v.dim() != 1 for v in parts.values()):
        raise ValueError("a part is not a vector")
    if parts.keys() == {WHERE, VALUES}:
        v = _spread(parts[WHERE], parts[VALUES], n)
    elif parts.keys() == {CODES, KINDS}:
        codes, kinds = parts[CODES], parts[KINDS]
        if codes.dtype != torch.uint8 or (len(codes) and int(codes.max()) >= len(kinds)):
            raise ValueError("codes without a value")
        v = kinds.index_select(0, codes.int())
    elif parts.keys() == {WHOLE}:
        v = parts[WHOLE]
    else:
        raise ValueError(f"unknown parts {sorted(parts)}")
    if n is not None and v.shape != (n,):
        raise ValueError(f"{list(v.shape)} numbers instead of {n}")
    return v


def _spread(where: Tensor, values: Tensor, n: int | None) -> Tensor:
    """Build the vector; `where` has the ascending indices, followed by the length of the vector."""
    if where.dtype not in (torch.int32, torch.int64) or len(where) != len(values) + 1:
        raise ValueError("numbers of indices and values differ")
    length = int(where[-1])
    if int(where[0]) < 0 or not bool((where[1:] > where[:-1]).all()) or n not in (None, length):
        raise ValueError("indices outside of the vector")
    v = values.new_zeros(length)
    v[where[:-1].long()] = values
    return v
