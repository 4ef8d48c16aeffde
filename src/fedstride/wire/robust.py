"""Robust aggregation: a few clients that send arbitrary values have limited influence on the result.

Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning. ICML 2018.
Deviations: none. These rules need all rows at once: memory O(M d), no secure aggregation, and no means of other fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput
from fedstride.core.rows import Rows, State, Vec
from fedstride.wire.mean import Aggregator, Node


class Aggregation(Protocol):
    """An aggregation rule. Unlike all other rules, it needs the updates of single clients."""

    def start(self) -> Aggregator:
        """Return a new aggregator."""
        ...


class Robust(Aggregation, Protocol):
    """A robust aggregation rule."""

    def combine(self, V: Rows) -> Vec:
        """Return the aggregate of the rows."""
        ...


@dataclass(frozen=True)
class Median:
    """The median of each coordinate: robust if fewer than half of the clients are malicious.

    Example:
        >>> fs.Median().combine(torch.tensor([[1.0], [2.0], [1000.0]]))
        tensor([2.])
        >>> algorithm = fs.Algorithm(aggregate=fs.Median())
    """

    def start(self) -> Aggregator:
        return _Rows(self)

    def combine(self, V: Rows) -> Vec:
        middle = V.sort(0).values[(len(V) - 1) // 2 : len(V) // 2 + 1]
        return _mean(middle)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its largest and smallest values.

    Args:
        share: fraction of the values to remove at each end, between 0 and 0.5.

    Raises:
        InvalidInput: if share is out of range.

    Example:
        >>> fs.TrimmedMean(share=0.25).combine(torch.tensor([[1.0], [2.0], [3.0], [1000.0]]))
        tensor([2.5000])
        >>> algorithm = fs.Algorithm(aggregate=fs.TrimmedMean(share=0.25))
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share < 0.5:
            raise InvalidInput(f"TrimmedMean: share={self.share!r} is invalid: expected a number between 0 and 0.5.")

    def start(self) -> Aggregator:
        return _Rows(self)

    def combine(self, V: Rows) -> Vec:
        cut = int(self.share * len(V))
        return _mean(V.sort(0).values[cut : len(V) - cut])


def _mean(V: Rows) -> Vec:
    """Add row by row: the summation order of torch.sum depends on the number of columns, which differs in slices."""
    total: Vec = reduce(torch.add, V)
    return total / len(V)


@dataclass
class _Rows:
    """An aggregator that keeps all rows until the end."""

    rule: Robust
    nodes: dict[tuple[int, int], Node] = field(default_factory=dict)

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None:
        for row, weight in enumerate(weights):
            self.place(0, first + row, Node(weight, {k: v[row].clone() for k, v in fields.items()}))

    def place(self, level: int, position: int, node: Node) -> None:
        self.nodes[level, position] = node

    def finish(self) -> tuple[State, float]:
        rows = [node for _, node in sorted(self.nodes.items())]
        names, weight = rows[0].fields if rows else {}, sum(r.weight for r in rows)
        return {k: self.rule.combine(torch.stack([r.fields[k] for r in rows])) for k in names}, weight
