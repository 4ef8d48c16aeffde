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
    descent,
    half_mean_square,
    half_solved,
    half_sum_square,
    iterates,
    least_curvature,
    linear,
    near,
    random_least_squares,
    robust,
    value_and_slope,
)
from fedstride.research.verify.recorders import RecordedStep, Watched

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
    first = run.history["client_step"][0]
    yield (
        "eta_1 with the defaults, by hand 0.2 sqrt(1.1) = 0.20976: distance",
        abs(first - 0.2 * math.sqrt(1.1)),
        "<=",
        ROUNDING,
    )
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
        for where, loss in (("a linear loss", linear), ("at the minimiser", half_sum_square)):
            eye = Carried(rule(reuse_gradient=reuse))
            iterates(line, x0, Algorithm(eye), 1, loss, local_steps=5, engine=Local(chunk=1))
            off = sum(abs(ratio - 1) for ratio in grown(eye.rule, eye.notes[0]))  # unlike max, a sum shows every NaN
            yield f"{where}, {name}: deviations from the growth allowed", off, "<=", ROUNDING
    eye = Carried(rule(reuse_gradient=True))
    iterates(half_solved(), x0, Algorithm(eye), 1, local_steps=2, batch_size=1, engine=Local(chunk=1))
    least = min(note.eta for notes in eye.notes.values() for note in notes)
    yield "beside batches without gradient, reuse_gradient: least step", least, ">", 0


@law("Delta-SGD Alg. 1")
def one_curvature(rule: type[DeltaSGD] = DeltaSGD) -> Iterator[Measured]:
    """On f = L |x|^2 / 2 the step reaches gamma / (2 L), from below as fast as allowed, from above at once."""
    L = 4.0
    bowl = LeastSquares([L**0.5 * torch.eye(2, dtype=torch.float64)], [torch.zeros(2, dtype=torch.float64)])
    x0 = torch.ones(2, dtype=torch.float64)
    for gamma, delta, theta0 in ((1.5, 0.1, 1.0), (0.5, 0.5, 2.0), (1.0, 1.0, 0.0)):
        goal = gamma / (2 * L)
        for side, lr0 in (("below", goal / 20), ("above", 3 * goal)):
            for reuse in (False, True):
                eye = Carried(rule(lr0, theta0, gamma, delta, reuse))
                iterates(bowl, x0, Algorithm(eye), 1, local_steps=90, engine=Local(chunk=1))
                wrong, (eta, theta) = [], (lr0, theta0)
                for k, note in enumerate(eye.notes[0]):
                    grown_by = math.sqrt(1 + delta * theta)
                    new = grown_by * eta if k == 0 else min(goal, grown_by * eta)
                    eta, theta = new, new / eta
                    wrong.append(abs(note.eta / eta - 1) if float(note.moved) > 1e-20 else 0.0)
                setting = f"gamma = {gamma}, delta = {delta}, from {side}" + ", reuse_gradient" * reuse
                yield f"{setting}: largest |eta_k / eta_k by hand - 1|", max(wrong), "<=", 1e-6
                yield f"{setting}: |eta_k 2 L / gamma - 1| in the end", abs(eye.notes[0][60].eta / goal - 1), "<=", 1e-6
                taken = [
                    n.moved / (n.eta * L * float(n.y.norm())) ** 2 for n in eye.notes[0][:8]
                ]  # the gradient is L y
                yield (
                    f"{setting}: largest |length of a move / (eta_k |g|) - 1|",
                    max(abs(r - 1) for r in taken),
                    "<=",
                    1e-9,
                )


