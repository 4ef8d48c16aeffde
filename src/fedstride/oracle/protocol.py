"""What a step rule may ask of the clients' data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from fedstride.core.model import Replica
from fedstride.core.rows import Col, Rows

Batch = tuple[Tensor, Tensor]
Ray = Callable[[Col, list[int]], Col]  # (step sizes, rows) -> the loss of these rows that far along a direction


class Oracle(Protocol):
    """The clients' data at this step."""

    def loss(self, W: Rows) -> Col: ...

    def grad(self, W: Rows) -> tuple[Col, Rows]: ...

    def take(self, rows: list[int]) -> Oracle:
        """The same batches, for some of the rows only."""
        ...


class Contrast(Protocol):
    """A term of the loss that compares a client's features with those of other models (MOON)."""

    def others(self, replica: Replica, row: int, inputs: Tensor) -> tuple[Tensor, ...]: ...

    def value(self, z: Tensor, others: tuple[Tensor, ...]) -> Tensor: ...


class Meter:
    """Samples evaluated, per client of a chunk: gradients, and forward passes alone."""

    def __init__(self, C: int) -> None:
        self.gradients, self.forwards = [0] * C, [0] * C


def along(oracle: Oracle, W: Rows, D: Rows) -> Ray:
    """The loss at W - eta D, for line searches. Unless the oracle knows better: a forward pass per row and trial."""
    if hasattr(oracle, "along"):
        known: Ray = oracle.along(W, D)
        return known

    def value(eta: Col, rows: list[int]) -> Col:
        if len(rows) == len(W):
            return oracle.loss(W - eta * D)
        return oracle.take(rows).loss(W[rows] - eta * D[rows])

    return value
