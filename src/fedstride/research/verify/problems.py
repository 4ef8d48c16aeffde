"""Small problems with known smoothness, convexity and minimiser, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.core.losses import Loss
from fedstride.core.rows import Vec
from fedstride.training.result import Run
from fedstride.training.train import train

EXACT = 1e-12  # rounding error of a short float64 run
STEPS = (3, 1, 4, 2)  # tau_i


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


def linear(output: Tensor, target: Tensor) -> Tensor:
    """a'x - b, averaged over the samples."""
    return (output - target).mean()


def robust(output: Tensor, target: Tensor) -> Tensor:
    """phi(r) = r^2 / (2 (1 + r^2)), averaged over the samples: bounded and not convex.

    phi'' = (1 - 3 r^2) / (1 + r^2)^3 lies in [-1/4, 1], so it is as smooth as r^2 / 2: the constants L and
    L_component of a LeastSquares(mean=True) are also valid for it.
    """
    square = (output - target) ** 2
    return (square / (1 + square)).mean() / 2


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
    def pl(self) -> float:
        """The global Polyak-Lojasiewicz constant: the smallest non-zero eigenvalue of H."""
        eigenvalues = torch.linalg.eigvalsh(self.H)
        return float(eigenvalues[eigenvalues > 1e-10 * eigenvalues[-1]][0])

    @property
    def minimiser(self) -> Vec:
        weights = [1 / len(A) if self.mean else 1.0 for A in self.A]
        right = torch.stack([w * A.T @ b for w, A, b in zip(weights, self.A, self.b, strict=True)]).mean(0)
        solution: Vec = torch.linalg.lstsq(self.H, right[:, None], driver="gelsd").solution[:, 0]
        return solution

    def gap(self, x: Vec) -> float:
        """Return f(x) - f* as a quadratic form, exact to the last digits."""
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
    condition: float = 1.0,
) -> LeastSquares:
    """Return a problem with Gaussian data.

    Args:
        clients: number of clients.
        samples: samples per client.
        d: dimension.
        seed: seed of the data.
        mean: whether losses are means instead of sums.
        common: whether all clients share one minimiser.
        spread: distance between the clients' own minimisers.
        condition: ratio of the variances of the first and the last feature, so that clients share flat directions.
    """
    g = torch.Generator().manual_seed(seed)
    scale = torch.linspace(1, condition**-0.5, d, dtype=torch.float64)
    A = [torch.randn(samples, d, generator=g, dtype=torch.float64) * scale for _ in range(clients)]
    shared = torch.randn(d, generator=g, dtype=torch.float64)
    own = [shared + spread * torch.randn(d, generator=g, dtype=torch.float64) for _ in range(clients)]
    return LeastSquares(A, [a @ (shared if common else w) for a, w in zip(A, own, strict=True)], mean)


def iterates(
    problem: LeastSquares, x0: Vec, algorithm: str | Algorithm, rounds: int, loss: Loss | None = None, **options: Any
) -> tuple[list[Vec], Run]:
    """Return the iterates x_0, x_1, ..., x_T of a run, and the run; `loss` replaces the problem's loss if given."""
    xs: list[Vec] = []
    run = train(
        Point(x0),
        loss or problem.loss,
        problem.clients,
        algorithm,
        rounds=rounds,
        callbacks=[lambda e: xs.append(e.x)],
        **options,
    )
    return xs, run


def hard_start(problem: LeastSquares, seed: int = 1) -> Vec:
    """Return a point away from the minimiser in all directions, most of all where f is flattest and descent slowest."""
    flattest = torch.linalg.eigh(problem.H).eigenvectors[:, -round(float(torch.linalg.matrix_rank(problem.H)))]
    return near(problem.minimiser + 10 * flattest, seed)


