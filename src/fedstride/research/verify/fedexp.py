"""Laws of FedExP: extrapolation speeds up averaging, approaches w*, and needs eps without a common minimiser.

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023 (FedExP).
Deviations: the linear regression of app. D.2 has rows of A and vectors b_i of norm 1, as in the authors' notebook. Its
figures are compared only in magnitude: the data are drawn anew, and FedExP is chaotic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedexp
from fedstride.client.step import Constant, Polyak
from fedstride.core.rows import Vec, sq
from fedstride.engine import Local
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    descent,
    iterates,
    least_curvature,
    near,
    random_least_squares,
    robust,
    value_and_slope,
)
from fedstride.research.verify.recorders import RecordedServer
from fedstride.server import FedExP, FedExPM, Server

ROUNDING = 1e-12  # relative rounding error of a float64 run


def synthetic(seed: int = 1, clients: int = 20, samples: int = 30, d: int = 1000) -> LeastSquares:
    """Return the problem of FedExP app. D.2, normalised as in the authors' notebook."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    A, b = [], []
    for _ in range(clients):
        u, y = 0.1 * normal(1), 0.1 * normal(1)
        m, w = u + normal(d), y + normal(d)
        rows = m + normal(samples, d)
        A.append(rows / rows.norm(dim=1, keepdim=True))
        b.append(rows @ w / (rows @ w).norm())
    return LeastSquares(A, b)


def toy() -> LeastSquares:
    """F_1 = (3 w1 + w2 - 3)^2, F_2 = (w1 + w2 - 3)^2; both vanish at w* = (0, 3)."""  # FedExP eq. (12)
    A = [torch.tensor([[3.0, 1.0]], dtype=torch.float64), torch.tensor([[1.0, 1.0]], dtype=torch.float64)]
    b = torch.tensor([3.0], dtype=torch.float64)
    return LeastSquares([2**0.5 * a for a in A], [2**0.5 * b, 2**0.5 * b])  # the loss is half a square


def zeros(problem: LeastSquares) -> Vec:
    return torch.zeros(problem.A[0].shape[1], dtype=torch.float64)


@law("FedExP App. D.2")
def linear_regression(rounds: int = 50) -> Iterator[Measured]:
    """|Aw - b|^2 / 20 after 50 rounds of 20 full-batch steps has the magnitude of the authors' notebook."""
    problem = synthetic()
    A, b = torch.cat(list(problem.A)), torch.cat(list(problem.b))
    table: dict[str, tuple[Algorithm, float, float]] = {
        "FedExP, eps = 0": (fedexp(lr=0.1, eps=0.0), 1e-5, 2),
        "FedAvg, eta_g = 1": (fedavg(lr=0.1), 0.147, math.log10(3)),
        "FedAvg, eta_g = 10": (fedavg(lr=0.1, server_lr=10.0), 3.3e-3, math.log10(3)),
    }
    final = []
    for name, (algorithm, figure, off) in table.items():
        run = iterates(problem, zeros(problem), algorithm, rounds, local_steps=20, engine=Local(chunk=10))[1]
        final.append(float(sq(A @ run.x - b)) / 20)
        orders = abs(math.log10(final[-1] / figure))
        yield f"{name}: orders of magnitude from {figure:g} at round 50", orders, "<=", off
    yield "loss of FedExP over that of the best FedAvg at round 50", final[0] / min(final[1:]), "<", 0.1


