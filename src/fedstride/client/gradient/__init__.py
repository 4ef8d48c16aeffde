"""Gradient estimators: what the step rule is given for the gradient of f_i."""

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
    batches: ClassVar[bool]  # True if batch_size has a meaning

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        """A function (step k, active rows) -> oracle. base = loss and full gradient at x, where already known."""
        ...

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        """Loss and gradient at x, for the exchange that gradient correction needs."""
        ...
