"""The interface between step rules and the clients' data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from fedstride.core.batch import Tree
from fedstride.core.model import Replica
from fedstride.core.rows import Col, Rows

Ray = Callable[[Col, list[int]], Col]  # (step sizes, rows) -> the loss of these rows at these steps along a direction


class Oracle(Protocol):
    """Loss and gradient on the clients' batches of this step."""

    def loss(self, W: Rows) -> Col:
        """Return the loss of each row."""
        ...

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        """Return the loss and the gradient of each row."""
        ...

    def take(self, rows: list[int]) -> Oracle:
        """Return an oracle with the same batches for some of the rows."""
        ...


class Contrast(Protocol):
    """A loss term that compares a client's features with those of other models (MOON)."""

    def others(self, replica: Replica, row: int, inputs: Tree) -> tuple[Tensor, ...]:
        """Return the features of the other models."""
        ...

    def value(self, z: Tensor, others: tuple[Tensor, ...]) -> Tensor:
        """Return the term for the client's features z."""
        ...


class Meter:
    """Counts of evaluated samples per client of a chunk: gradients, and forward passes without gradients."""

    def __init__(self, C: int) -> None:
        self.gradients, self.forwards = [0] * C, [0] * C


def along(oracle: Oracle, W: Rows, D: Rows) -> Ray:
    """Return the loss at W - eta D for line searches; by default, a forward pass per row and trial."""
    if hasattr(oracle, "along"):
        known: Ray = oracle.along(W, D)
        return known

    def value(eta: Col, rows: list[int]) -> Col:
        if len(rows) == len(W):
            return oracle.loss(W - eta * D)
        return oracle.take(rows).loss(W[rows] - eta * D[rows])

    return value
