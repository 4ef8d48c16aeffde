"""Gradient estimators: the estimate of grad f_i that a step rule receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from fedstride.client.chunk import Chunk
from fedstride.client.gradient.iag import IAG
from fedstride.client.gradient.minibatch import Minibatch
from fedstride.client.gradient.noisy import Noisy
from fedstride.core.rows import Col, Rows, Vec
from fedstride.oracle import Oracle

__all__ = ["IAG", "Estimator", "Minibatch", "Noisy"]


class Estimator(Protocol):
    """A gradient estimator."""

    batches: ClassVar[bool]  # whether it uses batch_size

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        """Return a function (step k, active rows) -> oracle; `base` is the loss and full gradient at x, if known."""
        ...

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        """Return the loss and the gradient at x, for the exchange of gradients before the local steps."""
        ...
