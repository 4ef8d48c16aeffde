"""Compressors of rows: TOP-k, random-k, and stochastic quantisation to 8 bits.

Stich, Cordonnier, Jaggi. Sparsified SGD with memory. NeurIPS 2018 (FedLin lemma 14).
Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD. NeurIPS 2017.
Deviations: Quantize scales by the largest entry instead of the norm, which loses less at 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, yes_or_no
from fedstride.core.rows import Rows


class Compressor(Protocol):
    """A lossy compression of rows."""

    def compress(self, V: Rows, sources: Sequence[torch.Generator]) -> Rows:
        """Return the rows that the receiver decodes; `sources` has one generator per row."""
        ...

    def bytes(self, d: int, itemsize: int) -> int:
        """Return the message size of one row of d numbers."""
        ...


def plain_bytes(d: int, itemsize: int) -> int:
    """Return the message size of an uncompressed row."""
    return d * itemsize


def _count(k: int | float, d: int) -> int:
    """Return the number of entries for k (a number or a fraction of d), from 1 to d."""
    return min(d, k) if isinstance(k, int) else max(1, min(d, round(k * d)))


def _check_k(part: object, k: int | float) -> None:
    """Refuse k unless it is a positive number of entries or a fraction in (0, 1]."""
    whole = isinstance(k, int) and not isinstance(k, bool) and k >= 1
    if not (whole or (isinstance(k, float) and 0 < k <= 1)):
        raise InvalidInput(
            f"{type(part).__name__}: k={k!r} is invalid: expected a whole number of entries >= 1, or a fraction in (0, 1]."
        )


def _sparse_bytes(k: int, d: int, itemsize: int) -> int:
    """Return the size of k values with their indices; a full row needs no indices."""
    return d * itemsize if k == d else k * (itemsize + (4 if d < 2**31 else 8))


@dataclass(frozen=True)
class TopK:
    """Keep the k entries of largest magnitude; ties go to the lowest index.

    Args:
        k: number of entries (an int), or fraction of all entries (a float in (0, 1]).

    Raises:
        InvalidInput: if k is neither.

    Example:
        >>> fs.TopK(2).compress(torch.tensor([[1.0, -3.0, 2.0]]))
        tensor([[ 0., -3.,  2.]])
    """

    k: int | float

    def __post_init__(self) -> None:
        _check_k(self, self.k)

    def compress(self, V: Rows, sources: Sequence[torch.Generator] = ()) -> Rows:
        k = _count(self.k, V.shape[1])
        size = V.abs()
        least = size.topk(k, dim=1).values[:, -1:]  # the k-th largest, also with ties
        above, equal = size > least, size == least
        room = k - above.sum(1, keepdim=True)
        return torch.where(above | (equal & (equal.cumsum(1) <= room)), V, 0.0)

    def bytes(self, d: int, itemsize: int) -> int:
        return _sparse_bytes(_count(self.k, d), d, itemsize)


@dataclass(frozen=True)
class RandomK:
    """Keep k entries chosen at random.

    Args:
        k: number of entries (an int), or fraction of all entries (a float in (0, 1]).
        unbiased: whether to scale them by d/k. This is not a contraction, so error feedback would diverge and is refused.

    Raises:
        InvalidInput: if k is neither.

    Example:
        >>> kept = fs.RandomK(2).compress(torch.ones(1, 5), [torch.Generator().manual_seed(0)])
        >>> int(kept.sum())
        2
    """

    k: int | float
    unbiased: bool = False

    def __post_init__(self) -> None:
        _check_k(self, self.k)
        yes_or_no(self, unbiased=self.unbiased)

    @property
    def contracts(self) -> bool:
        return not self.unbiased

    def compress(self, V: Rows, sources: Sequence[torch.Generator]) -> Rows:
        d = V.shape[1]
        k = _count(self.k, d)
        kept = torch.zeros_like(V)
        for i, source in enumerate(sources):
            chosen = torch.randperm(d, generator=source, device="cpu")[:k].to(V.device)
            kept[i, chosen] = V[i, chosen] * (d / k if self.unbiased else 1.0)
        return kept

    def bytes(self, d: int, itemsize: int) -> int:
        return _sparse_bytes(_count(self.k, d), d, itemsize)


@dataclass(frozen=True)
class Quantize:
    """Unbiased stochastic quantisation: round to multiples of max|v| / (2^(bits-1) - 1), up or down at random.

    Args:
        bits: bits per entry, from 2 to 16.

    Raises:
        InvalidInput: if bits is out of range.

    Example:
        >>> fs.Quantize(bits=8).bytes(d=1000, itemsize=4)  # instead of 4000
        1004
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or self.bits not in range(2, 17):
            raise InvalidInput(f"Quantize: bits={self.bits!r} is invalid: expected a whole number from 2 to 16.")

    @property
    def contracts(self) -> bool:
        return self.bits > 2  # with two bits, an entry may be off by the largest one

    def compress(self, V: Rows, sources: Sequence[torch.Generator]) -> Rows:
        top = 2 ** (self.bits - 1) - 1
        unit = V.abs().amax(1, keepdim=True) / top
        unit = torch.where(unit > 0, unit, 1.0)
        luck: list[Tensor] = [
            torch.rand(V.shape[1], generator=s, dtype=V.dtype, device="cpu").to(V.device) for s in sources
        ]
        return torch.floor(V / unit + torch.stack(luck)).clamp(-top, top) * unit

    def bytes(self, d: int, itemsize: int) -> int:
        return -(-d * self.bits // 8) + itemsize  # the multiples, and their unit
