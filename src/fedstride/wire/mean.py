"""The weighted mean of the uploads, in a stream.

The sum is a fixed binary tree over the positions in the cohort, so that threads, workers, chunks and the order of
arrival cannot change the bits. Memory: O(d) times the depth of the tree and the number of gaps: of workers, where neighbours
come one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Size, Tensor

from fedstride.core.rows import State


@dataclass(frozen=True)
class Mean:
    """What a server rule sees: p-weighted means over the cohort, and how much of the federation it is."""

    fields: State
    share: float  # the cohort's weight in the whole federation: sum of pi_i
    participants: float  # under privacy, those who were expected
    clients: int  # in the whole federation
    shapes: tuple[Size, ...] = ()  # of the model's tensors, in the order of the update

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
    """What some clients sent, as one."""

    weight: float
    fields: State

    def merge(self, right: Node) -> Node:
        return Node(self.weight + right.weight, {k: v.add_(right.fields[k]) for k, v in self.fields.items()})


class Aggregator(Protocol):
    """From rows, in any order, to one row; each number of a row by itself, so that a slice of them all is a problem alike."""

    nodes: dict[tuple[int, int], Node]  # by level and position: what is added so far, to be placed elsewhere

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None: ...

    def place(self, level: int, position: int, node: Node) -> None: ...

    def finish(self) -> tuple[State, float]:
        """(the aggregate of each field, the sum of the weights)."""
        ...


@dataclass
class WeightedMean:
    """sum w_i v_i / sum w_i; add in any order, each position once. Takes ownership of what it is given."""

    nodes: dict[tuple[int, int], Node] = field(default_factory=dict)

    def add(self, position: int, weight: float, fields: Mapping[str, Tensor]) -> None:
        scaled = {k: v if weight == 1 else v * weight for k, v in fields.items()}
        self.place(0, position, Node(weight, scaled))

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None:
        """The rows of fields, at the positions from `first` on; with the bits that they get one by one."""
        level, totals, sums = 0, list(weights), dict(fields)
        if any(w != 1 for w in totals):
            column = next(iter(sums.values())).new_tensor(totals)[:, None]
            sums = {k: v * column for k, v in sums.items()}

        def place(row: int) -> None:
            self.place(level, first + row, Node(totals[row], {k: v[row] for k, v in sums.items()}))

        while totals:
            if first & 1:  # its sibling is elsewhere
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
        """(the mean of each field, the sum of the weights)."""
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
