"""Small problems with known smoothness, convexity and minimiser, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.rows import Vec
from fedstride.run import Run, train


class Point(nn.Module):
    """A linear model without bias: its parameter is the point x itself."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.x


def half_mean_square(output: Tensor, target: Tensor) -> Tensor:
    """|a'x - b|^2 / 2, averaged over the samples."""
    return ((output - target) ** 2).mean() / 2


def half_sum_square(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum() / 2


@dataclass(frozen=True)
class LeastSquares:
    """f_i(x) = |A_i x - b_i|^2 / 2 (a sum, or a mean over the rows), f = sum p_i f_i with uniform p."""

    A: Sequence[Tensor]
    b: Sequence[Tensor]
    mean: bool = False

    @property
    def clients(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.A, self.b, strict=True))

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return half_mean_square if self.mean else half_sum_square

    def hessian(self, i: int) -> Tensor:
        return self.A[i].T @ self.A[i] / (len(self.A[i]) if self.mean else 1)

    @property
    def H(self) -> Tensor:
        return torch.stack([self.hessian(i) for i in range(len(self.A))]).mean(0)

    @property
    def L(self) -> float:
        """The largest smoothness of a client."""
        return max(float(torch.linalg.eigvalsh(self.hessian(i))[-1]) for i in range(len(self.A)))

    @property
    def L_component(self) -> float:
        """The largest smoothness of a single sample's loss."""
        return max(float((A**2).sum(1).max()) for A in self.A)

    @property
    def mu(self) -> float:
        """The smallest strong convexity of a client."""
        return min(float(torch.linalg.eigvalsh(self.hessian(i))[0]) for i in range(len(self.A)))

    @property
    def minimiser(self) -> Vec:
        weights = [1 / len(A) if self.mean else 1.0 for A in self.A]
        right = torch.stack([w * A.T @ b for w, A, b in zip(weights, self.A, self.b, strict=True)]).mean(0)
        solution: Vec = torch.linalg.lstsq(self.H, right[:, None], driver="gelsd").solution[:, 0]
        return solution

    def gap(self, x: Vec) -> float:
        """f(x) - f*, as a quadratic form: exact to the last digits."""
        e = x - self.minimiser
        return float(e @ self.H @ e) / 2


def random_least_squares(
    clients: int = 5,
    samples: int = 20,
    d: int = 6,
    seed: int = 0,
    mean: bool = False,
    common: bool = False,
    spread: float = 1.0,
) -> LeastSquares:
    """Gaussian data; `common`: all clients share one minimiser; spread: how far apart their own minimisers are."""
    g = torch.Generator().manual_seed(seed)
    A = [torch.randn(samples, d, generator=g, dtype=torch.float64) for _ in range(clients)]
    shared = torch.randn(d, generator=g, dtype=torch.float64)
    own = [shared + spread * torch.randn(d, generator=g, dtype=torch.float64) for _ in range(clients)]
    return LeastSquares(A, [a @ (shared if common else w) for a, w in zip(A, own, strict=True)], mean)


def iterates(
    problem: LeastSquares, x0: Vec, algorithm: str | Algorithm, rounds: int, **options: Any
) -> tuple[list[Vec], Run]:
    """x_0, x_1, ..., x_T of a run, and the run."""
    xs: list[Vec] = []
    run = train(
        Point(x0),
        problem.loss,
        problem.clients,
        algorithm,
        rounds=rounds,
        callbacks=[lambda e: xs.append(e.x)],
        **options,
    )
    return xs, run
