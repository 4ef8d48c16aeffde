"""Laws of the other local objectives: MOON, FedDyn, FedExProx, Ditto.

The sources are in the modules of fedstride.client.objective and fedstride.server.
Deviations: proximal points are computed by many local steps, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import RECIPES, fedavg, feddyn, fedexprox, moon
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    EXACT,
    Featured,
    LeastSquares,
    apart,
    gradients,
    iterates,
    random_least_squares,
    shares,
    unequal,
    weighted_minimiser,
)
from fedstride.research.verify.recorders import RecordedServer, RecordedStep, Taken, Watched
from fedstride.training.train import train

Recipe = Callable[..., Algorithm]
PARTIAL = {"cohort": 2, "weights": "samples", "local_steps": 3}


def recorded(
    problem: LeastSquares, algorithm: Algorithm, rounds: int, **options: object
) -> tuple[list[Vec], list[Taken], list[dict[str, Tensor]]]:
    """Return the iterates, all local steps, and the clients' memory after each round."""
    eye, engine, xs = RecordedStep(algorithm.step), Watched(), []
    x0 = torch.linspace(-1, 2, problem.A[0].shape[1], dtype=torch.float64)
    given = {"rounds": rounds, "engine": engine, "callbacks": [lambda e: xs.append(e.x)], **options}
    train(Featured(x0), problem.loss, problem.clients, replace(algorithm, step=eye), **given)  # type: ignore[arg-type]
    return xs, eye.seen, engine.memories


def ends(steps: list[Taken], t: int) -> dict[int, Vec]:
    """Return the final local models of round t, by client."""
    return {s.client: s.y + s.move for s in steps if s.round == t}


@law("MOON")
def contrast(make: Recipe = moon) -> Iterator[Measured]:
    """Clients follow the gradient of the objective as printed; z_prev is that of their last model, at first of x."""
    problem, mu, temperature = unequal(), 0.8, 0.3
    xs, steps, memories = recorded(problem, make(lr=0.1, mu=mu, temperature=temperature), 5, **PARTIAL)

    def objective(y: Vec, i: int, now: Vec, before: Vec) -> Tensor:
        A, b = problem.clients[i]
        z, z_now, z_before = A * y + 0.5, A * now, A * before  # the other models are in evaluation mode
        similar = [torch.cosine_similarity(z, other) / temperature for other in (z_now, z_before)]
        contrast = (similar[0].exp() / (similar[0].exp() + similar[1].exp())).log().mean()
        return problem.loss(A @ y, b) - mu * contrast

    wrong, apart_from = [], []
    previous: dict[int, Vec] = {}
    for t, run in groupby(steps, key=lambda s: s.round):
        for s in list(run):
            y = s.y.clone().requires_grad_()
            (g,) = torch.autograd.grad(objective(y, s.client, xs[t], previous.get(s.client, xs[t])), y)
            wrong.append(apart(s.g, g))
            apart_from.append(apart(s.g, gradients(problem, s.y)[s.client]))
        previous.update(ends(steps, t))
    yield "MOON, 2 of 4 clients: distance of a gradient to that of the objective as printed", max(wrong), "<=", 1e-9
    yield "MOON, 2 of 4 clients: largest distance of a gradient to the plain one", max(apart_from), ">", 1e-3
    kept = max(float((v - previous[int(key.partition("/")[0])]).norm()) for key, v in memories[-1].items())
    yield "MOON: distance of what clients remember to their last models", kept, "<=", EXACT


