"""Laws of FedExP: extrapolation speeds up averaging, approaches w*, and needs eps without a common minimiser.

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023 (FedExP).
Deviations: the linear regression of app. D.2 has rows of A and vectors b_i of norm 1, as in the authors' notebook. Its
figures are compared only in magnitude: the data are drawn anew, and FedExP is chaotic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedexp
from fedstride.client.step import Constant, Polyak
from fedstride.core.rows import State, Vec, sq
from fedstride.engine import Local
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import LeastSquares, iterates, random_least_squares
from fedstride.server import FedExP, Server
from fedstride.wire import Mean

ROUNDING = 1e-12  # relative rounding error of a float64 run


@dataclass(frozen=True)
class RecordedServer:
    """A server rule that records x, Dbar and S of every round."""

    rule: Server
    seen: list[tuple[Vec, Vec, Tensor]] = field(default_factory=list)
    needs: ClassVar[tuple[str, ...]] = ("square",)

    def init(self, x: Vec) -> State:
        return self.rule.init(x)

    def broadcast(self, state: State) -> State:
        return self.rule.broadcast(state)

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        self.seen.append((x, mean.update, mean.square))
        return self.rule.step(x, mean, state)

    def output(self, x: Vec, state: State) -> Vec:
        return self.rule.output(x, state)


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