@law("FedExP eq. (12)")
def oscillation(server: Server | None = None) -> Iterator[Measured]:
    """Exact projections: the distance to w* falls in every round, F does not, and the mean of two iterates helps."""
    problem, solution = toy(), torch.tensor([0.0, 3.0], dtype=torch.float64)
    exact = Algorithm(Polyak(c=0.5), server or FedExP(eps=0.0, exact=True))  # one such step projects exactly
    for start in ((1.0, -1.0), (2.0, 3.5), (-2.0, -2.0), (0.0, 0.0)):
        xs, _ = iterates(problem, torch.tensor(start, dtype=torch.float64), exact, 10, local_steps=1)
        distance = [float((x - solution).norm()) for x in xs]
        F = [problem.gap(x) for x in xs]
        largest = max(new / old for old, new in pairwise(distance))
        yield f"from {start}: largest ratio of |w - w*|", largest, "<=", 1 + ROUNDING
        yield f"from {start}: rounds in which F rises", sum(new > old for old, new in pairwise(F)), ">=", 1
        halfway = [problem.gap((x + y) / 2) for x, y in pairwise(xs[1:])]  # w_0 is not an iterate of FedExP
        yield (
            f"from {start}: sum of F at means of two iterates over that at iterates",
            sum(halfway) / sum(F[2:]),
            "<",
            1,
        )


@law("FedExP eq. (6)")
def approximate_projection(step: float = 1.0, server: Server | None = None) -> Iterator[Measured]:
    """Lemma 1: with a common minimiser and lr <= 1/L, local models are nearer to w* on average than the global one.

    It follows from the server's values: mean |w_i - w*|^2 - |w - w*|^2 = S - 2 <w - w*, Dbar>.
    """
    wide = random_least_squares(clients=5, samples=4, d=30, common=True)
    tall = random_least_squares(clients=5, samples=20, d=6, common=True)
    for name, problem in {"30 unknowns, 20 equations": wide, "6 unknowns, 100 equations": tall}.items():
        # Use the minimiser nearest to w_0 = 0; lemma 1 holds for all of them.
        solution = torch.linalg.pinv(torch.cat(list(problem.A))) @ torch.cat(list(problem.b))
        eye = RecordedServer(server or FedExP(eps=0.0))
        xs, _ = iterates(problem, zeros(problem), Algorithm(Constant(step / problem.L), eye), 15, local_steps=5)
        excess, against, closer = [], [], []
        for (x, update, square), new in zip(eye.seen, xs[1:], strict=True):
            before, averaged, after = (float((w - solution).norm()) for w in (x, x - update, new))
            excess.append(float(square - 2 * (x - solution) @ update) / before**2)
            against.append(after / averaged)
            closer.append(after / before)
        yield f"{name}: largest (mean |w_i - w*|^2 - |w - w*|^2) / |w - w*|^2", max(excess), "<=", ROUNDING
        yield f"{name}: largest ratio of |w - w*| to that after FedAvg's step", max(against), "<=", 1 + ROUNDING
        yield f"{name}: largest ratio of |w - w*| to that before the round", max(closer), "<=", 1 + ROUNDING


@law("FedExP eq. (9)")
def server_step(server: type[FedExP] = FedExP) -> Iterator[Measured]:
    """eta_g is never below 1: for identical and different clients, for any eps, and at the minimiser."""
    unlike, like = random_least_squares(), random_least_squares(clients=1)
    same = LeastSquares([like.A[0]] * 3, [like.b[0]] * 3)
    for name, problem, x0 in (
        ("unlike clients", unlike, zeros(unlike)),
        ("like clients", same, zeros(same)),
        ("at the minimiser", same, same.minimiser),
    ):
        for eps in (0.0, 1e-3, 10.0):
            algorithm = Algorithm(Constant(0.5 / problem.L), server(eps=eps))
            run = iterates(problem, x0, algorithm, 10, local_steps=3)[1]
            yield f"{name}, eps = {eps:g}: least eta_g", min(run.history["server_step"]), ">=", 1


