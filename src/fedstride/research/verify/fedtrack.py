"""Laws of FedTrack.

Mitra, Jaafar, Pappas, Hassani. Federated learning with incrementally aggregated gradients. CDC 2021 (FedTrack).
Deviations: f_i is the plain mean of its components only if all have the same size. With a smaller last block, L is the
smoothness of the components scaled by their share of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedtrack
from fedstride.core.rows import Rows, Vec
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    descended,
    descent,
    gradients,
    iterates,
    least_curvature,
    near,
    random_least_squares,
    robust,
    slowest,
)
from fedstride.research.verify.recorders import RecordedStep, Watched

Recipe = Callable[..., Algorithm]
SIZES = (5, 6, 7, 8)  # samples per client: 20 local steps visit every component more than once


def _problem(rank: int = 3) -> LeastSquares:
    """Return a least-squares problem in 3 dimensions whose data span `rank` of them."""
    p = random_least_squares(clients=4, samples=max(SIZES), d=3, mean=True)
    A, b = zip(*((A[:n], b[:n]) for A, b, n in zip(p.A, p.b, SIZES, strict=True)), strict=True)
    flat = torch.linalg.qr(p.A[0].T @ p.A[1]).Q[:, :rank]
    return LeastSquares([a @ flat @ flat.T for a in A], b, mean=True)


def _smoothness(p: LeastSquares, block: int) -> float:
    """Return the largest smoothness of a component."""

    def of_client(A: Tensor) -> float:
        parts = torch.split(A, block)
        return max(float(torch.linalg.matrix_norm(B, 2)) ** 2 for B in parts) * len(parts) / len(A)

    return max(map(of_client, p.A))


def _linear(p: LeastSquares, mu: float, make: Recipe, H: int, block: int) -> tuple[float, str, float]:
    """Return the largest factor of f - f* in any round, and its bound."""
    L = _smoothness(p, block)
    return slowest(p, make(lr=1 / (18 * L * H), block=block), 8, local_steps=H), "<=", 1 - mu / (18 * L)


@law("FedTrack Thm 1")
def strongly_convex(make: Recipe = fedtrack) -> Iterator[Measured]:
    p = _problem()
    for H, block in ((1, 1), (5, 1), (20, 1), (3, 3), (8, 3)):
        what = f"FedTrack, H = {H}, blocks of {block}: factor of f - f* per round"
        yield what, *_linear(p, p.mu, make, H, block)


@law("FedTrack Thm 3")
def polyak_lojasiewicz(make: Recipe = fedtrack) -> Iterator[Measured]:
    p = _problem(rank=2)
    yield (
        "rank-deficient least squares: largest strong convexity of f",
        float(torch.linalg.eigvalsh(p.H)[0]),
        "<=",
        1e-12,
    )
    for H in (5, 20):
        yield f"FedTrack, H = {H}, PL: factor of f - f* per round", *_linear(p, p.pl, make, H, 1)


@law("FedTrack Thm 2")
def non_convex(make: Recipe = fedtrack) -> Iterator[Measured]:
    p, H, T = _problem(), 12, 10
    afar, L = near(p.minimiser), _smoothness(p, 1)
    yield "robust regression: least curvature at the start", least_curvature(p, robust, afar), "<", 0
    for name, x0 in (("", afar), (", nearly stationary", descended(p, robust, afar, 1e-5))):
        xs, _ = iterates(p, x0, make(lr=1 / (18 * L * H)), T, loss=robust, local_steps=H)
        f, g = descent(p, robust, xs)
        yield f"FedTrack, non-convex{name}: min |grad f|^2", min(g[:-1]), "<=", 36 * L * (f[0] - f[T]) / T
        least = L * min((f[t] - f[t + 1]) / g[t] for t in range(T))
        yield f"FedTrack, non-convex{name}: L decrease / |grad f|^2", least, ">=", 1 / 36  # eq. (43)


@law("FedTrack Alg. 1")
def as_printed(make: Recipe = fedtrack) -> Iterator[Measured]:
    p = _problem()
    x0, eta = near(p.minimiser), 0.5 / _smoothness(p, 1)  # long, so that another order of the components shows
    for H, block in ((2, 1), (5, 1), (10, 1), (20, 1), (3, 3), (8, 3)):
        xs, _ = iterates(p, x0, make(lr=eta, block=block), 1, local_steps=H)
        wrong = float((xs[1] - _one_round(p, x0, eta, H, block)).norm())
        yield f"FedTrack, H = {H}, blocks of {block}: distance to the algorithm as printed", wrong, "<=", 1e-12


def _one_round(p: LeastSquares, x: Vec, eta: float, H: int, block: int) -> Vec:
    def components(A: Tensor, b: Tensor, y: Vec) -> Rows:
        """Return the parts of grad f_i, one row per component."""
        slopes = A * (A @ y - b)[:, None] / len(A)
        return torch.stack([part.sum(0) for part in torch.split(slopes, block)])

    full = torch.stack([components(A, b, x).sum(0) for A, b in p.clients]).mean(0)
    ends = []
    for A, b in p.clients:
        table, y = components(A, b, x), x
        correction = full - table.sum(0)
        for l in range(H):
            if l > 0:
                j = (l - 1) % len(table)
                table[j] = components(A, b, y)[j]
            y = y - eta * (correction + table.sum(0))  # line 7
        ends.append(y)
    return torch.stack(ends).mean(0)


@law("FedTrack Lemma 5")
def gradient_error(make: Recipe = fedtrack) -> Iterator[Measured]:
    """Steps of 1/(12 L H): |x_il - x| <= 4 eta H |grad f| and |e_il| <= 2 eta L H |grad f| (lemmas 4 and 5)."""
    p = _problem()
    for H, block in ((5, 1), (12, 1), (20, 1), (8, 3)):
        L = _smoothness(p, block)
        eta = 1 / (12 * L * H)
        base = make(lr=eta, block=block)
        eye = RecordedStep(base.step)
        xs, _ = iterates(p, near(p.minimiser), replace(base, step=eye), 3, local_steps=H, engine=Watched())
        drift, error = [], []
        for s in eye.seen:
            at, here = gradients(p, xs[s.round]), gradients(p, s.y)[s.client]
            full = torch.stack(at).mean(0)
            drift.append(float((s.y - xs[s.round]).norm() / full.norm()) / (4 * eta * H))
            error.append(float((s.g - (here - at[s.client] + full)).norm() / full.norm()) / (2 * eta * L * H))
        setting = f"FedTrack, H = {H}, blocks of {block}"
        yield f"{setting}: largest drift, share of its bound", max(drift), "<=", 1
        yield f"{setting}: largest error of a gradient, share of its bound", max(error), "<=", 1
        yield f"{setting}: error of the first gradient, which is exact", error[0], "<=", 1e-12


@law("FedTrack Sec. III")
def cost(make: Recipe = fedtrack) -> Iterator[Measured]:
    p = _problem()
    for H in (1, 5, 20):
        _, run = iterates(p, near(p.minimiser), make(lr=1e-3), 2, local_steps=H)
        needed = sum(n + H - 1 for n in SIZES)
        yield f"FedTrack, H = {H}: gradients in the second round", run.history["gradients"][1], "==", needed
