"""Minibatch gradients, or full gradients if batch_size is None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.chunk import Chunk
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Minibatch:
    """The gradient g_B on a new batch in every step; the default.

    Batches are drawn without replacement until all samples of the client have been used.

    Example:
        >>> algorithm = fs.Algorithm(gradient=fs.Minibatch())
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=2, batch_size=4)
        >>> run.history[0]["gradients"]  # one epoch: 16 samples for each of the four clients
        64
    """

    batches: ClassVar[bool] = True
    slot: ClassVar[str] = "gradient"
    plain_batches: ClassVar[bool] = True

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        return chunk.batch

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        C = len(chunk.samples)
        return chunk.full(C).grad(repeat(x, C))
