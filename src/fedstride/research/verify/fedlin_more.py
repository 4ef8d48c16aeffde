"""More laws of FedLin: the convex rate, the virtual iterate of error feedback, and the noise of its gradients.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin).
Deviations: none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedlin
from fedstride.client.drift import GradientCorrection
from fedstride.client.gradient import Estimator, Noisy
from fedstride.client.step import Constant
from fedstride.core.rows import Rows, Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    gradients,
    hard_start,
    iterates,
    near,
    random_least_squares,
)
from fedstride.research.verify.recorders import RecordedStep, Watched
from fedstride.wire import TopK

Recipe = Callable[..., Algorithm]
TAU = [1, 2, 5, 3, 4]


@law("FedLin Thm 2")
def convex(make: Recipe = fedlin) -> Iterator[Measured]:
    """Convex, step 1/(10 L): f at the mean iterate is below 10 L |x_1 - x*|^2 / T, and every round makes its share."""
    full = random_least_squares(samples=12, d=6)
    flat = torch.ones(6, dtype=torch.float64).diag()
    flat[-1, -1] = 0  # one direction in which f is constant, so that f is not strongly convex
    p, T = LeastSquares([A @ flat for A in full.A], full.b), 20
    yield "the problem: strong convexity of f", float(torch.linalg.eigvalsh(p.H)[0]), "<=", 1e-12
    for name, start in (("far", near(p.minimiser, distance=3.0)), ("near", near(p.minimiser, distance=1e-3))):
        xs, _ = iterates(p, start, make(lr=1 / (10 * p.L)), T, local_steps=TAU)
        star = p.minimiser + start - flat @ start  # the minimiser nearest to the start; FedLin never leaves its fibre
        e, f = [float(sq(x - star)) for x in xs], [p.gap(x) for x in xs]
        mean = p.gap(torch.stack(xs[:T]).mean(0)) * T / (10 * p.L * (e[0] - e[T]))
        yield f"FedLin, {name}: f at the mean iterate, share of its bound", mean, "<=", 1  # eq. (82)
        worst = max(f[t] / (10 * p.L * (e[t] - e[t + 1])) for t in range(T))
        yield f"FedLin, {name}: f - f* over 10 L times the decrease of |x - x*|^2", worst, "<=", 1  # eq. (81)


@law("FedLin eq. (123), (144)")
def virtual_iterate(make: Recipe = fedlin) -> Iterator[Measured]:
    """Error feedback: x minus etabar times the error kept moves as if nothing were compressed; to rounding.

    The gradient of a client's first local step is g_t, because the correction cancels grad f_i(x).
    """
    p, k = random_least_squares(d=8), 3
    eta = 0.5 / p.L
    for side, options in (("clients", {"up": TopK(k)}), ("server", {"down": TopK(k)})):
        xs, sent, moved, residuals = _feedback(p, make(lr=eta, **options))
        full = [torch.stack(gradients(p, x)) for x in xs[:-1]]  # grad f_i(x_t), by row
        zero = torch.zeros_like(full[0])
        # what each sender kept after every round: as the clients remember it, or of the server, from what it sent
        known = residuals if side == "clients" else [(f.mean(0) - g)[None] for f, g in zip(full, sent, strict=True)]
        kept = known if side == "clients" else [*itertools.accumulate(known)]
        rows = full if side == "clients" else [f.mean(0, keepdim=True) for f in full]
        wanted = [old + f for old, f in zip([zero[: len(rows[0])], *kept], rows, strict=False)]
        messages = [wanted[0], *(TopK(k).compress(v) for v in wanted[1:])]  # the first one is whole
        wrong = max(float((g - h.mean(0)).norm()) for g, h in zip(sent, messages, strict=True))
        yield f"FedLin, TOP-{k} of 8 at the {side}: |g_t - mean of C(error + gradient)|", wrong, "<=", 1e-10
        virtual = [x - eta * e.mean(0) for x, e in zip(xs, [zero, *kept], strict=True)]
        rounds = zip(itertools.pairwise(virtual), moved, strict=True)
        wrong = max(float((new - (old - step)).norm()) for (old, new), step in rounds)
        yield f"FedLin, TOP-{k} of 8 at the {side}: distance of a round to the virtual iterate", wrong, "<=", 1e-12
        share = max(float(e.norm()) for e in kept) / float(full[0].norm())
        yield f"FedLin, TOP-{k} of 8 at the {side}: largest error kept, over the first gradient", share, ">", 1e-3


def _feedback(p: LeastSquares, algorithm: Algorithm, T: int = 12) -> tuple[list[Vec], list[Vec], list[Vec], list[Rows]]:
    """Return the iterates and, by round, g_t, the mean of eta_i sum grad f_i(x_il), and the errors of the clients."""
    engine, eye, m = Watched(), RecordedStep(algorithm.step), len(p.A)
    xs, _ = iterates(p, hard_start(p), replace(algorithm, step=eye), T, local_steps=TAU, engine=engine)
    sent, moved = [], []
    for t in range(T):
        steps = [s for s in eye.seen if s.round == t]
        sent.append(next(s.g for s in steps if torch.equal(s.y, xs[t])))
        moved.append(torch.stack([s.eta * gradients(p, s.y)[s.client] for s in steps]).sum(0) / m)
    zero = torch.zeros_like(xs[0])
    return xs, sent, moved, [torch.stack([e.get(f"{i}/residual", zero) for i in range(m)]) for e in engine.memories]


@law("FedLin eq. (89)")
def noise(gradient: Callable[[float], Estimator] = Noisy) -> Iterator[Measured]:
    """Noise has its variance, and that of any two steps, clients, rounds and of the exchanged gradient is independent."""
    d, sigma = 4000, 0.3
    zero = torch.zeros(1, d, dtype=torch.float64)
    p = LeastSquares([zero] * 3, [zero[0, :1]] * 3)  # f = 0: gradients are noise alone
    for name, drift, expected in (("plain", None, 1.0), ("corrected", GradientCorrection(), 5 / 3)):
        eye = RecordedStep(Constant(0.1))
        algorithm = Algorithm(eye, gradient=gradient(sigma), drift=drift)
        iterates(p, zero[0], algorithm, 2, local_steps=3, engine=Watched())
        G = torch.stack([s.g for s in eye.seen]) / sigma
        off = float((G.square().mean(1) / expected - 1).abs().max())  # n + mean(a) - a_i has variance 1 + 2/3
        yield f"{name} gradients: largest deviation of a variance from {expected:.3g} sigma^2", off, "<=", 0.12
        bias = float(G.mean(1).abs().max())
        yield f"{name} gradients: largest mean over {d} coordinates, in sigma", bias, "<=", 0.1
    alone = torch.stack([g for s, g in zip(eye.seen, G, strict=True) if s.client == 0])  # two rounds of three steps
    C = alone @ alone.T / d
    common = float((C[:3, :3] - C[:3, :3].diag().diag() - 2 / 3 * (1 - torch.eye(3))).abs().max())
    yield "two corrected gradients of a round: covariance minus that of the exchange, 2/3 sigma^2", common, "<=", 0.1
    yield "corrected gradients of two rounds: largest covariance, in sigma^2", float(C[:3, 3:].abs().max()), "<=", 0.1
    eye = RecordedStep(Constant(0.1))
    iterates(p, zero[0], Algorithm(eye, gradient=gradient(sigma)), 3, local_steps=4, engine=Watched())
    G = torch.stack([s.g / s.g.norm() for s in eye.seen])
    most = float((G @ G.T - torch.eye(len(G), dtype=G.dtype)).abs().max())
    yield f"{len(G)} plain gradients: largest correlation of two", most, "<=", 0.08
