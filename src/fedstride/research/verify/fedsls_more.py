"""More laws of FedSLS: rates where the search backtracks, the rates of FedExpSLS, and where searches start.

Federated stochastic line search (FedSLS).
Deviations: the proofs put the largest step lr_max where the accepted steps belong. As printed, theorems 3, 5 and 6 hold if
every search accepts lr_max (and, for theorem 5, if eta_g stays at its cap); they are checked with the least accepted step
and with the actual eta_g, and the counterexample to theorem 3 as printed is a law too. Full batches: kappa_f = 0, c' = c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import log, sqrt
from typing import Any

import torch

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedexpsls, fedsls
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    descent,
    half_solved,
    iterates,
    least_curvature,
    near,
    random_least_squares,
    robust,
)
from fedstride.research.verify.recorders import RecordedStep, Taken, Watched
from fedstride.training.result import Run

Recipe = Callable[..., Algorithm]
ROUNDING = 1e-12  # relative rounding error of a float64 run


def _searched(
    problem: LeastSquares, algorithm: Algorithm, x0: Vec, rounds: int, **options: Any
) -> tuple[list[Vec], Run, list[Taken]]:
    """Return the iterates, the run, and all accepted steps."""
    eye = RecordedStep(algorithm.step)
    xs, run = iterates(problem, x0, replace(algorithm, step=eye), rounds, engine=Watched(), **options)
    return xs, run, eye.seen


def _nearest(problem: LeastSquares) -> Vec:
    """Return the common minimiser that is nearest to 0."""
    solution: Vec = torch.linalg.pinv(torch.cat(list(problem.A))) @ torch.cat(list(problem.b))
    return solution


def _common(condition: float = 1.0) -> LeastSquares:
    return random_least_squares(clients=6, samples=20, d=5, common=True, mean=True, condition=condition)


@law("FedSLS Thm 3")
def where_the_search_backtracks(make: Recipe = fedsls) -> Iterator[Measured]:
    """lr_max > 2 (1 - c) / L: the rate of theorem 3 holds with the least accepted step in the place of lr_max."""
    problem = _common()
    star, L, mu = problem.minimiser, problem.L, problem.mu
    x0 = star + torch.ones(5, dtype=torch.float64)
    for K, eta_g, c in ((1, 0.5, 0.9), (2, 0.3, 0.95), (3, 0.1, 0.9)):
        lr_max = 0.999 * (2 * c - eta_g) / (K * L)
        algorithm = make(lr_max=lr_max, c=c, reset="max", server_lr=eta_g)
        xs, _, steps = _searched(problem, algorithm, x0, 10, local_steps=K)
        least = min(s.eta for s in steps)
        ratio = max(float(sq(new - star) / sq(old - star)) for old, new in pairwise(xs))
        setting = f"K = {K}, eta_g = {eta_g}, c = {c}"
        yield f"{setting}: least accepted step over lr_max", least / lr_max, "<", 0.9
        yield f"{setting}: largest ratio of |w - w*|^2 in a round", ratio, "<=", 1 - eta_g * least * mu * K / 2
    one = torch.tensor([[1.0]], dtype=torch.float64)  # f = w^2 / 2: L = mu = 1
    lr_max = 0.999 * (2 * 0.9 - 0.5)
    algorithm = make(lr_max=lr_max, c=0.9, reset="max", server_lr=0.5)
    xs, _ = iterates(LeastSquares([one], [0 * one[0]]), one[0], algorithm, 1, local_steps=1)
    yield "w^2 / 2, K = 1: ratio of |w - w*|^2, above the bound as printed", float(sq(xs[1])), ">", 1 - 0.5 * lr_max / 2


@law("FedSLS Thm 1")
def one_machine(make: Recipe = fedsls) -> Iterator[Measured]:
    """One client, K steps, c > 1/2: f at the mean of the local iterates is below c |w_0 - w*|^2 / ((2 c - 1) eta K)."""
    problem = random_least_squares(clients=1, samples=6, d=20, mean=True)  # many minimisers
    star = _nearest(problem)
    zero = torch.zeros_like(star)
    for c, longest in ((0.6, 0.5), (0.9, 0.1), (0.9, 5.0)):
        algorithm = make(lr_max=longest / problem.L, c=c, reset="max")
        _, _, steps = _searched(problem, algorithm, zero, 1, local_steps=25)
        least, mean = min(s.eta for s in steps), torch.stack([s.y for s in steps]).mean(0)
        bound = c * float(sq(star)) / ((2 * c - 1) * least * len(steps))
        setting = f"c = {c}, lr_max = {longest} / L"
        yield f"{setting}: f at the mean iterate, share of its bound", problem.gap(mean) / bound, "<=", 1
        rise = max(b.loss / a.loss for a, b in pairwise(steps))
        yield f"{setting}: largest ratio of f in a step", rise, "<", 1


@law("FedSLS Thm 2")
def convex(make: Recipe = fedsls) -> Iterator[Measured]:
    """f at the mean iterate is below c |w_0 - w*|^2 / ((2 c - eta_g - K L eta) eta_g eta K T)."""
    problem, T = random_least_squares(clients=4, samples=3, d=20, common=True, mean=True), 15  # not strongly convex
    star = _nearest(problem)
    zero, L = torch.zeros(20, dtype=torch.float64), problem.L
    for K, eta_g, c in ((1, 0.5, 0.9), (4, 1.0, 0.9), (2, 0.3, 0.95)):
        lr_max = 0.7 * (2 * c - eta_g) / (K * L)
        xs, _, steps = _searched(
            problem, make(lr_max=lr_max, c=c, reset="max", server_lr=eta_g), zero, T, local_steps=K
        )
        least = min(s.eta for s in steps)
        bound = c * float(sq(star)) / ((2 * c - eta_g - K * L * lr_max) * eta_g * least * K * T)
        share = problem.gap(torch.stack(xs[:T]).mean(0)) / bound
        yield f"K = {K}, eta_g = {eta_g}, c = {c}: f at the mean iterate, share of its bound", share, "<=", 1
        worst = max(float(sq(new - star) / sq(old - star)) for old, new in pairwise(xs))
        yield f"K = {K}, eta_g = {eta_g}, c = {c}: largest ratio of |w - w*|^2 in a round", worst, "<", 1


@law("FedSLS Thm 4")
def non_convex(make: Recipe = fedsls) -> Iterator[Measured]:
    """Non-convex: min |grad f|^2 <= 2 L (lr_max L K + eta_g) (f_0 - f*) / c, if T is large enough for lr_max.

    Only settings with lr_max L K + eta_g < c are checked: in others L-smoothness alone implies the bound.
    """
    problem = random_least_squares(clients=4, samples=3, d=20, common=True, mean=True)
    star, L = _nearest(problem), problem.L
    x0 = near(star, distance=0.5)
    yield "robust regression: least curvature at the start", least_curvature(problem, robust, x0), "<", 0
    for K, eta_g, c in ((1, 0.3, 0.9), (3, 0.2, 0.8)):
        lr_max = 0.3 / (K * L)
        T = next(t for t in range(1, 10**6) if lr_max >= _threshold(t, c, eta_g, K, L))
        algorithm = make(lr_max=lr_max, c=c, reset="max", server_lr=eta_g)
        xs, _ = iterates(problem, x0, algorithm, T, robust, local_steps=K)
        f, slope = descent(problem, robust, xs)
        bound = 2 * L * (lr_max * L * K + eta_g) / c * f[0]
        yield (
            f"K = {K}, eta_g = {eta_g}, c = {c}, T = {T}: min |grad f|^2, share of its bound",
            min(slope[:T]) / bound,
            "<=",
            1,
        )


def _threshold(T: int, c: float, eta_g: float, K: int, L: float) -> float:
    a, b = 8 * c / (2 * T - 1), eta_g**2 * L * K
    return a / (b + sqrt(b**2 + eta_g * L**2 * K**2 * 2 * a))


@law("FedSLS Thm 5, 6")
def extrapolated(make: Recipe = fedexpsls) -> Iterator[Measured]:
    """FedExpSLS: the rates with the accepted steps and the actual eta_g, each in [1, cap]."""
    for name, problem in {
        "strongly convex": _common(),
        "convex": random_least_squares(clients=6, samples=2, d=20, common=True, mean=True),
    }.items():
        star = _nearest(problem)
        zero, L, T = torch.zeros_like(star), problem.L, 15
        for K, c in ((1, 0.9), (3, 0.9)):
            lr_max = 0.5 * (2 * c - 1) / (K * L)
            algorithm = make(lr_max=lr_max, c=c, reset="max", eps=0.0, server_lr_max=4.0)
            xs, run, steps = _searched(problem, algorithm, zero, T, local_steps=K)
            least, eta = min(s.eta for s in steps), run.history["server_step"]
            if name == "strongly convex":
                over = [n * least * problem.mu * K / 2 for n in eta]
                worst = max(
                    float(sq(b - star) / sq(a - star)) / (1 - o) for (a, b), o in zip(pairwise(xs), over, strict=True)
                )
                yield f"{name}, K = {K}: ratio of |w - w*|^2 in a round, share of its bound", worst, "<=", 1  # thm 6
            bound = c * float(sq(star)) / ((2 * c - lr_max * K * L - 1) * least * K * sum(eta))
            mean = torch.stack([n * x for n, x in zip(eta, xs, strict=False)]).sum(0) / sum(eta)
            yield (
                f"{name}, K = {K}: f at the mean iterate, share of its bound",
                problem.gap(mean) / bound,
                "<=",
                1,
            )  # thm 5
            yield f"{name}, K = {K}: least eta_g", min(eta), ">=", 1
            yield f"{name}, K = {K}: largest eta_g", max(eta), "<=", 4
    yield "convex: largest eta_g, above 1 if there was anything to extrapolate", max(eta), ">", 1


@law("FedSLS Alg. 3")
def starts(make: Recipe = fedsls) -> Iterator[Measured]:
    """Searches start at lr_max, or at the last step, or at growth^(b/n) times it; and take the first step that passes."""
    problem = random_least_squares(clients=3, samples=8, d=6)
    x0, c, growth, back = torch.ones(6, dtype=torch.float64), 0.3, 3.0, 0.7

    def passes(s: Taken, eta: float) -> bool:
        A, b = problem.clients[s.client]
        return float(problem.loss(A @ (s.y - eta * s.g), b)) <= s.loss - c * eta * float(sq(s.g))

    for reset, batch in product(("max", "keep", "grow"), (None, 2)):
        algorithm = make(lr_max=1.0, c=c, backtrack=back, reset=reset, growth=growth)
        _, _, steps = _searched(problem, algorithm, x0, 3, local_steps=6, batch_size=batch)
        off, missed, last = [], 0, dict.fromkeys([(s.round, s.client) for s in steps], 0.0)
        for s in steps:
            before = last[s.round, s.client]
            later = {"max": 1.0, "keep": before, "grow": min(1.0, growth ** ((batch or 8) / 8) * before)}[reset]
            start, last[s.round, s.client] = later if before else 1.0, s.eta
            trials = log(s.eta / start) / log(back)  # backtracks: whole and not negative
            off.append(abs(trials - max(0, round(trials))))
            missed += batch is None and not (passes(s, s.eta) and (round(trials) == 0 or not passes(s, s.eta / back)))
        setting = f"reset {reset!r}, " + ("full batches" if batch is None else f"batches of {batch}")
        yield f"{setting}: distance of the backtracks to a whole number", max(off), "<=", 1e-9
        yield f"{setting}: steps of different sizes", len({round(s.eta, 9) for s in steps}), ">", 1
        if batch is None:
            yield f"{setting}: steps that are not the first to pass", missed, "<=", 0


@law("FedSLS Alg. 3")
def searches_that_fail(make: Recipe = fedsls) -> Iterator[Measured]:
    """The first of 100 trials that passes, else a step of 1e-6; no move where |g| < 1e-8, and searches go on after it."""
    one = torch.ones(1, 1, dtype=torch.float64)
    for reset in ("max", "keep", "grow"):
        wrong = []
        for curvature, residual in ((1.0, 1.0), (4e3, 1.0), (9e4, 1.0), (1.0, 1e-6), (1.0, 1e-9)):
            problem = LeastSquares([curvature**0.5 * one], [0 * one[0]])
            algorithm = make(lr_max=1.0, c=0.3, reset=reset)
            _, _, (s,) = _searched(problem, algorithm, residual * one[0], 1, local_steps=1)
            enough = 2 * (1 - 0.3) / curvature  # on f = curvature x^2 / 2
            eta = next((0.9**k for k in range(100) if 0.9**k <= enough), 1e-6) if residual > 1e-8 else 0.0
            wrong.append(abs(s.eta - eta) + abs(float(s.move + s.eta * s.g)))
        yield f"reset {reset!r}: distance of a step to the first that passes, or to 1e-6 or 0", max(wrong), "<=", 1e-12
        zero = torch.zeros(2, dtype=torch.float64)
        _, _, steps = _searched(half_solved(), make(reset=reset), zero, 1, local_steps=2, batch_size=1)
        least = min(s.eta for s in steps if float(sq(s.g)) > 0)
        yield f"reset {reset!r}: least step beside batches without gradient", least, ">", 0.5