@law("FedDyn")
def dynamic_regularisation(make: Recipe = feddyn) -> Iterator[Measured]:
    """The server's h is the weighted mean of the clients' lambda_i, and exact local minimisers lead to x*."""
    problem, alpha = unequal(), 0.7
    pi = shares(problem, "samples")
    xs, steps, memories = recorded(problem, make(lr=0.1, alpha=alpha), 6, **PARTIAL)
    zero, wrong_h, wrong_g = torch.zeros_like(xs[0]), [], []
    for t, memory in enumerate(memories):
        y = ends(steps, t)
        total = sum(pi[i] for i in y)
        mean = torch.stack([pi[i] / total * v for i, v in y.items()]).sum(0)
        h = alpha * (mean - xs[t + 1])
        lambdas = torch.stack([pi[i] * memory.get(f"{i}/lambda", zero) for i in range(len(pi))]).sum(0)
        wrong_h.append(apart(h, lambdas))
        past = memories[t - 1] if t else {}
        for s in [s for s in steps if s.round == t]:
            g = gradients(problem, s.y)[s.client] - past.get(f"{s.client}/lambda", zero) + alpha * (s.y - xs[t])
            wrong_g.append(apart(s.g, g))
    yield "FedDyn, 2 of 4 clients: distance of h to the weighted sum of lambda_i", max(wrong_h), "<=", EXACT
    yield (
        "FedDyn, 2 of 4 clients: distance of a gradient to that of the objective as printed",
        max(wrong_g),
        "<=",
        EXACT,
    )
    star = weighted_minimiser(problem, "uniform")
    x, other = (
        iterates(problem, xs[0], a, 30, local_steps=20)[0][-1] for a in (make(lr=0.3, alpha=1.0), fedavg(lr=0.3))
    )
    yield "FedDyn, local minimisers: distance to x* after 30 rounds", apart(x, star), "<=", 1e-3
    yield "FedAvg, local minimisers: distance to x* after 30 rounds", apart(other, star), ">", 1e-2


@law("FedExProx")
def extrapolated_proximal_points(make: Recipe = fedexprox) -> Iterator[Measured]:
    """Common minimiser, exact proximal steps: |x - x*|^2 falls by alpha S in every round with GraDS, where alpha >= 1.

    Proximal operators are firmly non-expansive: <x - x*, Delta_i> >= |Delta_i|^2 (Li et al. 2024, lemma 3).
    """
    problem = random_least_squares(clients=4, samples=3, d=8, common=True, condition=3)
    gamma, solution = 0.5, problem.minimiser
    lr = 1 / (problem.L + 1 / gamma)
    base = make(lr=lr, gamma=gamma)
    eye = RecordedServer(base.server)
    xs, _ = iterates(problem, torch.zeros(8).double(), replace(base, server=eye), 5, local_steps=120)
    points, slack, alphas = [], [], []
    for t, (x, D, S) in enumerate(eye.seen):
        exact = [
            torch.linalg.solve(torch.eye(8).double() + gamma * problem.hessian(i), x + gamma * A.T @ b)
            for i, (A, b) in enumerate(problem.clients)
        ]
        points.append(apart(x - D, torch.stack(exact).mean(0)))
        alphas.append(float(S / sq(D)))
        before, after = (float(sq(y - solution)) for y in (xs[t], xs[t + 1]))
        slack.append((after - before + alphas[-1] * float(S)) / before)
    yield "FedExProx: distance of the clients' mean to the mean of the proximal points", max(points), "<=", 1e-9
    yield "FedExProx: largest (|x+ - x*|^2 - |x - x*|^2 + alpha S) / |x - x*|^2", max(slack), "<=", 1e-12
    yield "FedExProx: least alpha of GraDS", min(alphas), ">", 1
    slow = iterates(problem, torch.zeros(8).double(), make(lr=lr, gamma=gamma, alpha=1.0), 5, local_steps=120)[0]
    yield (
        "FedExProx: |x_5 - x*| over that with alpha = 1",
        float((xs[-1] - solution).norm() / (slow[-1] - solution).norm()),
        "<",
        1,
    )


@law("Ditto")
def own_models(lam: float = 0.5) -> Iterator[Measured]:
    """The own models converge to the proximal points of x* of each client; the shared model is FedAvg's."""
    problem, zero = unequal(), torch.zeros(4, dtype=torch.float64)
    algorithm = RECIPES["ditto"](lr=0.2, lam=lam)
    for name, decay in (("Ditto", 0.0), ("Ditto, weight decay", 0.3)):
        xs, run = iterates(problem, zero, algorithm, 12, local_steps=15, weight_decay=decay)
        plain = iterates(problem, zero, fedavg(lr=0.2), 12, local_steps=15, weight_decay=decay)[0]
        yield f"{name}: distance of the shared model to FedAvg's", apart(xs[-1], plain[-1]), "<=", EXACT
        eye = torch.eye(4).double()
        goal = [
            torch.linalg.solve(problem.hessian(i) + (lam + decay) * eye, A.T @ b / len(b) + lam * xs[-1])
            for i, (A, b) in enumerate(problem.clients)
        ]
        assert run.personal is not None
        own = [next(model.parameters()).detach() for _, model in sorted(run.personal.items())]
        wrong = max(apart(v, g) for v, g in zip(own, goal, strict=True))
        yield f"{name}: distance of own models to the minimisers of f_i + lam/2 |v - x|^2", wrong, "<=", 1e-4