@law("FedExP Sec. 3")
def blow_up(make: Callable[..., Algorithm] = fedexp) -> Iterator[Measured]:
    """Without a common minimiser Dbar vanishes and S does not, so with eps = 0 eta_g grows without bound."""
    apart, common = random_least_squares(), random_least_squares(common=True)

    def largest(problem: LeastSquares, eps: float) -> float:
        run = iterates(problem, zeros(problem), make(0.5 / problem.L, eps), 40, local_steps=5)[1]
        return max(float(row["server_step"]) for row in run.history)

    yield "no common minimiser, eps = 0: largest eta_g", largest(apart, 0.0), ">", 100
    yield "no common minimiser, eps = 1: largest eta_g", largest(apart, 1.0), "<", 10
    yield "a common minimiser, eps = 0: largest eta_g", largest(common, 0.0), "<", 10


@law("FedExP eq. (9)")
def by_hand(server: type[FedExP] = FedExP) -> Iterator[Measured]:
    """Four clients with orthogonal updates of lengths 1 to 4: eta_g is a number that a hand can compute."""
    eye = torch.eye(4, dtype=torch.float64)
    clients = [(i + 1) * torch.ones(n, dtype=torch.float64) for i, n in enumerate((4, 2, 1, 1))]
    problem = LeastSquares([eye[i].repeat(len(b), 1) for i, b in enumerate(clients)], clients, mean=True)
    # one step of size 1 from 0: Delta_i = -(i + 1) e_i. Uniform: S = 30/4, |Dbar|^2 = 30/16. By samples, p = 1/2, 1/4,
    # 1/8, 1/8: S = 1/2 + 4/4 + 9/8 + 16/8 = 37/8, |Dbar|^2 = 1/4 + 4/16 + 9/64 + 16/64 = 57/64.
    for weights, S, D in (("uniform", 30 / 4, 30 / 16), ("samples", 37 / 8, 57 / 64)):
        for eps, exact, cap, by_definition in (
            (0.0, False, None, S / (2 * D)),
            (0.1, False, None, S / (2 * (D + 0.1))),
            (0.1, True, None, S / (D + 0.1)),
            (0.0, False, 1.5, 1.5),
            (10.0, False, None, 1.0),
        ):
            algorithm = Algorithm(Constant(1.0), server(eps, cap, exact))
            run = iterates(problem, zeros(problem), algorithm, 1, local_steps=1, weights=weights)[1]
            setting = f"{weights} weights, eps = {eps:g}" + ", exact" * exact + f", cap {cap}" * (cap is not None)
            off = abs(run.history["server_step"][0] - by_definition)
            yield f"{setting}: |eta_g - {by_definition:.6g}|", off, "<=", ROUNDING


@law("FedExP Thm 1")
def convex(make: Callable[..., Algorithm] = fedexp) -> Iterator[Measured]:
    """Convex, lr <= 1/(6 tau L): eq. (54) in every round, and its sum over the rounds, eq. (55)."""
    for name, problem in {
        "different minimisers": random_least_squares(),
        "a common minimiser": random_least_squares(clients=5, samples=4, d=30, common=True),
    }.items():
        L, tau, T, star = problem.L, 4, 25, _nearest(problem)
        lr = 1 / (6 * tau * L)
        noise = sum(float(sq(A.T @ (A @ star - b))) for A, b in problem.clients) / len(problem.A)  # sigma_*^2
        xs, run = iterates(problem, zeros(problem), make(lr=lr, eps=0.0), T, local_steps=tau)
        eta, F = run.history["server_step"], [problem.gap(x) for x in xs]
        e = [float(sq(x - star)) for x in xs]
        floor = 3 * lr**2 * tau**2 * noise + 12 * lr**3 * tau**2 * (tau - 1) * L * noise
        worst = max((e[t + 1] - e[t] + eta[t] * (lr * tau / 3 * F[t] - floor)) / e[t] for t in range(T))
        yield f"{name}: largest lack of a round's decrease of |w - w*|^2, relative", worst, "<=", ROUNDING  # eq. (54)
        bound = 3 * e[0] / (sum(eta) * lr * tau) + 9 * lr * tau * noise + 36 * lr**2 * tau * (tau - 1) * L * noise
        mean = sum(n * f for n, f in zip(eta, F[:T], strict=True)) / sum(eta)
        yield f"{name}: weighted mean of F - F*, share of its bound", mean / bound, "<=", 1  # eq. (55)


