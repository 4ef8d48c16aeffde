"""Minibatch gradients; the full batch where batch_size is None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.chunk import Chunk
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Minibatch:
    """g_B on a fresh batch each step."""

    batches: ClassVar[bool] = True
    slot: ClassVar[str] = "gradient"
    plain_batches: ClassVar[bool] = True

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        return chunk.batch

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        C = len(chunk.samples)
        return chunk.full(C).grad(repeat(x, C))
