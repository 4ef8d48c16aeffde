"""FedLin on convex problems: sparse gradients and noise.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin).
Deviations: app. L takes its least squares from a section that is not available to us; ours has Gaussian data and clients with
different solutions, and its verdicts are in kind. The paper does not state numbers of rounds, so we chose them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedstride.algorithm.recipes import fedlin
from fedstride.app.sweep import Cell, Result
from fedstride.client.gradient import Noisy
from fedstride.core.rows import Vec, sq
from fedstride.engine import Local
from fedstride.research.papers.experiment import Claim, Lab, Outcome, curves, experiment
from fedstride.research.verify.fedlin import appendix_k, logistic_sum, newton
from fedstride.research.verify.problems import LeastSquares, iterates, near, random_least_squares
from fedstride.wire import TopK

HERE = Local(workers=1)


def span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"


# App. K: sparse gradients.

SERVER = {"delta_s = 1": 100, "delta_s = 2": 50, "delta_s = 4": 25}  # number of the 100 coordinates that are sent
CLIENTS = {"delta_c = 1.25": 80, "delta_c = 1.67": 60}
Work = dict[str, dict[str, Any]]


def sparse(where: str, k: int, feedback: bool, lr: float, rounds: int) -> Result:
    """Return f - f* after each round, starting at zero."""
    problem, tau, star = _logistic()
    compressor = {where: TopK(k)} if k < 100 else {}
    algorithm = fedlin(lr=lr, error_feedback=feedback if compressor else None, **compressor)  # type: ignore[arg-type]
    zero = torch.zeros(100, dtype=torch.float64)
    xs, _ = iterates(problem, zero, algorithm, rounds, loss=logistic_sum, local_steps=tau, engine=HERE)
    A, b = torch.cat(list(problem.A)), torch.cat(list(problem.b))
    least = float(logistic_sum(A @ star, b))
    return {"gap": [(float(logistic_sum(A @ x, b)) - least) / len(tau) for x in xs]}


@lru_cache(1)
def _logistic() -> tuple[LeastSquares, list[int], Vec]:
    problem, tau = appendix_k()
    return problem, tau, newton(torch.cat(list(problem.A)), torch.cat(list(problem.b)))[0]


@experiment(
    "fedlin-K", "Logistic regression with sparse gradients, at the server and at the clients (FedLin, figures 6 and 7)"
)
def sparse_gradients(lab: Lab) -> Outcome:
    judge = partial(lab.judge, full=True)
    rounds = 300
    down: Work = {name: {"where": "down", "k": k, "feedback": False, "lr": 0.15} for name, k in SERVER.items()}
    fed_back = {f"{name}, feedback": a | {"feedback": True} for name, a in down.items() if a["k"] < 100}
    shorter = {f"{name}, 0.15 / delta_s": a | {"lr": 0.15 * a["k"] / 100} for name, a in fed_back.items()}
    up: Work = {name: {"where": "up", "k": k, "feedback": True, "lr": 0.1} for name, k in CLIENTS.items()}
    work = {**down, **fed_back, **shorter, **up}
    cells = {name: Cell(f"fedlin-K {name}", sparse, {**a, "rounds": rounds}) for name, a in work.items()}
    found = lab.run(list(cells.values()))
    gaps = {name: found[cell.name]["gap"] for name, cell in cells.items()}
    floors = {name: fmean(gaps[name][-rounds // 4 :]) for name in gaps}
    claims = [_reaches(lab, name, "converges to the true minimiser", gaps[name]) for name in SERVER]
    claims += [_reaches(lab, name, "converges (theorem 7, etabar ~ 1/delta_s)", gaps[name]) for name in shorter]
    claims += [_stays(lab, name, gaps[name]) for name in CLIENTS]
    little, much = (floors[name] for name in CLIENTS)
    ends = max(gaps[name][-1] for name in SERVER), min(gaps[name][-1] for name in CLIENTS)
    claims += [
        judge(
            "floor of f - f*, clients",
            "increases with delta_c",
            f"{little:.2g} at 1.25, {much:.2g} at 1.67",
            much > little,
        ),
        judge(
            "f - f* with sparse gradients: at the server against at the clients",
            "vanishes against a floor",
            f"{ends[0]:.2g} against {ends[1]:.2g}",
            ends[0] < ends[1] / 10,
        ),
    ]
    at = range(rounds + 1)
    pictures = [
        curves(
            "Sparse at the server",
            "f - f*, etabar = 0.15, with feedback too long for delta_s = 4.",
            {n: (at, g) for n, g in gaps.items() if n not in CLIENTS},
            y="f - f*",
            log=True,
        ),
        curves(
            "Sparse at the clients", "f - f*, etabar = 0.1.", {n: (at, gaps[n]) for n in CLIENTS}, y="f - f*", log=True
        ),
    ]
    about = {
        "clients": 10,
        "data of each": "500 x 100",
        "local steps": appendix_k()[1],
        "loss": "sum, eq. (156)",
        "rounds": rounds,
    }
    return Outcome(claims, pictures, {"last": {n: g[-1] for n, g in gaps.items()}, "last quarter": floors}, about)


def _reaches(lab: Lab, name: str, paper: str, gap: list[float]) -> Claim:
    """Check that there is no floor: the last half of the rounds still gains an order of magnitude."""
    half = gap[len(gap) // 2]
    words = f"f - f* from {gap[0]:.3g} to {half:.2g} and {gap[-1]:.2g}"
    return lab.judge(f"server, {name}", paper, words, gap[-1] < max(half / 10, 1e-9), full=True)


def _stays(lab: Lab, name: str, gap: list[float]) -> Claim:
    """Check that there is a floor: the last quarter is hardly better than the one before."""
    n = len(gap) // 4
    before, last = fmean(gap[-2 * n : -n]), fmean(gap[-n:])
    words = f"f - f* {before:.2g}, and {last:.2g} {n} rounds later"
    return lab.judge(
        f"clients, {name}", "converges with a non-vanishing error", words, 0.5 < last / before < 2, full=True
    )


# App. L: noise.

NOISE = (0.0, 1e-5, 1e-3, 1e-1)  # variances
SIZES = {  # clients, samples, unknowns; most local steps; etabar; rounds
    "small": (5, 50, 10, 10, 0.1, 400),
    "paper": (20, 500, 100, 50, 0.01, 4000),
}


def noisy(variance: float, scale: str, seed: int) -> Result:
    """Return |x - x*|^2 after each round."""
    clients, samples, d, most, lr, rounds = SIZES[scale]
    problem = random_least_squares(clients, samples, d, seed=seed, mean=True, spread=sqrt(10))
    tau: list[int] = torch.randint(2, most + 1, (clients,), generator=torch.Generator().manual_seed(seed)).tolist()
    algorithm = replace(fedlin(lr=lr), gradient=Noisy(sqrt(variance)))
    star: Tensor = problem.minimiser
    draws = len(NOISE) * seed + NOISE.index(variance)  # seed of the noise; the data is the same for all
    xs, _ = iterates(problem, near(star), algorithm, rounds, local_steps=tau, seed=draws, engine=HERE)
    return {"square": [float(sq(x - star)) for x in xs]}


@experiment("fedlin-L", "FedLin under noise: a floor that grows with its variance (FedLin, figure 8)")
def noise_floors(lab: Lab) -> Outcome:
    judge = partial(lab.judge, full=False)
    cells = {
        (v, seed): Cell(f"fedlin-L {v:g} s{seed}", noisy, {"variance": v, "scale": lab.scale, "seed": seed})
        for v in NOISE
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    squares = {v: torch.tensor([found[cells[v, s].name]["square"] for s in range(lab.seeds)]).mean(0) for v in NOISE}
    rounds = len(squares[0.0]) - 1
    floor = {v: float(square[-rounds // 4 :].mean()) for v, square in squares.items()}
    high = squares[0.0] > 100 * max(floor.values())  # rounds in which the largest floor is negligible
    t = max(1, int(high.sum()) - 1)
    early = {v: float(square[t] / square[0]) ** (1 / t) for v, square in squares.items()}
    before = {v: float(square[-rounds // 2 : -rounds // 4].mean()) for v, square in squares.items()}
    noise = NOISE[1:]
    spread = max(abs(early[v] / early[0.0] - 1) for v in noise)
    claims = [
        judge(
            f"|x - x*|^2 with noise {v:g}",
            "a non-vanishing floor",
            f"{floor[v]:.2g}; without noise {floor[0.0]:.2g}",
            0.5 < floor[v] / before[v] < 2 and floor[v] > 10 * floor[0.0],
        )
        for v in noise
    ] + [
        judge(
            "the floor",
            "increases with the variance",
            ", ".join(f"{floor[v]:.2g}" for v in noise),
            all(floor[v] < floor[w] for v, w in pairwise(noise)),
        ),
        judge(
            "floor over variance (theorem 4: linear)",
            "the same for all",
            span([floor[v] / v for v in noise]),
            max(floor[v] / v for v in noise) < 2 * min(floor[v] / v for v in noise),
        ),
        judge(
            f"factor of |x - x*|^2 a round, in the first {t} rounds, far above the floor",
            "linear, as without noise",
            f"{early[0.0]:.4g}; with noise within {100 * spread:.2g} %",
            early[0.0] < 1 and spread < 0.01,
        ),
    ]
    lines = {"no noise" if v == 0 else f"variance {v:g}": (range(rounds + 1), squares[v].tolist()) for v in NOISE}
    picture = curves("FedLin under noise", "|x - x*|^2.", lines, y="|x - x*|^2", log=True)
    about = dict(
        zip(("clients", "samples", "unknowns", "most local steps", "etabar", "rounds"), SIZES[lab.scale], strict=True)
    )
    return Outcome(claims, [picture], {"floor": {str(v): floor[v] for v in NOISE}}, about)