def near(x: Vec, seed: int = 1, distance: float = 1.0) -> Vec:
    """Return x plus normal noise of this standard deviation."""
    return x + distance * torch.randn(len(x), generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def slowest(problem: LeastSquares, algorithm: Algorithm, rounds: int, **options: Any) -> float:
    """Return the largest factor of f - f* in any round, from a distant start and from one near enough to show bias."""
    starts = (hard_start(problem), near(problem.minimiser, distance=1e-4))
    runs = [iterates(problem, x0, algorithm, rounds, **options)[0] for x0 in starts]
    return max(max(ratios([problem.gap(x) for x in xs])) for xs in runs)


def ratios(values: Sequence[float]) -> list[float]:
    """Return the factor of each round: v_1 / v_0, v_2 / v_1, ..."""
    return [after / before for before, after in pairwise(values)]


def global_loss(problem: LeastSquares, loss: Loss, x: Vec) -> Tensor:
    """Return f(x), differentiable."""
    return torch.stack([loss(A @ x, b) for A, b in problem.clients]).mean()


def descent(problem: LeastSquares, loss: Loss, xs: Sequence[Vec]) -> tuple[list[float], list[float]]:
    """Return f and |grad f|^2 at each point."""
    values, slopes = zip(*(value_and_slope(problem, loss, x) for x in xs), strict=True)
    return list(values), [float(g @ g) for g in slopes]


def value_and_slope(problem: LeastSquares, loss: Loss, x: Vec) -> tuple[float, Vec]:
    x = x.clone().requires_grad_()
    value = global_loss(problem, loss, x)
    return float(value.detach()), torch.autograd.grad(value, x)[0]


def descended(problem: LeastSquares, loss: Loss, x: Vec, slope: float) -> Vec:
    """Return the first point of plain gradient descent from x with |grad f| <= slope."""
    while (g := value_and_slope(problem, loss, x)[1]).norm() > slope:
        x = x - g / problem.L
    return x


def least_curvature(problem: LeastSquares, loss: Loss, x: Vec) -> float:
    """Return the smallest eigenvalue of f's Hessian: negative if f is not convex."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(global_loss(problem, loss, x), x, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(g, x, retain_graph=True)[0] for g in slope])
    return float(torch.linalg.eigvalsh(hessian)[0])


class Featured(Point):
    """A linear model whose features, for MOON, are its summands; plus 1/2 in training mode."""

    def features(self, inputs: Tensor) -> Tensor:
        return inputs * self.x + 0.5 * self.training


def unequal(sizes: Sequence[int] = (6, 9, 5, 8), d: int = 4, mean: bool = True, common: bool = False) -> LeastSquares:
    """Return clients of different sizes, with different minimisers unless `common` is True."""
    drawn = random_least_squares(len(sizes), max(sizes), d, common=common)
    return LeastSquares(
        [A[:n] for A, n in zip(drawn.A, sizes, strict=True)],
        [b[:n] for b, n in zip(drawn.b, sizes, strict=True)],
        mean,
    )


def half_solved() -> LeastSquares:
    """Return six clients with two samples each; at 0 the first sample has no gradient, and the second one has."""
    return LeastSquares([torch.eye(2, dtype=torch.float64)] * 6, [torch.tensor([0.0, 1.0], dtype=torch.float64)] * 6)


def end(problem: LeastSquares, algorithm: Algorithm, x0: Vec | None = None, rounds: int = 3, **options: Any) -> Vec:
    """Return the last iterate of a short run."""
    start = torch.zeros(problem.A[0].shape[1], dtype=torch.float64) + 0.5 if x0 is None else x0
    options.setdefault("local_steps", STEPS[: len(problem.A)])
    return train(Featured(start), problem.loss, problem.clients, algorithm, rounds=rounds, **options).x


def apart(x: Vec, y: Vec) -> float:
    return float((x - y).norm() / (1 + y.norm()))


def gradients(problem: LeastSquares, x: Vec) -> list[Vec]:
    scale = [len(A) if problem.mean else 1 for A in problem.A]
    return [A.T @ (A @ x - b) / n for A, b, n in zip(problem.A, problem.b, scale, strict=True)]


def shares(problem: LeastSquares, weights: str) -> list[float]:
    """Return the weights p_i."""
    sizes = [len(A) if weights == "samples" else 1 for A in problem.A]
    return [n / sum(sizes) for n in sizes]


def weighted_minimiser(problem: LeastSquares, weights: str) -> Vec:
    p, zero = shares(problem, weights), torch.zeros(problem.A[0].shape[1], dtype=torch.float64)
    H = torch.stack([p_i * problem.hessian(i) for i, p_i in enumerate(p)]).sum(0)
    g = torch.stack([p_i * g for p_i, g in zip(p, gradients(problem, zero), strict=True)]).sum(0)
    solution: Vec = torch.linalg.solve(H, -g)
    return solution
