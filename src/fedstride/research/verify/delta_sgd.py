"""Laws of Delta-SGD: a Lyapunov function that does not increase, and steps that follow the smoothness.

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: theorem 5 is about eq. (4), with gamma = delta = 1, one local step per round, and steps that carry over from
round to round, while algorithm 1 restarts them. It is therefore checked on one client with many local steps in a single
round, where both are the same, and on many clients with a step part that carries its state over the rounds. There,
x_t^i is the client's own model before averaging. The paper's proof treats it as the averaged one, so for different
clients the inequality is checked as printed, without a complete proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import delta_sgd
from fedstride.client.context import Context
from fedstride.client.step import DeltaSGD
from fedstride.core.losses import Loss
from fedstride.core.rows import Col, Rows, State, Vec, sq
from fedstride.engine import Local
from fedstride.oracle import Oracle
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    half_mean_square,
    half_sum_square,
    iterates,
    near,
    random_least_squares,
)

ROUNDING = 1e-12  # relative rounding error of a float64 run


@dataclass(frozen=True)
class Note:
    """The state of a client at one step."""

    y: Vec
    loss: float
    eta: float
    theta: float
    moved: float  # |y_k - y_(k-1)|^2


@dataclass(frozen=True)
class Carried:
    """Delta-SGD whose steps carry over the rounds, with a record of each. For engines with one client per chunk."""

    rule: DeltaSGD
    kept: dict[int, State] = field(default_factory=dict)
    notes: dict[int, list[Note]] = field(default_factory=dict)

    def init(self, x: Vec, context: Context) -> State:
        (client,) = context.clients
        return self.kept.get(client) or {**self.rule.init(x, context), "client": torch.full_like(context.size, client)}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        move = self.rule.step(W, L, G, state, oracle)
        client = int(state["client"])
        note = Note(W[0].clone(), float(L), float(state["eta"]), float(state["theta"]), float(sq(move)))
        self.notes.setdefault(client, []).append(note)
        self.kept[client] = dict(state)
        return move


def log_cosh(output: Tensor, target: Tensor) -> Tensor:
    """log cosh r, averaged over the samples: convex, 1-smooth, and almost linear far away."""
    r = output - target
    return (torch.logaddexp(r, -r) - math.log(2)).mean()


def lyapunov(notes: dict[int, list[Note]], solution: Vec) -> list[float]:
    """Return the Lyapunov function, eq. (5), from the second step on; every f_i is 0 at the solution."""
    m = len(notes)
    values = []
    for now in zip(*(pairwise(own) for own in notes.values()), strict=True):
        distance = float(sq(now[0][1].y - solution))
        moved = sum(old.moved for old, _ in now) / (2 * m)
        ahead = 2 / m * sum(new.eta * new.theta * old.loss for old, new in now)
        values.append(distance + moved + ahead)
    return values


@law("Delta-SGD eq. (5)")
def lyapunov_function(rule: DeltaSGD | None = None) -> Iterator[Measured]:
    """Full batches, full participation, convex f_i with a common minimiser: the Lyapunov function never increases."""
    losses: dict[str, Loss] = {"least squares": half_mean_square, "log cosh": log_cosh}
    one, unlike = (random_least_squares(m, 12, 4, common=True, mean=True, condition=20) for m in (1, 4))
    settings = {
        "1 client, 25 local steps": (one, 1, 25),
        "4 like clients, 25 rounds": (LeastSquares([one.A[0]] * 4, [one.b[0]] * 4, mean=True), 25, 1),
        "4 unlike clients, 25 rounds": (unlike, 25, 1),
    }
    for kind, loss in losses.items():
        for name, (problem, rounds, steps) in settings.items():
            solution = problem.minimiser
            eye = Carried(rule or DeltaSGD(lr0=0.01, gamma=1.0, delta=1.0))
            iterates(problem, near(solution), Algorithm(eye), rounds, loss, local_steps=steps, engine=Local(chunk=1))
            V = lyapunov(eye.notes, solution)
            largest = max(new / old for old, new in pairwise(V))
            yield f"{kind}, {name}: largest ratio of the Lyapunov function", largest, "<=", 1 + ROUNDING


def grown(rule: DeltaSGD, notes: list[Note]) -> list[float]:
    """Return eta_k over its second bound, sqrt(1 + delta theta_(k-1)) eta_(k-1), for k >= 2."""
    etas = [rule.lr0, *(note.eta for note in notes)]
    three = zip(etas, etas[1:], etas[2:], strict=False)
    return [new / (math.sqrt(1 + rule.delta * last / before) * last) for before, last, new in three]


@law("Delta-SGD Alg. 1")
def step_sizes(rule: type[DeltaSGD] = DeltaSGD) -> Iterator[Measured]:
    """The first step has its printed value, and gamma / (2 L) bounds later ones from below unless lr0 is smaller."""
    problem = random_least_squares(clients=2, samples=10, d=4, mean=True)
    x0 = torch.zeros(4, dtype=torch.float64)
    run = iterates(problem, x0, delta_sgd(), 1, local_steps=1)[1]
    yield "eta_1 with the defaults", run.history["client_step"][0], ">=", 0.20976
    yield "eta_1 with the defaults", run.history["client_step"][0], "<=", 0.20977
    for name, batch, L in (("full batch", None, problem.L), ("batches of 3", 3, problem.L_component)):
        for lr0 in (1e-3, 10.0):
            eye = Carried(rule(lr0=lr0))
            iterates(problem, x0, Algorithm(eye), 1, local_steps=25, batch_size=batch, engine=Local(chunk=1))
            floor = min(eye.rule.gamma / (2 * L), lr0)
            least = min(note.eta for own in eye.notes.values() for note in own) / floor
            yield f"{name}, lr0 = {lr0:g}: least eta_k / min{{gamma / (2 L), lr0}}", least, ">=", 1 - ROUNDING
            growth = max(max(grown(eye.rule, own)) for own in eye.notes.values())
            yield (
                f"{name}, lr0 = {lr0:g}: largest eta_k / (sqrt(1 + delta theta) eta_(k-1))",
                growth,
                "<=",
                1 + ROUNDING,
            )
            if batch is None:
                later = max(note.eta for own in eye.notes.values() for note in own[1:])
                ceiling = later * 2 * problem.mu / eye.rule.gamma
                yield f"{name}, lr0 = {lr0:g}: largest eta_k 2 mu / gamma, k >= 2", ceiling, "<=", 1 + ROUNDING


@law("Delta-SGD Alg. 1")
def no_difference(rule: type[DeltaSGD] = DeltaSGD) -> Iterator[Measured]:
    """Equal gradients, or a client that does not move, give no bound: the step grows as allowed and is never NaN."""
    line = LeastSquares([torch.ones(1, 2, dtype=torch.float64)], [torch.zeros(1, dtype=torch.float64)])
    x0 = torch.zeros(2, dtype=torch.float64)
    for reuse in (False, True):
        name = "reuse_gradient" if reuse else "two gradients a step"
        for where, loss in (("a linear loss", _linear), ("at the minimiser", half_sum_square)):
            eye = Carried(rule(reuse_gradient=reuse))
            iterates(line, x0, Algorithm(eye), 1, loss, local_steps=5, engine=Local(chunk=1))
            off = sum(abs(ratio - 1) for ratio in grown(eye.rule, eye.notes[0]))  # unlike max, a sum shows every NaN
            yield f"{where}, {name}: deviations from the growth allowed", off, "<=", ROUNDING


def _linear(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mean()
