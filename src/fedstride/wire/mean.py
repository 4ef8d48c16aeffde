"""Streaming weighted mean of the uploads.

The sum is a fixed binary tree over the positions in the cohort, so the result is bit-identical for any threads, workers,
chunks and order of arrival. Memory is O(d) times the depth of the tree times the number of gaps, which is the number of
workers if neighbours arrive in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Size, Tensor

from fedstride.core.rows import State


@dataclass(frozen=True)
class Mean:
    """The input of a server rule: p-weighted means over the cohort, and the cohort's share of the federation."""

    fields: State
    share: float  # the cohort's weight in the whole federation: sum of pi_i
    participants: float  # with privacy, the expected number
    clients: int  # number of clients in the whole federation
    shapes: tuple[Size, ...] = ()  # shapes of the model's tensors, in the order of the update

    @property
    def update(self) -> Tensor:
        """Dbar = sum p_i Delta_i."""
        return self.fields["update"]

    @property
    def square(self) -> Tensor:
        """S = sum p_i |Delta_i|^2."""
        return self.fields["square"][0]


@dataclass
class Node:
    """The weighted sum of some clients' uploads."""

    weight: float
    fields: State

    def merge(self, right: Node) -> Node:
        return Node(self.weight + right.weight, {k: v.add_(right.fields[k]) for k, v in self.fields.items()})


class Aggregator(Protocol):
    """Combine rows, added in any order, to one row. Columns are independent, so slices can be aggregated separately."""

    nodes: dict[tuple[int, int], Node]  # partial results by level and position, which another aggregator can place

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None: ...

    def place(self, level: int, position: int, node: Node) -> None: ...

    def finish(self) -> tuple[State, float]:
        """Return (aggregate of each field, sum of the weights)."""
        ...


@dataclass
class WeightedMean:
    """sum w_i v_i / sum w_i. Add each position once, in any order. Takes ownership of the given tensors."""

    nodes: dict[tuple[int, int], Node] = field(default_factory=dict)

    def add(self, position: int, weight: float, fields: Mapping[str, Tensor]) -> None:
        scaled = {k: v if weight == 1 else v * weight for k, v in fields.items()}
        self.place(0, position, Node(weight, scaled))

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None:
        """Add the rows of fields at the positions from `first`; bit-identical to adding them one by one."""
        level, totals, sums = 0, list(weights), dict(fields)
        if any(w != 1 for w in totals):
            column = next(iter(sums.values())).new_tensor(totals)[:, None]
            sums = {k: v * column for k, v in sums.items()}

        def place(row: int) -> None:
            self.place(level, first + row, Node(totals[row], {k: v[row] for k, v in sums.items()}))

        while totals:
            if first & 1:  # its sibling is not among these rows
                place(0)
                first, totals, sums = first + 1, totals[1:], {k: v[1:] for k, v in sums.items()}
            if len(totals) & 1:
                place(len(totals) - 1)
                totals, sums = totals[:-1], {k: v[:-1] for k, v in sums.items()}
            sums = {k: v[0::2] + v[1::2] for k, v in sums.items()} if totals else {}
            totals = [a + b for a, b in zip(totals[0::2], totals[1::2], strict=True)]
            first, level = first >> 1, level + 1

    def merge(self, other: WeightedMean) -> WeightedMean:
        for (level, position), node in sorted(other.nodes.items()):
            self.place(level, position, node)
        return self

    def finish(self) -> tuple[State, float]:
        """Return (mean of each field, sum of the weights)."""
        total: Node | None = None
        for key in sorted(self.nodes, key=lambda k: k[1] << k[0]):
            total = self.nodes[key] if total is None else total.merge(self.nodes[key])
        self.nodes.clear()
        if total is None:
            return {}, 0.0
        return {k: v / total.weight for k, v in total.fields.items()}, total.weight

    def place(self, level: int, position: int, node: Node) -> None:
        while (level, position ^ 1) in self.nodes:
            sibling = self.nodes.pop((level, position ^ 1))
            node = sibling.merge(node) if position & 1 else node.merge(sibling)
            level, position = level + 1, position >> 1
        self.nodes[level, position] = node
