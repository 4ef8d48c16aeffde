"""Experiments of FedSLS: line search on the clients, alone and with extrapolation, compared with tuned baselines.

Painless federated learning: an interplay of line-search and extrapolation (FedSLS).
Deviations: those of rivals.py, with FedExP's weight decay for all and its decay of the rate and clipping for the baselines,
so that the runs are shared with FedExP's tables. The paper does not state c, lr_max and eps, which are searched as the
parameters of the rivals are, or the backtracking factor and the growth, for which the defaults of the recipe are used.
K = 20 is the number of local steps. CIFAR-100 is not run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise, product
from statistics import fmean
from typing import Any

from fedstride.app.sweep import Result
from fedstride.client.step.armijo import RESETS
from fedstride.research.papers.experiment import Claim, Lab, Outcome, curves, experiment
from fedstride.research.papers.rivals import (
    CHANCES,
    DATA,
    NAMES,
    Options,
    Runs,
    about,
    both,
    listed,
    not_run,
    paths,
    points,
    read_outs,
    results,
    rounded,
    score,
    scores,
    seed_by_seed,
    training_loss,
    trial,
)
from fedstride.research.papers.tasks import ROUNDS
from fedstride.research.papers.tuning import finals, fit, tuned

Column = dict[str, float]  # recipe: loss or accuracy


PLACES = ("cifar10", "femnist", "shakespeare")
METHODS = ("fedavg", "fedexp", "fedexpsls", "fedexprox", "fedsls")
ADAM = "fedadam"  # only on text
PAIRS = 8  # minimum number of the ten pairs of methods in the paper's order
TABLE_1 = {  # training loss, in the order of METHODS
    "cifar10": (0.57, 0.38, 0.13, 0.43, 0.41),
    "femnist": (2.25, 2.19, 1.6, 1.57, 1.65),
    "shakespeare": (1.81, 2.12, 1.66, 2.03, 1.69),
}
TABLE_2 = {  # test accuracy, per cent
    "cifar10": (76.8, 82.09, 87.29, 81.79, 82.75),
    "femnist": (47.90, 48.68, 60.92, 58.13, 58.47),
    "shakespeare": (47.67, 47.81, 50.37, 48.56, 49.94),
}


@experiment(
    "fedsls-table1", "Training loss of line search and extrapolation against tuned rivals (FedSLS, table 1, figure 2)"
)
def table_1(lab: Lab) -> Outcome:
    best, runs = finals(lab, product(PLACES, METHODS), fit)
    claims = [c for p in PLACES for c in _compared(lab, p, dict(zip(METHODS, TABLE_1[p], strict=True)), runs[p], -1)]
    claims.append(
        not_run("CIFAR-100, ResNet-18", "FedExpSLS 0.5, FedSLS 1.12, FedExProx 1.35, FedExP 1.44, FedAvg 2.07")
    )
    pictures = [
        curves(
            DATA[p],
            "Mean loss of the participating clients; all tuned; first seed.",
            {NAMES[r]: points(some[0], "train_loss", 1) for r, some in runs[p].items()},
            y="training loss",
        )
        for p in PLACES
    ]
    figures = {p: rounded(_losses(runs[p])) for p in PLACES}
    return Outcome(claims, pictures, figures, about(lab, best))


@experiment(
    "fedsls-table2", "Test accuracy of line search and extrapolation against tuned rivals (FedSLS, table 2, figure 3)"
)
def table_2(lab: Lab) -> Outcome:
    best, runs = finals(lab, [*product(PLACES, METHODS), ("shakespeare", ADAM)])
    claims = [c for p in PLACES for c in _compared(lab, p, dict(zip(METHODS, TABLE_2[p], strict=True)), runs[p], 1)]
    text = runs["shakespeare"]
    claims += [
        lab.weigh(
            "Shakespeare: FedAdam is at least 2 points below all others",
            "overwhelmingly underperforms",
            both(text),
            lambda a: min(v for r, v in a.items() if r != ADAM) - 2 - a[ADAM],
            scores(text),
            list(map(scores, seed_by_seed(text))),
            best=[max(scores(text).values())],
            chance=CHANCES["shakespeare"],
            strict=False,
        ),
        not_run("CIFAR-100, ResNet-18", "FedExProx 52.13, FedExP 50.24, FedExpSLS 50.23, FedSLS 46.53, FedAvg 40.94"),
    ]
    pictures = [paths(DATA[p], "All tuned; first seed.", runs[p]) for p in PLACES]
    return Outcome(claims, pictures, {p: read_outs(runs[p]) for p in PLACES}, about(lab, best))


def _losses(runs: Runs) -> Column:
    return {r: training_loss(some) for r, some in runs.items()}


def _compared(lab: Lab, place: str, paper: Column, runs: Runs, sign: int) -> list[Claim]:
    """Compare the winner, the gain of the line search alone, and the order; sign is 1 if larger is better, else -1."""
    runs = {r: runs[r] for r in METHODS}
    read = scores if sign > 0 else _losses
    ours, each = read(runs), list(map(read, seed_by_seed(runs)))
    rank = _rank(paper, "fedexpsls", sign)
    known: dict[str, Any] = {"best": [max(scores(runs).values())], "chance": CHANCES[place]}

    def lead(column: Column) -> float:
        rest = sorted((sign * v for r, v in column.items() if r != "fedexpsls"), reverse=True)
        return sign * column["fedexpsls"] - rest[rank - 1]

    def alone(column: Column) -> float:
        return sign * (column["fedsls"] - column["fedavg"])

    def pairs(column: Column) -> int:
        return sum((paper[a] > paper[b]) == (column[a] > column[b]) for a, b in combinations(METHODS, 2))

    first = "the best" if rank == 1 else f"among the best {rank}"
    shown = both(runs) if sign > 0 else listed(ours, ".3f")
    two = {r: runs[r] for r in ("fedsls", "fedavg")}
    return [
        lab.weigh(
            f"{DATA[place]}: FedExpSLS is {first}", listed(paper, "g"), shown, lead, ours, each, **known, strict=False
        ),
        lab.weigh(
            f"{DATA[place]}: FedSLS is better than FedAvg",
            listed({r: paper[r] for r in two}, "g"),
            both(two) if sign > 0 else listed(_losses(two), ".3f"),
            alone,
            ours,
            each,
            **known,
        ),
        lab.weigh(
            f"{DATA[place]}: order of the five, at least {PAIRS} of 10 pairs as in the paper",
            _order(paper, sign),
            f"{_order(ours, sign)}: {pairs(ours)} pairs",
            lambda column: pairs(column) - PAIRS,
            ours,
            each,
            **known,
            strict=False,
        ),
    ]


def _rank(column: Column, recipe: str, sign: int) -> int:
    return 1 + sum(sign * v > sign * column[recipe] for v in column.values())


def _order(column: Column, sign: int) -> str:
    return ", ".join(NAMES[r] for r in sorted(column, key=lambda r: -sign * column[r]))


EXPECTED = {  # FedSLS app. F: number of trials per step at the start and later
    "cifar10": ("more at first, about 1 after 100 rounds", True),
    "femnist": ("from about 4 to about 1 within 50 rounds", True),
    "shakespeare": ("about 1 throughout", False),
}
FEW = 1.5  # trials per step up to which we say "about one"
Trials = dict[str, float]  # mean in the first and in the last fifth of the rounds, and the largest


@experiment("fedsls-fig4", "Trials of the line search over the rounds, for three resets (FedSLS, figure 4)")
def figure_4(lab: Lab) -> Outcome:
    best = tuned(lab, [(p, "fedexpsls") for p in PLACES])
    cells = {
        (p, reset, seed): ("fedexpsls", trial(lab, p, "fedexpsls", options, ROUNDS[lab.scale], seed))
        for (p, reset), options in (((p, r), _with(best[p, "fedexpsls"], r)) for p, r in product(PLACES, RESETS))
        for seed in range(lab.seeds)
    }
    found = results(lab, cells)
    runs = {(p, r): [found[p, r, seed] for seed in range(lab.seeds)] for p, r in product(PLACES, RESETS)}
    ends = {at: [_ends(run, ROUNDS[lab.scale]) for run in some] for at, some in runs.items()}
    claims = [
        *(_falls(lab, p, r, runs[p, r], ends[p, r]) for p, r in product(PLACES, RESETS)),
        *(_never_many(lab, r, [ends[p, r] for p in PLACES]) for r in RESETS),
        not_run("CIFAR-100: trials per step", "from about 4 to about 1 within 50 rounds"),
    ]
    pictures = [
        curves(
            f"Trials per step, reset {r!r}",
            "FedExpSLS; 1 means that the first trial is accepted; first seed.",
            {DATA[p]: points(runs[p, r][0], "trials", 1) for p in PLACES},
            y="trials",
        )
        for r in RESETS
    ]
    figures = {p: {r: {k: round(v, 3) for k, v in _mean(ends[p, r]).items()} for r in RESETS} for p in PLACES}
    return Outcome(claims, pictures, figures, about(lab, best))


def _with(options: Options, reset: str) -> Options:
    return options if reset == "grow" else {**options, "reset": reset}  # "grow" is the recipe's default


def _falls(lab: Lab, place: str, reset: str, runs: Sequence[Result], ends: Sequence[Trials]) -> Claim:
    """Check that the trials fall to about one; with reset "grow", to about the steady state of the rule."""
    paper, falls = EXPECTED[place]
    mean = _mean(ends)
    steady = 1.0
    if reset == "grow":  # every search starts at 2^(b/n) times the last step, and backtracks by 0.9
        steady += fmean(run["batch_share"] for run in runs) * math.log(2) / math.log(1 / 0.9)
    few = FEW - 1 + steady
    about_ = "about one" if reset != "grow" else f"about {steady:.2f} or less, the rule's steady state by construction"
    first, last = "first fifth", "last fifth"
    return lab.weigh(
        f"{DATA[place]}, reset {reset!r}: trials per step "
        + (f"fall to {about_}" if falls else f"are {about_} throughout"),
        paper,
        f"first fifth of the rounds {mean[first]:.2f}, last {mean[last]:.2f}, largest {mean['largest']:.2f}",
        lambda t: min(few - t[last], t[first] - t[last] if falls else few - t[first]),
        mean,
        ends,
        strict=falls,
    )


def _never_many(lab: Lab, reset: str, places: Sequence[Sequence[Trials]]) -> Claim:
    each = [max(one["largest"] for one in of_seed) for of_seed in zip(*places, strict=True)]
    return lab.weigh(
        f"reset {reset!r}: no round of any run with more than 2 trials per step",
        "none higher than 2 (section 5)",
        f"largest {max(each):.2f}",
        lambda largest: 2 - largest,
        *(max(each), each),
        strict=False,
    )


def _ends(run: Result, rounds: int) -> Trials:
    trials, fifth = _trials(run), max(1, rounds // 5)
    return {"first fifth": fmean(trials[:fifth]), "last fifth": fmean(trials[-fifth:]), "largest": max(trials)}


def _mean(ends: Sequence[Trials]) -> Trials:
    return {key: fmean(one[key] for one in ends) for key in ends[0]}


def _trials(run: Result) -> list[float]:
    values: list[float] = run["history"]["trials"]
    return values


CS = (0.1, 0.3, 0.5, 0.7)


@experiment("fedsls-fig5", "The constant c of Armijo's condition (FedSLS, figure 5)")
def figure_5(lab: Lab) -> Outcome:
    best = tuned(lab, [("cifar10", "fedexpsls")])
    fixed = best["cifar10", "fedexpsls"]
    cells = {
        (c, seed): ("fedexpsls", trial(lab, "cifar10", "fedexpsls", {**fixed, "c": c}, ROUNDS[lab.scale], seed))
        for c in CS
        for seed in range(lab.seeds)
    }
    found = results(lab, cells)
    runs = {c: [found[c, seed] for seed in range(lab.seeds)] for c in CS}
    final = {c: score(some) for c, some in runs.items()}
    finals = [{c: score(runs[c][seed : seed + 1]) for c in CS} for seed in range(lab.seeds)]
    trials = {c: fmean(v for run in some for v in _trials(run)) for c, some in runs.items()}
    tries = [{c: fmean(_trials(runs[c][seed])) for c in CS} for seed in range(lab.seeds)]
    claims = [
        lab.weigh(
            "test accuracy falls as c grows: by at least 1 point from first to last",
            "a decline",
            _by_c(final, ".1f"),
            lambda a: a[CS[0]] - a[CS[-1]] - 1,
            final,
            finals,
            best=[max(final.values())],
            strict=False,
        ),
        lab.weigh(
            "trials per step grow with c",
            "an increase",
            _by_c(trials, ".2f"),
            lambda t: min(t[b] - t[a] for a, b in pairwise(CS)),
            trials,
            tries,
        ),
    ]
    accuracies = {f"c = {c:g}": points(some[0]) for c, some in runs.items()}
    tried = {f"c = {c:g}": points(some[0], "trials", 1) for c, some in runs.items()}
    note = "FedExpSLS on CIFAR-10; first seed."
    pictures = [
        curves("Accuracy", note, accuracies, y="test accuracy, %"),
        curves("Trials per step", note, tried, y="trials"),
    ]
    figures = {"accuracy": {f"{c:g}": round(v, 2) for c, v in final.items()}, "trials": _plain(trials)}
    return Outcome(claims, pictures, figures, {"c": CS, **about(lab, best)})


def _by_c(values: Mapping[float, float], form: str) -> str:
    return ", ".join(f"{c:g}: {v:{form}}" for c, v in values.items())


def _plain(values: Mapping[float, float]) -> dict[str, float]:
    return {f"{c:g}": round(v, 3) for c, v in values.items()}
