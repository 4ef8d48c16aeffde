"""The search for the parameters of FedExP, FedSLS and their baselines; all recipes are searched in the same way.

Deviations: the best parameters are those with the highest test accuracy after 50 rounds, or the lowest training loss where
losses are compared, while FedExP app. D.3 uses training accuracy. Below the paper's scale, the grids are coarser and searched
one parameter at a time. FedSLS does not state its grids. At all scales, a grid is extended while the best value lies on its
edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from fedstride.app.sweep import Result
from fedstride.research.papers.experiment import Lab
from fedstride.research.papers.rivals import SEARCHES, At, Best, Options, Runs, power, results, training_loss, trial
from fedstride.research.papers.tasks import ROUNDS, accuracy

Judge = Callable[[Result], float]  # larger is better
Axes = dict[str, tuple[float, ...]]  # parameter: log10 of its grid; a search by parameters starts at the first values

LIMITS = {"c": (-3.0, -0.5)}  # log10 of the range of a parameter that is extended; c is less than 1
WIDEST = (-5.0, 2.0)
RATES: dict[str, tuple[float, ...]] = {"coarse": (-1.5, -2, -1, -0.5), "fine": (-2, -1.5, -1, -0.5, 0)}
LINE: Axes = {"lr_max": (0, -0.5, 0.5), "c": (-1, -0.5, -1.5)}
OTHERS: dict[str, dict[str, Axes]] = {
    "coarse": {
        **{recipe: {"eps": (-3, -2, -1)} for recipe in ("fedexp", "scaffold_exp", "fedexpm")},
        **{recipe: {"server_lr": (0, -0.5, 0.5)} for recipe in ("fedavg", "scaffold", "fedavgm")},
        "fedadagrad": {"server_lr": (-1, -1.5, -0.5)},
        "fedadam": {"server_lr": (-2, -1.5, -1)},
        "fedexprox": {"gamma": (0, 1, -1)},
        "fedsls": LINE,
        "fedexpsls": {**LINE, "eps": (-3, -2, -1)},
    },
    "fine": {
        **{recipe: {"eps": (-3, -2.5, -2, -1.5, -1)} for recipe in ("fedexp", "scaffold_exp", "fedexpm")},
        **{recipe: {"server_lr": (-1, -0.5, 0, 0.5, 1)} for recipe in ("fedavg", "scaffold", "fedavgm")},
        **{recipe: {"server_lr": (-2, -1.5, -1, -0.5, 0)} for recipe in ("fedadagrad", "fedadam")},
        "fedexprox": {"gamma": (-1, 0, 1)},
        "fedsls": LINE,
        "fedexpsls": {**LINE, "eps": (-3, -2, -1)},
    },
}


def axes(lab: Lab, recipe: str) -> Axes:
    """Return the parameters of a recipe and their grids."""
    grid = "fine" if lab.scale == "paper" else "coarse"
    return {**({} if recipe in SEARCHES else {"lr": RATES[grid]}), **OTHERS[grid][recipe]}


def fit(run: Result) -> float:
    """Judge a run by its training loss, as is reported of it."""
    return -training_loss([run])


def tuned(lab: Lab, wanted: Iterable[At], judge: Judge = accuracy) -> Best:
    """Return the best parameters of recipes at places."""
    every = {at: axes(lab, at[1]) for at in wanted}
    found: Best = {at: {key: power(grid[0]) for key, grid in some.items()} for at, some in every.items()}
    if lab.scale == "paper":
        grids = {
            at: [dict(zip(some, map(power, point), strict=True)) for point in product(*some.values())]
            for at, some in every.items()
        }
        scores = _scores(lab, grids, judge)
        found = {at: grid[_first_best(scores[at])] for at, grid in grids.items()}
    for i in range(max(map(len, every.values()), default=0)):
        keys = {at: list(some)[i] for at, some in every.items() if i < len(some)}
        found |= _along(lab, {at: (key, every[at][key], found[at]) for at, key in keys.items()}, judge)
    return found


def _along(lab: Lab, lines: Mapping[At, tuple[str, Sequence[float], Options]], judge: Judge) -> Best:
    """Return the best options on lines through given ones, extended while the best lies at an end."""
    grids = {at: list(grid) for at, (_, grid, _) in lines.items()}
    best: Best = {}
    open_lines = set(lines)
    while open_lines:
        tried = {
            at: [{**options, key: power(e)} for e in grids[at]]
            for at, (key, _, options) in lines.items()
            if at in open_lines
        }
        for at, scores in _scores(lab, tried, judge).items():
            i = _first_best(scores)
            best[at] = tried[at][i]
            further = _beyond(lines[at][0], grids[at], grids[at][i])
            grids[at] += further
            if not further:
                open_lines.remove(at)
    return best


def _beyond(key: str, grid: Sequence[float], best: float) -> list[float]:
    """Return the next exponent beyond the end of the grid that is the best, if any and if allowed."""
    low, high = LIMITS.get(key, WIDEST)
    ordered = sorted(grid)
    if best == ordered[-1] and best > ordered[0]:
        further = 2 * best - ordered[-2]
    elif best == ordered[0] and best < ordered[-1]:
        further = 2 * best - ordered[1]
    else:
        return []
    return [further] if low <= further <= high else []


def _scores(lab: Lab, tried: Mapping[At, Sequence[Options]], judge: Judge) -> dict[At, list[float]]:
    cells = {(at, i): (at[1], trial(lab, *at, one)) for at, some in tried.items() for i, one in enumerate(some)}
    found = results(lab, cells)
    return {at: [judge(found[at, i]) for i in range(len(some))] for at, some in tried.items()}


def _first_best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def finals(lab: Lab, wanted: Iterable[At], judge: Judge = accuracy) -> tuple[Best, dict[str, Runs]]:
    """Return the best parameters, and the full-length runs with them by place."""
    best = tuned(lab, wanted, judge)
    cells = {
        (at, seed): (at[1], trial(lab, *at, options, ROUNDS[lab.scale], seed))
        for at, options in best.items()
        for seed in range(lab.seeds)
    }
    found = results(lab, cells)
    runs: dict[str, Runs] = {}
    for place, recipe in best:
        runs.setdefault(place, {})[recipe] = [found[(place, recipe), seed] for seed in range(lab.seeds)]
    return best, runs