@law("Delta-SGD Thm 5")
def convex_rate(rule: DeltaSGD | None = None) -> Iterator[Measured]:
    """2 S_t (f(x~_t) - f*) <= D for the weighted mean x~_t of the iterates, eq. (43); S_t is at least of order t / L.

    For one client with many local steps, where algorithm 1 is eq. (4).
    """
    problem = random_least_squares(1, 12, 4, common=True, mean=True, condition=20)
    star = problem.minimiser
    for kind, loss in {"least squares": half_mean_square, "log cosh": log_cosh}.items():
        eye = Carried(rule or DeltaSGD(lr0=0.01, gamma=1.0, delta=1.0))
        iterates(problem, near(star), Algorithm(eye), 1, loss, local_steps=40, engine=Local(chunk=1))
        notes = eye.notes[0]
        x, eta, theta = [n.y for n in notes], [n.eta for n in notes], [n.theta for n in notes]
        D = float(sq(x[1] - star)) + notes[0].moved / 2 + 2 * eta[1] * theta[1] * notes[0].loss
        shares = []
        for t in range(1, len(notes)):
            alpha = [eta[k] * (1 + theta[k]) - (eta[k + 1] * theta[k + 1] if k < t else 0.0) for k in range(1, t + 1)]
            S = sum(alpha)
            mean = torch.stack([a * y for a, y in zip(alpha, x[1 : t + 1], strict=True)]).sum(0) / S
            shares.append(2 * S * float(loss(problem.A[0] @ mean, problem.b[0])) / D)
        yield f"{kind}: largest 2 S_t (f(x~_t) - f*) / D", max(shares), "<=", 1
        yield (
            f"{kind}: f(x~_t) - f* after 40 steps, over that of the start",
            shares[-1] * D / (2 * S * notes[0].loss),
            "<",
            0.05,
        )


@law("Delta-SGD Thm 1")
def non_convex(rule: DeltaSGD | None = None) -> Iterator[Measured]:
    """Full batches: eq. (28), the inequality of a round from which the rate follows, with all its constants."""
    drawn = random_least_squares(1, 40, 4, mean=True)
    g = torch.Generator().manual_seed(3)
    shifts = [0.02 * torch.randn(40, generator=g, dtype=torch.float64) for _ in range(4)]
    problem = LeastSquares([drawn.A[0]] * 4, [drawn.b[0] + s for s in shifts], mean=True)  # rho < 1/4: similar clients
    K, m, L, T, x0 = 4, 4, problem.L, 12, near(problem.minimiser)
    yield "robust regression: least curvature at the start", least_curvature(problem, robust, x0), "<", 0
    eye = RecordedStep(rule or DeltaSGD(lr0=0.02 / L, gamma=0.05, delta=0.1))
    xs, _ = iterates(problem, x0, Algorithm(eye), T, robust, local_steps=K, engine=Watched())
    F, slope = descent(problem, robust, xs)
    one = [LeastSquares([A], [b], mean=True) for A, b in problem.clients]
    G2 = max(float(sq(value_and_slope(one[s.client], robust, s.y)[1])) for s in eye.seen)
    lack, dissimilar = [], []
    for t in range(T):
        G = torch.stack([value_and_slope(p, robust, xs[t])[1] for p in one])
        rho = float(sq(G - G.mean(0)).max() / sq(G.mean(0)))
        etas = [[s.eta for s in eye.seen if (s.round, s.client) == (t, i)] for i in range(m)]
        squares, D = [sum(e**2 for e in own) for own in etas], sum(map(sum, etas)) / m
        left = (D / 2 - K * rho / (D * m) * sum(squares) - 2 * K * L * (1 + rho) / m * sum(squares)) * slope[t]
        drift = sum(s**2 for s in squares) * K**2 * L**2 * G2 / m
        lack.append((left - (F[t] - F[t + 1]) - drift * (2 / D + 4 * L)) / F[t])
        dissimilar.append(rho)
    yield "largest dissimilarity rho", max(dissimilar), "<=", 1 / 4
    yield "largest lack of a round's decrease of f, relative", max(lack), "<=", ROUNDING
    least = min((F[t] - F[t + 1]) / slope[t] for t in range(T)) * L
    yield "least decrease of f over |grad f|^2 / L", least, ">", 0.05