def _nearest(problem: LeastSquares) -> Vec:
    """Return the minimiser of F that is nearest to 0."""
    solution: Vec = torch.linalg.pinv(torch.cat(list(problem.A))) @ torch.cat(list(problem.b))
    return solution


@law("FedExP Thm 2")
def non_convex(make: Callable[..., Algorithm] = fedexp) -> Iterator[Measured]:
    """Non-convex, lr <= 1/(6 tau L): F falls as in eq. (75), with its evident signs, and the sum is eq. (76)."""
    problem = random_least_squares(d=4, mean=True)
    L, tau, T, x0 = problem.L, 4, 25, near(problem.minimiser)
    yield "robust regression: least curvature at the start", least_curvature(problem, robust, x0), "<", 0
    lr = 1 / (6 * tau * L)
    xs, run = iterates(problem, x0, make(lr=lr, eps=0.0), T, robust, local_steps=tau)
    (F, slope), eta = descent(problem, robust, xs), run.history["server_step"]
    spread = max(_variance(problem, x) for x in xs)  # sigma_g^2 at the points that the proof needs it for
    floor = 3 * lr * tau * L * spread + 5 * lr**2 * L**2 * tau * (tau - 1) * spread
    worst = max((F[t + 1] - F[t] + eta[t] * lr * tau * (slope[t] / 8 - floor)) / F[t] for t in range(T))
    yield "largest lack of a round's decrease of F, relative", worst, "<=", ROUNDING  # eq. (75)
    bound = 8 * F[0] / (sum(eta) * lr * tau) + 8 * floor  # F >= 0
    mean = sum(n * g for n, g in zip(eta, slope[:T], strict=True)) / sum(eta)
    yield "weighted mean of |grad F|^2, share of its bound", mean / bound, "<=", 1  # eq. (76)
    least = min((F[t] - F[t + 1]) / (eta[t] * lr * tau * slope[t]) for t in range(T))
    yield "least decrease of F over eta_g lr tau |grad F|^2, above 1/8 without the floor", least, ">=", 1 / 8


def _variance(problem: LeastSquares, x: Vec) -> float:
    """Return the mean of |grad F_i - grad F|^2 for the robust loss."""
    one = [LeastSquares([A], [b], mean=True) for A, b in problem.clients]
    G = torch.stack([value_and_slope(p, robust, x)[1] for p in one])
    return float(sq(G - G.mean(0)).mean())


@law("FedExP Lemma 11")
def momentum(server: Callable[[float, float], Server] = FedExPM) -> Iterator[Measured]:
    """FedExP-M with exact projections: <w - w*, v> >= s, so its step is at most half of the best one."""
    problem = random_least_squares(clients=5, samples=1, d=12, common=True)
    for beta in (0.5, 0.9):
        eye = RecordedServer(server(0.0, beta))
        xs, run = iterates(problem, zeros(problem), Algorithm(Polyak(c=0.5), eye), 20, local_steps=1)
        star, v, s = _nearest(problem), zeros(problem), 0.0
        ahead, best = [], []
        for (x, D, S), eta in zip(eye.seen, run.history["server_step"], strict=True):
            v, s = D + beta * v, float(S) + beta / 2 * s
            product = float((x - star) @ v)
            ahead.append(product / s)
            best.append(eta * float(sq(v)) / product)
        yield f"beta = {beta}: least <w - w*, v> / s", min(ahead), ">=", 1 - 1e-6  # eq. (109)
        yield f"beta = {beta}: largest eta_g over the best one", max(best), "<=", 1 / 2 + 1e-6  # eq. (110)
        closer = max(float((b - star).norm() / (a - star).norm()) for a, b in pairwise(xs))
        yield f"beta = {beta}: largest ratio of |w - w*| in a round", closer, "<", 1
