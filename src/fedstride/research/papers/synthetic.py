"""Linear regression with more unknowns than equations: FedExP and tuned baselines (FedExP, figure 3 left, app. D).

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023 (FedExP).
Deviations: as in the authors' notebook, rows of A and vectors b_i have norm 1, and there is no weight decay, clipping or
decay of the step. The printed grid of eta_g has 10^0.5 twice; we use 10^1.5 for the second. FedProx uses
FedAvg's steps and tunes only mu.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from fedstride.algorithm.recipes import RECIPES
from fedstride.app.sweep import Cell, Result
from fedstride.core.errors import Diverged
from fedstride.core.rows import sq
from fedstride.engine import Local
from fedstride.research.papers.experiment import Claim, Lab, Outcome, curves, experiment
from fedstride.research.verify.fedexp import synthetic, zeros
from fedstride.research.verify.problems import iterates

SIZES = {"small": (10, 15, 250), "paper": (20, 30, 1000)}  # clients, samples per client, unknowns
SIZES["medium"] = SIZES["paper"]
ROUNDS = {"small": 200, "medium": 2000, "paper": 2000}
TUNED = 50  # rounds per tuning run; the loss is averaged over the last 10
RATES = [-2, -1.5, -1, -0.5, 0]  # log10 of eta_l
SERVER = {"fedavg": [0, 0.5, 1, 1.5, 2], "scaffold": [0, 0.5, 1, 1.5, 2], "fedadagrad": [-1, -0.5, 0, 0.5, 1]}
PROX = [1e-3, 1e-2, 1e-1, 1.0]
NAMES = {
    "fedexp": "FedExP",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "fedadagrad": "FedAdagrad",
    "fedprox": "FedProx",
}
TABLE_3 = {
    "fedexp": (-1.0,),
    "fedavg": (-1.0, 1.0),
    "scaffold": (-1.0, 1.0),
    "fedadagrad": (-1.0, -1.0),
}  # eta_l, eta_g
NOTEBOOK = {  # loss after 50 and 200 rounds in the authors' notebook, and the tolerance in orders of magnitude
    "fedexp": (1e-5, 1e-14, 2.0),
    "fedavg": (3.3e-3, 2.7e-6, math.log10(3)),
}
Options = dict[str, float]


def regression(seed: int, size: list[int], recipe: str, options: Options, rounds: int) -> Result:
    """Return |A w - b|^2 / clients of the returned model after each round: for FedExP, a mean of two iterates."""
    problem = synthetic(seed, *size)
    A, b = torch.cat(list(problem.A)), torch.cat(list(problem.b))

    def loss(x: Tensor) -> float:
        return float(sq(A @ x - b)) / size[0]

    try:
        algorithm = RECIPES[recipe](**options)
        xs, run = iterates(problem, zeros(problem), algorithm, rounds, local_steps=20, engine=Local(workers=1))
    except Diverged as error:
        return {"diverged": error.round, "loss": [], "server_step": []}
    shown = xs[:1] + [(x + y) / 2 for x, y in pairwise(xs)] if recipe == "fedexp" else xs
    return {"diverged": None, "loss": [*map(loss, shown)], "server_step": [row["server_step"] for row in run.history]}


@experiment(
    "fedexp-synthetic", "Linear regression with more unknowns than equations (FedExP, figure 3 left, figure 7, table 3)"
)
def linear_regression(lab: Lab) -> Outcome:
    best = [_tuned(lab, seed) for seed in range(1, lab.seeds + 1)]
    cells = {
        (seed, m): _cell(lab, seed + 1, m, o, ROUNDS[lab.scale])
        for seed, found in enumerate(best)
        for m, o in found.items()
    }
    results = lab.run(list(cells.values()))
    runs = {m: [results[cells[seed, m].name] for seed in range(lab.seeds)] for m in NAMES}
    last = ROUNDS[lab.scale]
    times = sorted({50, 200, last})
    at = {t: {m: [_loss(run, t) for run in runs[m]] for m in NAMES} for t in times}
    claims = [_choice(lab, m, [_logs(found[m]) for found in best]) for m in TABLE_3]
    claims += [_faster(lab, t, losses) for t, losses in at.items()]
    claims.append(_longer_steps(lab, runs["fedexp"], [found["fedavg"]["server_lr"] for found in best]))
    if not lab.small:
        claims += [_magnitude(lab, m, t, at[t][m]) for m in NOTEBOOK for t in (50, 200)]
    picture = curves(
        "Training loss",
        f"|A w - b|^2 / {SIZES[lab.scale][0]}, every algorithm with its best parameters; seed 1.",
        {NAMES[m]: (range(last + 1), r[0]["loss"]) for m, r in runs.items()},
        y="loss",
        log=True,
    )
    steps = curves(
        "Server step of FedExP",
        "Longer than the best constant step in some rounds, but not in all; seed 1.",
        {"FedExP": (range(1, 201), runs["fedexp"][0]["server_step"][:200]), "FedAvg": ([1, 200], [best[0]["fedavg"]["server_lr"]] * 2)},
        y="eta_g",
        log=True,
    )  # fmt: skip
    about = {
        "clients, samples, unknowns": SIZES[lab.scale],
        "local steps": 20,
        "rounds": last,
        "rounds of tuning": TUNED,
        "log10 eta_l": RATES,
        "log10 eta_g": SERVER,
        "mu of FedProx": PROX,
        "eps of FedExP": 0,
    }
    return Outcome(claims, [picture, steps], {"best": best, "loss": at}, about)


def _cell(lab: Lab, seed: int, recipe: str, options: Options, rounds: int) -> Cell:
    words = " ".join(f"{key}={value:.3g}" for key, value in options.items())
    arguments: dict[str, Any] = {"seed": seed, "size": list(SIZES[lab.scale]), "recipe": recipe, "options": options}
    return Cell(f"fedexp-synthetic {recipe} {words} r{rounds} s{seed}", regression, {**arguments, "rounds": rounds})


def _tuned(lab: Lab, seed: int) -> dict[str, Options]:
    """Return the best of each grid: the lowest loss over the last 10 of 50 rounds (FedExP app. D.3)."""
    grid: dict[str, list[Options]] = {"fedexp": [{"lr": 10**a, "eps": 0.0} for a in RATES]}
    for m, steps in SERVER.items():
        grid[m] = [{"lr": 10**a, "server_lr": 10.0**g} for a in RATES for g in steps]
    best = _best(lab, seed, grid)
    return best | _best(lab, seed, {"fedprox": [{**best["fedavg"], "mu": mu} for mu in PROX]})


def _best(lab: Lab, seed: int, grid: dict[str, list[Options]]) -> dict[str, Options]:
    cells = {m: [_cell(lab, seed, m, options, TUNED) for options in tried] for m, tried in grid.items()}
    found = lab.run([cell for tried in cells.values() for cell in tried])
    return {m: min(tried, key=lambda cell: _end(found[cell.name])).arguments["options"] for m, tried in cells.items()}


def _end(result: Result) -> float:
    return math.inf if result["diverged"] else fmean(result["loss"][-10:])


def _loss(run: Result, t: int) -> float:
    return math.inf if run["diverged"] else run["loss"][t]


def _log10(loss: float) -> float:
    return math.log10(loss) if loss > 0 else -math.inf


def _logs(options: Options) -> tuple[float, ...]:
    return tuple(round(math.log10(options[key]), 1) for key in ("lr", "server_lr") if key in options)


def _choice(lab: Lab, recipe: str, ours: list[tuple[float, ...]]) -> Claim:
    """Compare the most frequent choice over the seeds with table 3."""
    count = Counter(ours)
    commonest = max(count, key=count.__getitem__)
    of = f" of {len(ours)} seeds)"
    words = ", ".join(_steps(c) + (f" ({n}{of}" if len(ours) > 1 else "") for c, n in count.most_common())

    def margin(logs: tuple[float, ...]) -> float:
        return -sum(abs(a - b) for a, b in zip(logs, TABLE_3[recipe], strict=True))

    what = f"best steps of {NAMES[recipe]}"
    return lab.weigh(what, _steps(TABLE_3[recipe]), words, margin, commonest, ours, strict=False)


def _steps(logs: tuple[float, ...]) -> str:
    return ", ".join(f"{name} = 10^{value:g}" for name, value in zip(("eta_l", "eta_g"), logs, strict=False))


def _faster(lab: Lab, t: int, losses: dict[str, list[float]]) -> Claim:
    """Check that FedExP is an order of magnitude below the best rival, by the medians; margins are in log10."""
    typical = {m: median(values) for m, values in losses.items()}

    def lead(of: dict[str, float]) -> float:
        return min(_log10(v) for m, v in of.items() if m != "fedexp") - _log10(of["fedexp"]) - 1

    rival = min((m for m in NAMES if m != "fedexp"), key=typical.__getitem__)
    ours = f"FedExP {typical['fedexp']:.2g}, best rival {NAMES[rival]} {typical[rival]:.2g}"
    each = [{m: values[seed] for m, values in losses.items()} for seed in range(lab.seeds)]
    return lab.weigh(f"loss after {t} rounds", "an order-wise improvement over all rivals", ours, lead, typical, each)


def _longer_steps(lab: Lab, runs: list[Result], constant: list[float]) -> Claim:
    """Compare the server steps in the first 200 rounds, before rounding errors dominate."""
    shares = [fmean(step > c for step in run["server_step"][:200]) for run, c in zip(runs, constant, strict=True)]
    words = "in " + " and ".join(f"{100 * share:.0f} %" for share in shares) + " of the rounds"
    what = "eta_g of FedExP above the best constant one of FedAvg"

    def margin(share: float) -> float:
        return min(share, 1 - share) - 1 / 400  # half a round

    return lab.weigh(what, "in some rounds, but not all", words, margin, fmean(shares), shares)


def _magnitude(lab: Lab, recipe: str, t: int, losses: list[float]) -> Claim:
    after_50, after_200, orders = NOTEBOOK[recipe]
    paper = after_50 if t == 50 else after_200

    def margin(loss: float) -> float:
        return orders - abs(_log10(loss) - math.log10(paper))

    what = f"loss of {NAMES[recipe]} after {t} rounds, within {10**orders:.0f} times"
    typical = median(losses)
    words = f"{paper:.2g} (the authors' notebook)", f"{typical:.2g}"
    return lab.weigh(what, *words, margin, typical, losses, strict=False)
