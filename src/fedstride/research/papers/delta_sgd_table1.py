"""Delta-SGD and seven client optimisers, tuned on one task and used on all (Delta-SGD table 1, figures 1 to 3).

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: as in delta_sgd.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedstride.research.papers.delta_sgd import (
    BORROWED,
    GOOD,
    NAMES,
    OPTIMISERS,
    OURS,
    PLACES,
    POOR,
    TABLE_1,
    TUNED,
    Column,
    Columns,
    Place,
    about,
    behind,
    finals,
    heat,
    label,
    left_out,
    listed,
    mean_behind,
    measured,
    not_run,
    paths,
    placed,
    rounded,
    search,
    seed_by_seed,
    task,
)
from fedstride.research.papers.experiment import CHANCE, Claim, Lab, Outcome, curves, experiment


@experiment(
    "delta-sgd-table1",
    "Eight client optimisers, tuned on one task and used on nine (Delta-SGD, table 1)",
    tasks=(*NAMES, *map(task, PLACES)),
    rated=True,
)
def table_1(lab: Lab) -> Outcome:
    runs = measured(lab, OPTIMISERS, PLACES)
    ours = {place: finals(some) for place, some in runs.items()}
    claims = [
        *(placed(lab, label(place), TABLE_1[place], runs[place]) for place in ours),
        *left_out(ours, TABLE_1),
        *_over_columns(lab, ours, seed_by_seed(runs)),
        not_run("CIFAR-100, ResNet-18, α = 1, 0.1, 0.01", "61.5 %, 61.1 %, 31.8 %: 0.4, 0.0, 0.0 behind the best"),
        not_run("CIFAR-100, ResNet-50, α = 1, 0.1, 0.01", "65.8 %, 64.1 %, 31.4 %: the best at each"),
        not_run("AG News, DBpedia, DistilBERT (table 2a)", "90.7 %, 98.6 %: 0.9, 0.3 behind the best", "no text data"),
    ]
    pictures = [
        heat("Ours", {label(p): c for p, c in ours.items()}),
        heat("Delta-SGD paper, table 1", {label(p): TABLE_1[p] for p in ours}),
    ]
    counts = {label(place): len(some[OURS]) for place, some in runs.items()}
    figures: dict[str, Any] = {"accuracy": rounded(ours), "seeds": counts}
    if not lab.rates:
        scores = search(lab)
        tried = {name: (list(found), list(found.values())) for name, found in scores.items()}
        words = "On CIFAR-10 with α = 0.1; the best rate of each is used everywhere."
        pictures.append(curves("The search", words, tried, x="rate", y="test accuracy, %", xaxis={"type": "log"}))
        figures["search"] = {
            name: {f"{lr:g}": round(v, 2) for lr, v in found.items()} for name, found in scores.items()
        }
    return Outcome(claims, pictures, figures, about(lab))


def _over_columns(lab: Lab, ours: Columns, each: Sequence[Columns]) -> list[Claim]:
    """Judge the claims about several columns of table 1, on the columns that hold information."""
    known = [place for place, column in ours.items() if max(column.values()) >= 2 * CHANCE]
    fashion = [place for place in known if place[0] == "fashion_mnist"]

    def near(columns: Columns) -> int:
        return sum(behind(columns[place]) <= GOOD for place in known)

    def farthest(columns: Columns) -> Column:
        return {name: max(behind(columns[place], name) for place in known) for name in OPTIMISERS}

    def lead(columns: Columns) -> float:
        far = farthest(columns)
        return min(v for name, v in far.items() if name != OURS) - far[OURS]

    of = f"{len(known)} columns with information"
    claims = []
    if fashion:
        alphas = ", ".join(f"{alpha:g}" for _, alpha in fashion)
        claims.append(
            lab.weigh(
                f"Fashion-MNIST: Delta-SGD's distance to the best at α = {alphas}; within 1 point at each",
                ", ".join(f"{behind(TABLE_1[place]):.1f}" for place in fashion),
                ", ".join(f"{behind(ours[place]):.1f}" for place in fashion),
                lambda columns: 1 - max(behind(columns[place]) for place in fashion),
                ours,
                each,
                strict=False,
            )
        )
    if known:
        claims += [
            lab.weigh(
                f"number of the {of} where Delta-SGD is within {GOOD:g} points of the best",
                f"{near(TABLE_1)} of {len(known)}",
                f"{near(ours)} of {len(known)}",
                lambda columns: near(columns) - near(TABLE_1),
                ours,
                each,
                strict=False,
            ),
            lab.weigh(
                f"the largest distance to the best over the {of} is smallest for Delta-SGD",
                listed(farthest(TABLE_1)),
                listed(farthest(ours)),
                lead,
                ours,
                each,
                strict=False,
            ),
        ]
    return claims


def _away(columns: Columns) -> Column:
    moved = [c for place, c in columns.items() if place != TUNED]
    return {name: mean_behind(moved, [name]) for name in OPTIMISERS}


def _falls(columns: Columns) -> Column:
    even, uneven = columns["cifar10", 0.1], columns["cifar10", 0.01]
    return {name: even[name] - uneven[name] for name in (OURS, "Adam", "Adagrad")}


def _kinds(columns: Columns) -> Column:
    fashion = [c for place, c in columns.items() if place[0] == "fashion_mnist"]
    groups = {"adaptive": ("Adam", "Adagrad", "SPS"), "SGD": ("SGD", "SGD decayed", "SGDM", "SGDM decayed")}
    return {kind: mean_behind(fashion, names) for kind, names in groups.items()}


def _momentum(columns: Columns) -> Column:
    return {name: columns["mnist", 0.01][name] for name in ("SGDM", "SGD")}


def _decay(columns: Columns) -> Column:
    return {name: columns["cifar10", 0.01][name] for name in ("SGD", "SGD decayed")}


@experiment("delta-sgd-figs1-3", "The same rates on other data and other mixes (Delta-SGD, figures 1 to 3)")
def figures_1_to_3(lab: Lab) -> Outcome:
    runs = measured(lab, OPTIMISERS, PLACES)
    ours = {place: finals(some) for place, some in runs.items()}
    each = seed_by_seed(runs)

    def claim(
        what: str,
        read: Callable[[Columns], Column],
        margin: Callable[[Column], float],
        at: Sequence[Place] = (),
        strict: bool = True,
    ) -> Claim:
        best = [max(ours[place].values()) for place in at]
        texts = listed(read(TABLE_1)), listed(read(ours))
        return lab.weigh(what, *texts, lambda c: margin(read(c)), ours, each, best=best, strict=strict)

    claims = [
        claim(
            "mean distance to the best on the eight tasks without tuning (fig. 1, 2): Delta-SGD's is the smallest",
            _away,
            lambda d: min(v for name, v in d.items() if name != OURS) - d[OURS],
            strict=False,
        ),
        claim(
            "fall from α = 0.1 to 0.01 on CIFAR-10 (fig. 2A): Adam and Adagrad fall further than Delta-SGD",
            _falls,
            lambda f: min(f["Adam"], f["Adagrad"]) - f[OURS],
            [("cifar10", 0.1), ("cifar10", 0.01)],
        ),
        claim(
            "mean distance to the best on Fashion-MNIST (fig. 2B): Adam, Adagrad and SPS are worse than the four of SGD",
            _kinds,
            lambda d: d["adaptive"] - d["SGD"],
        ),
        claim(
            f"MNIST, α = 0.01 (fig. 1B, 3B): SGDM without decay is {POOR:g} points or more below SGD",
            _momentum,
            lambda c: c["SGD"] - c["SGDM"] - POOR,
            [("mnist", 0.01)],
            strict=False,
        ),
        claim(
            f"CIFAR-10, α = 0.01 (fig. 3C): SGD without decay is {POOR:g} points or more below SGD with it",
            _decay,
            lambda c: c["SGD decayed"] - c["SGD"] - POOR,
            [("cifar10", 0.01)],
            strict=False,
        ),
        not_run("CIFAR-100, ResNet-50 (fig. 1C, 2C, 3A)", "Delta-SGD ahead of all, and better than with ResNet-18"),
    ]
    shown = [TUNED, ("mnist", 0.1), ("mnist", 0.01), ("fashion_mnist", 0.1), ("fashion_mnist", 0.01), ("cifar10", 0.01)]
    pictures = [paths(label(p), "Tuned here." if p == TUNED else BORROWED, runs[p]) for p in shown]
    return Outcome(claims, pictures, {"accuracy": rounded(ours)}, about(lab))
