"""Experiments of FedSLS: line search on the clients, alone and with extrapolation, compared with tuned baselines.

Painless federated learning: an interplay of line-search and extrapolation (FedSLS).
Deviations: those of rivals.py, with FedExP's weight decay for all and its decay of the rate and clipping for the baselines,
so that the runs are shared with FedExP's tables. The paper does not state c, the backtracking factor or the growth: the
defaults of the recipe are used. K = 20 is the number of local steps. CIFAR-100 is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, product
from statistics import fmean

from fedstride.app.sweep import Result
from fedstride.research.papers.experiment import Claim, Lab, Outcome, curves, experiment
from fedstride.research.papers.rivals import (
    DATA,
    NAMES,
    Best,
    Runs,
    about,
    finals,
    listed,
    not_run,
    paths,
    points,
    rounded,
    score,
    training_loss,
    trial,
)
from fedstride.research.papers.tasks import ROUNDS

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


def _tables(lab: Lab) -> tuple[Best, dict[str, Runs]]:
    """Return the runs of both tables."""
    return finals(lab, [*product(PLACES, METHODS), ("shakespeare", ADAM)])


@experiment(
    "fedsls-table1", "Training loss of line search and extrapolation against tuned rivals (FedSLS, table 1, figure 2)"
)
def table_1(lab: Lab) -> Outcome:
    best, runs = _tables(lab)
    ours = {p: {r: training_loss(some) for r, some in runs[p].items()} for p in PLACES}
    claims = [c for p in PLACES for c in _compared(lab, p, dict(zip(METHODS, TABLE_1[p], strict=True)), ours[p], -1)]
    claims.append(
        not_run("CIFAR-100, ResNet-18", "FedExpSLS 0.5, FedSLS 1.12, FedExProx 1.35, FedExP 1.44, FedAvg 2.07")
    )
    pictures = [
        curves(
            DATA[p],
            "Mean loss of the participating clients; rivals tuned; first seed.",
            {NAMES[r]: points(some[0], "train_loss", 1) for r, some in runs[p].items()},
            y="training loss",
        )
        for p in PLACES
    ]
    return Outcome(claims, pictures, {p: rounded(ours[p]) for p in PLACES}, _about(lab, best))


@experiment(
    "fedsls-table2", "Test accuracy of line search and extrapolation against tuned rivals (FedSLS, table 2, figure 3)"
)
def table_2(lab: Lab) -> Outcome:
    best, runs = _tables(lab)
    ours = {p: {r: score(some) for r, some in runs[p].items()} for p in PLACES}
    claims = [c for p in PLACES for c in _compared(lab, p, dict(zip(METHODS, TABLE_2[p], strict=True)), ours[p], 1)]
    text = ours["shakespeare"]
    claims += [
        lab.judge(
            "Shakespeare: FedAdam is at least 2 points below all others",
            "overwhelmingly underperforms",
            listed(text),
            text[ADAM] <= min(v for r, v in text.items() if r != ADAM) - 2,
        ),
        not_run("CIFAR-100, ResNet-18", "FedExProx 52.13, FedExP 50.24, FedExpSLS 50.23, FedSLS 46.53, FedAvg 40.94"),
    ]
    pictures = [paths(DATA[p], "Rivals tuned; first seed.", runs[p]) for p in PLACES]
    return Outcome(claims, pictures, {p: rounded(ours[p]) for p in PLACES}, _about(lab, best))


def _compared(lab: Lab, place: str, paper: Column, ours: Column, sign: int) -> list[Claim]:
    """Compare the winner, the gain of the line search alone, and the order; sign is 1 if larger is better, else -1."""
    ours = {r: ours[r] for r in METHODS}
    form = ".1f" if sign > 0 else ".3f"
    rank = _rank(paper, "fedexpsls", sign)
    same = sum((paper[a] > paper[b]) == (ours[a] > ours[b]) for a, b in combinations(METHODS, 2))
    return [
        lab.judge(
            f"{DATA[place]}: FedExpSLS is the best"
            if rank == 1
            else f"{DATA[place]}: FedExpSLS is among the best {rank}",
            listed(paper, "g"),
            listed(ours, form),
            _rank(ours, "fedexpsls", sign) <= rank,
        ),
        lab.judge(
            f"{DATA[place]}: FedSLS is better than FedAvg",
            listed({r: paper[r] for r in ("fedsls", "fedavg")}, "g"),
            listed({r: ours[r] for r in ("fedsls", "fedavg")}, form),
            sign * ours["fedsls"] > sign * ours["fedavg"],
        ),
        lab.judge(
            f"{DATA[place]}: order of the five, at least {PAIRS} of 10 pairs as in the paper",
            _order(paper, sign),
            f"{_order(ours, sign)}: {same} pairs",
            same >= PAIRS,
        ),
    ]


def _rank(column: Column, recipe: str, sign: int) -> int:
    return 1 + sum(sign * v > sign * column[recipe] for v in column.values())


def _order(column: Column, sign: int) -> str:
    return ", ".join(NAMES[r] for r in sorted(column, key=lambda r: -sign * column[r]))


def _about(lab: Lab, best: Best) -> dict[str, object]:
    return {**about(lab, best), "line search": "lr_max = 1, c = 0.1"}


EXPECTED = {  # FedSLS app. F: number of trials per step at the start and later
    "cifar10": ("more at first, about 1 after 100 rounds", True),
    "femnist": ("from about 4 to about 1 within 50 rounds", True),
    "shakespeare": ("about 1 throughout", False),
}
FEW = 1.5  # trials per step up to which we say "about one"


@experiment("fedsls-fig4", "Trials of the line search over the rounds (FedSLS, figure 4)")
def figure_4(lab: Lab) -> Outcome:
    _, places = finals(lab, [(p, "fedexpsls") for p in PLACES])
    runs = {p: some["fedexpsls"] for p, some in places.items()}
    trials = {p: [fmean(column) for column in zip(*map(_trials, some), strict=False)] for p, some in runs.items()}
    fifth = max(1, ROUNDS[lab.scale] // 5)
    start, end = ({p: fmean(part(values)) for p, values in trials.items()} for part in _ends(fifth))
    claims = [
        lab.judge(
            f"{DATA[p]}: trials per step " + ("fall to about one" if falls else "are about one throughout"),
            words,
            f"first fifth of the rounds {start[p]:.2f}, last {end[p]:.2f}, largest {max(trials[p]):.2f}",
            end[p] <= FEW and (start[p] > end[p] if falls else start[p] <= FEW),
        )
        for p, (words, falls) in EXPECTED.items()
    ]
    claims += [
        lab.judge(
            "no round of any run with more than 2 trials per step",
            "none higher than 2 (section 5)",
            f"largest {max(map(max, trials.values())):.2f}",
            max(map(max, trials.values())) <= 2,
        ),
        not_run("CIFAR-100: trials per step", "from about 4 to about 1 within 50 rounds"),
    ]
    series = {DATA[p]: points(some[0], "trials", 1) for p, some in runs.items()}
    picture = curves(
        "Trials per step", "FedExpSLS; 1 means that the first trial is accepted; first seed.", series, y="trials"
    )
    figures = {p: {"first fifth": round(start[p], 3), "last fifth": round(end[p], 3)} for p in PLACES}
    return Outcome(claims, [picture], figures, {"rounds": ROUNDS[lab.scale], "c": 0.1, "lr_max": 1})


def _trials(run: Result) -> list[float]:
    values: list[float] = run["history"]["trials"]
    return values


def _ends(count: int) -> tuple[Callable[[list[float]], list[float]], Callable[[list[float]], list[float]]]:
    return (lambda values: values[:count]), (lambda values: values[-count:])


CS = (0.1, 0.3, 0.5, 0.7)


@experiment("fedsls-fig5", "The constant c of Armijo's condition (FedSLS, figure 5)")
def figure_5(lab: Lab) -> Outcome:
    # 0.1 is the recipe's default, so this run is shared with the tables
    cells = {
        (c, seed): trial(lab, "cifar10", "fedexpsls", {} if c == 0.1 else {"c": c}, ROUNDS[lab.scale], seed)
        for c in CS
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    runs = {c: [found[cells[c, seed].name] for seed in range(lab.seeds)] for c in CS}
    final = {c: score(some) for c, some in runs.items()}
    trials = {c: fmean(v for run in some for v in _trials(run)) for c, some in runs.items()}
    claims = [
        lab.judge(
            "test accuracy falls as c grows: by at least 1 point from first to last",
            "a decline",
            _by_c(final, ".1f"),
            final[CS[0]] - final[CS[-1]] >= 1,
        ),
        lab.judge(
            "trials per step grow with c",
            "an increase",
            _by_c(trials, ".2f"),
            sorted(CS, key=trials.__getitem__) == [*CS],
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
    return Outcome(claims, pictures, figures, {"c": CS, "rounds": ROUNDS[lab.scale], "lr_max": 1})


def _by_c(values: Mapping[float, float], form: str) -> str:
    return ", ".join(f"{c:g}: {v:{form}}" for c, v in values.items())


def _plain(values: Mapping[float, float]) -> dict[str, float]:
    return {f"{c:g}": round(v, 3) for c, v in values.items()}
