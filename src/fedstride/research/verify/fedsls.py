"""Laws of FedSLS: guarantees of Armijo's line search for a step, a round and a run.

Federated stochastic line search (FedSLS); lemma 6 is lemma 1 of Vaswani et al. Painless stochastic gradient. NeurIPS 2019.
Deviations: lemma 6 is checked in its version for a grid, multiplied by backtrack (FedSLS app. E, remark 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

import torch
from torch.nn.utils import parameters_to_vector

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedexp, fedexpsls, fedsls
from fedstride.client.context import Context
from fedstride.client.drift import Scaffold
from fedstride.client.step import Armijo, Step
from fedstride.client.step.armijo import TINY
from fedstride.core.rows import Col, Rows, State, Vec, norm, sq
from fedstride.engine import Local
from fedstride.oracle import Oracle
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import LeastSquares, iterates, random_least_squares
from fedstride.server import Average

ROUNDING = 1e-12  # relative rounding error of a float64 run


@dataclass(frozen=True)
class Search:
    """One line search of one client."""

    start: float  # first trial step
    eta: float  # accepted step
    square: float  # |g|^2
    before: float  # loss before the step
    after: float  # loss after the step


@dataclass(frozen=True)
class RecordedSearch:
    """A line search that records its results."""

    rule: Step
    seen: list[Search] = field(default_factory=list)

    def init(self, x: Vec, context: Context) -> State:
        return self.rule.init(x, context)

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        start = state["start"].clone()
        move = self.rule.step(W, L, G, state, oracle)
        columns = (start, state["eta"], sq(G), L, oracle.loss(W + move))
        self.seen.extend(Search(*row) for row in torch.cat(columns, 1)[norm(G)[:, 0] >= TINY].tolist())
        return move


def toy() -> LeastSquares:
    """F_1 = (w1 + w2 - 3)^2, F_2 = (w1 + 2 w2 - 3)^2."""  # FedSLS fig. 1
    A = [torch.tensor([[1.0, 1.0]], dtype=torch.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64)]
    b = torch.tensor([3.0], dtype=torch.float64)
    return LeastSquares([2**0.5 * a for a in A], [2**0.5 * b, 2**0.5 * b])  # the loss is half a square


@law("FedSLS Fig. 1")
def figure_1(make: Callable[..., Algorithm] = fedsls) -> Iterator[Measured]:
    """The final F of two clients with ten local steps: FedExpSLS < FedExP < FedSLS < FedAvg."""
    problem, x0 = toy(), torch.tensor([0.24, 1.0], dtype=torch.float64)
    order = {
        "FedAvg": fedavg(lr=0.01),
        "FedSLS": make(lr_max=1.0, c=0.1),
        "FedExP": fedexp(lr=0.01, eps=0.0),
        "FedExpSLS": fedexpsls(lr_max=1.0, c=0.1, eps=0.0),
    }
    final: dict[str, float] = {}
    for better, algorithm in order.items():
        model = iterates(problem, x0, algorithm, 50, local_steps=10, engine=Local(chunk=2))[1].model
        F = problem.gap(parameters_to_vector(model.parameters()).detach())
        for worse in list(final)[-1:]:
            yield f"F of {better} over F of {worse} after 50 rounds", F / final[worse], "<", 1
        final[better] = F


@law("FedSLS Thm 3")
def linear_convergence(step: type[Armijo] = Armijo) -> Iterator[Measured]:
    """|w - w*|^2 shrinks by 1 - eta_g lr_max mu K / 2 per round, if all clients share a minimiser."""
    problem = random_least_squares(clients=6, samples=20, d=5, common=True, mean=True)
    solution, L, mu = problem.minimiser, problem.L, problem.mu
    x0 = solution + torch.ones(5, dtype=torch.float64)
    for K, eta_g, c in ((2, 1.0, 0.9), (5, 0.5, 0.6), (1, 0.2, 0.5)):
        lr_max = 0.999 * (2 * c - eta_g) / (K * L)  # then eta_g <= 2 / (lr_max mu K) too, because mu <= L
        algorithm = Algorithm(step(lr_max, c, reset="max"), Average(eta_g))
        bound = 1 - eta_g * lr_max * mu * K / 2
        xs, _ = iterates(problem, x0, algorithm, 10, local_steps=K)
        ratio = max(float(sq(new - solution) / sq(old - solution)) for old, new in pairwise(xs))
        setting = f"K = {K}, eta_g = {eta_g}, c = {c}"
        yield f"{setting}: largest ratio of |w - w*|^2 in a round", ratio, "<=", bound
        ends = [iterates(problem, x0, algorithm, 5, local_steps=K, cohort=2, seed=s)[0][-1] for s in range(8)]
        mean = fmean(float(sq(x - solution) / sq(x0 - solution)) for x in ends)
        yield f"{setting}, 2 of 6 clients: mean of |w_5 - w*|^2 / |w_0 - w*|^2 over seeds", mean, "<=", bound**5


def searches(rule: Step, drift: Scaffold | None = None) -> list[Search]:
    """Return all searches of a run on batches of one sample; all samples have norm 2, so every batch has L = 4."""
    drawn = random_least_squares(clients=3, samples=10, d=8)
    problem = LeastSquares([2 * A / A.norm(dim=1, keepdim=True) for A in drawn.A], drawn.b)
    eye = RecordedSearch(rule)
    x0 = torch.zeros(8, dtype=torch.float64)
    iterates(problem, x0, Algorithm(eye, drift=drift), 8, local_steps=5, batch_size=1)
    return eye.seen


@law("FedSLS Lemma 6")
def accepted_steps(step: type[Armijo] = Armijo) -> Iterator[Measured]:
    """Every accepted step is long enough, short enough, and satisfies Armijo's condition on the searched loss."""
    for reset in ("max", "grow", "keep"):
        for drift in (None, Scaffold()):
            rule = step(lr_max=1.0, c=0.3, backtrack=0.7, reset=reset)
            seen, L = searches(rule, drift), 4.0
            setting = f"reset {reset!r}" + (", SCAFFOLD" if drift else "")
            least = min(s.eta / (rule.backtrack * min(2 * (1 - rule.c) / L, s.start)) for s in seen)
            yield f"{setting}: least eta / (backtrack min{{2 (1 - c) / L, start}})", least, ">=", 1 - ROUNDING
            lack = max((s.after - s.before + rule.c * s.eta * s.square) / (1 + abs(s.before)) for s in seen)
            yield f"{setting}: largest f(y - eta g) - f(y) + c eta |g|^2", lack, "<=", ROUNDING
            steps = [s.eta / rule.lr_max for s in seen]
            yield f"{setting}: largest eta / lr_max", max(steps), "<=", 1
            yield f"{setting}: least eta / lr_max, below 1 if the search was put to the test", min(steps), "<", 1
