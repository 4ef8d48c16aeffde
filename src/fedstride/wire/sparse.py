"""A vector in as few bytes as it needs: whole, by the entries that are not zero, or by a table of its few values.

Nothing is lost but the sign of zeros. Compressors need not know: what TOP-k and random-k leave is sparse, what Quantize leaves
has few values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

WORTH = 512  # bytes that must be saved: every part has a header of its own
TABLE = 256  # most values of a table
FIRST = 2048  # entries that are looked at before all are sorted
WHOLE, WHERE, VALUES, CODES, KINDS = "", ".where", ".values", ".codes", ".kinds"


def encode(v: Tensor) -> dict[str, Tensor]:
    """Its parts, by suffixes for its name."""
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
    """What encode() was given; n: numbers that it must have. ValueError for parts that cannot be its."""
    if len(parts) > 1 and any(v.dim() != 1 for v in parts.values()):
        raise ValueError("a part is no vector")
    if parts.keys() == {WHERE, VALUES}:
        v = _spread(parts[WHERE], parts[VALUES], n)
    elif parts.keys() == {CODES, KINDS}:
        codes, kinds = parts[CODES], parts[KINDS]
        if codes.dtype != torch.uint8 or (len(codes) and int(codes.max()) >= len(kinds)):
            raise ValueError("codes of no kind")
        v = kinds.index_select(0, codes.int())
    elif parts.keys() == {WHOLE}:
        v = parts[WHOLE]
    else:
        raise ValueError(f"parts {sorted(parts)}")
    if n is not None and v.shape != (n,):
        raise ValueError(f"{list(v.shape)} numbers instead of {n}")
    return v


def _spread(where: Tensor, values: Tensor, n: int | None) -> Tensor:
    """where: ascending, and the length of the whole in the end."""
    if where.dtype not in (torch.int32, torch.int64) or len(where) != len(values) + 1:
        raise ValueError("entries without a place")
    length = int(where[-1])
    if int(where[0]) < 0 or not bool((where[1:] > where[:-1]).all()) or n not in (None, length):
        raise ValueError("places outside of the vector")
    v = values.new_zeros(length)
    v[where[:-1].long()] = values
    return v
