"""Noisy full gradients: the stochastic oracle of FedLin, theorem 4 and appendix L.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin).
Deviations: none; the exchanged gradients are noisy too (FedLin eq. 89).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.chunk import Chunk
from fedstride.core.errors import not_negative
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class Noisy:
    """The full gradient plus independent noise N(0, sigma^2) in each coordinate.

    Args:
        sigma: standard deviation of the noise; 0 turns it off.

    Raises:
        InvalidInput: if sigma is negative.

    Example:
        >>> algorithm = fs.Algorithm(gradient=fs.Noisy(sigma=0.01))
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=2)
    """

    sigma: float = 0.1
    batches: ClassVar[bool] = False
    slot: ClassVar[str] = "gradient"
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        not_negative(self, sigma=self.sigma)

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        return lambda k, active: _Noise(chunk.full(active, k), chunk, self.sigma, k, list(range(active)))

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        C = len(chunk.samples)
        return _Noise(chunk.full(C), chunk, self.sigma, -1, list(range(C))).grad(repeat(x, C))


@dataclass(frozen=True)
class _Noise:
    base: Oracle
    chunk: Chunk
    sigma: float
    k: int
    rows: list[int]

    @property
    def data_loss(self) -> Col:
        loss: Col = self.base.data_loss  # type: ignore[attr-defined]
        return loss

    def loss(self, W: Rows) -> Col:
        return self.base.loss(W)

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        L, G = self.base.grad(W)
        for i, row in enumerate(self.rows):
            G[i].add_(self.chunk.noise(row, self.k, G[i]), alpha=self.sigma)
        return L, G

    def take(self, rows: list[int]) -> _Noise:
        return _Noise(self.base.take(rows), self.chunk, self.sigma, self.k, [self.rows[i] for i in rows])
