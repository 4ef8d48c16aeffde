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
    """The input of a server rule: p-weighted means over the cohort.

    Args:
        fields: mean of each uploaded field, by name.
        share: weight of the cohort in the federation, sum of pi_i.
        participants: number of clients in the mean; with privacy, its expectation.
        clients: number of clients in the federation.
        shapes: shapes of the model's tensors, in the order of the update.
        noise: expected squared norm of the noise that privacy added to the update.
        steps: median number of local steps of these clients; 0 if it is not known: with privacy it stays secret.

    Example:
        >>> mean = fs.wire.Mean({"update": torch.tensor([1.0, 2.0])}, share=1.0, participants=4, clients=4)
        >>> rule, x = fs.Average(lr=0.5), torch.zeros(2)
        >>> rule.step(x, mean, rule.init(x))
        tensor([-0.5000, -1.0000])
    """

    fields: State
    share: float
    participants: float
    clients: int
    shapes: tuple[Size, ...] = ()
    noise: float = 0.0
    steps: float = 0.0

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
    """The weighted sum of some clients' uploads, a node of the summation tree.

    Args:
        weight: sum of the weights.
        fields: weighted sum of each field, by name.

    Example:
        >>> left, right = (fs.wire.Node(1.0, {"update": torch.tensor([v])}) for v in (1.0, 2.0))
        >>> left.merge(right)
        Node(weight=2.0, fields={'update': tensor([3.])})
    """

    weight: float
    fields: State

    def merge(self, right: Node) -> Node:
        """Return the sum of both nodes, in the memory of this one."""
        return Node(self.weight + right.weight, {k: v.add_(right.fields[k]) for k, v in self.fields.items()})


class Aggregator(Protocol):
    """Combine rows, added in any order, into one. Columns are independent, so slices can be aggregated separately."""

    nodes: dict[tuple[int, int], Node]  # partial results by level and position, which another aggregator can place

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None: ...

    def place(self, level: int, position: int, node: Node) -> None: ...

    def finish(self) -> tuple[State, float]:
        """Return (aggregate of each field, sum of the weights)."""
        ...


@dataclass
class WeightedMean:
    """The weighted mean sum w_i v_i / sum w_i. Each position is added once, in any order.

    Args:
        nodes: partial sums by level and position in the tree.

    Example:
        >>> mean = fs.wire.WeightedMean()
        >>> mean.add(0, 1.0, {"update": torch.tensor([2.0])})
        >>> mean.add(1, 3.0, {"update": torch.tensor([6.0])})
        >>> mean.finish()
        ({'update': tensor([5.])}, 4.0)
    """

    nodes: dict[tuple[int, int], Node] = field(default_factory=dict)

    def add(self, position: int, weight: float, fields: Mapping[str, Tensor]) -> None:
        """Add the fields of one position. The mean takes ownership of the tensors."""
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
        """Add the partial sums of another mean over other positions."""
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
        """Add a partial sum, merging siblings up the tree."""
        while (level, position ^ 1) in self.nodes:
            sibling = self.nodes.pop((level, position ^ 1))
            node = sibling.merge(node) if position & 1 else node.merge(sibling)
            level, position = level + 1, position >> 1
        self.nodes[level, position] = node
