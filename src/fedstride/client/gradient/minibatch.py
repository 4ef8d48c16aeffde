"""Minibatch gradients; the full batch where batch_size is None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.chunk import Site
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Minibatch:
    """g_B on a fresh batch each step."""

    batches: ClassVar[bool] = True
    slot: ClassVar[str] = "gradient"
    plain_batches: ClassVar[bool] = True

    def begin(self, site: Site, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        return site.batch

    def anchor(self, site: Site, x: Vec) -> tuple[Col, Rows]:
        C = len(site.samples)
        return site.full(C).grad(repeat(x, C))
