"""Further experiments of Delta-SGD: other objectives, servers, sizes, epochs and seeds (table 2b, B.2 to B.7).

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: as in delta_sgd.py. The paper states neither FedProx's mu nor MOON's constants; these (0.01; 1 and 0.5) are from
its authors' program. At small scale, each table has four optimisers. B.2 uses CIFAR-10 instead of CIFAR-100.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedstride.app.report import theme
from fedstride.app.sweep import Result
from fedstride.research.papers.delta_sgd import (
    ALPHAS,
    BORROWED,
    GOOD,
    NAMES,
    OPTIMISERS,
    OURS,
    POOR,
    ROUNDS,
    RULES,
    TABLE_1,
    TUNED,
    Column,
    Columns,
    Part,
    Place,
    Runs,
    about,
    behind,
    final,
    finals,
    heat,
    in_order,
    label,
    left_out,
    listed,
    measured,
    not_run,
    paths,
    placed,
    points,
    rounded,
    seed_by_seed,
    trial,
)
from fedstride.research.papers.experiment import Claim, Lab, Outcome, Picture, curves, experiment

FEW = (OURS, "SGD", "SGD decayed", "Adam")
SIDE = 40  # rounds on Fashion-MNIST outside of table 1, at small scale
PROX = {"objective": {"part": "Proximal", "mu": 0.01}}
MOON = {"objective": {"part": "Moon", "mu": 1.0, "temperature": 0.5}}
ADAM = {"server": {"part": "AdamServer", "lr": 0.001, "betas": [0.9, 0.999], "tau": 1e-8, "bias_correction": True}}

TABLE_3 = in_order(80.7, 78.8, 75.0, 66.6, 79.9, 79.3, 64.4, 80.4)
TABLE_4: dict[Place, Column] = {
    ("mnist", 0.1): in_order(97.3, 96.4, 97.5, 96.4, 96.4, 95.7, 96.6, 97.9),
    ("fashion_mnist", 0.1): in_order(83.7, 80.9, 84.6, 81.8, 81.5, 82.1, 85.0, 85.8),
    ("cifar10", 0.1): in_order(52.0, 49.1, 53.7, 53.3, 27.8, 10.4, 21.6, 63.8),
}
TABLE_5 = in_order(78.2, 74.2, 76.4, 75.5, 82.4, 81.3, 9.57, 83.1)
TABLE_6: dict[Place, Column] = {
    ("mnist", 0.01): in_order(95.7, 97.2, 73.8, 81.2, 82.3, 76.3, 85.5, 96.9),
    ("fashion_mnist", 0.01): in_order(79.0, 79.3, 72.8, 78.0, 65.6, 51.2, 62.1, 80.6),
    ("cifar10", 0.01): in_order(20.0, 31.3, 29.3, 25.3, 28.1, 19.3, 27.6, 33.8),
}
TABLE_7: dict[Place, tuple[Column, Column]] = {  # mean and deviation, in points
    ("cifar10", 0.1): (
        in_order(73.96, 67.79, 77.59, 72.11, 83.24, 83.86, 68.38, 83.89),
        in_order(2.63, 15.50, 1.42, 6.11, 1.26, 0.48, 1.92, 0.52),
    ),
    ("fashion_mnist", 0.1): (
        in_order(83.43, 77.83, 83.27, 81.36, 79.98, 53.06, 84.59, 85.21),
        in_order(1.78, 8.15, 1.86, 6.06, 2.28, 4.87, 1.54, 1.52),
    ),
}


def chosen(lab: Lab, few: tuple[str, ...] = FEW) -> tuple[str, ...]:
    return few if lab.small else OPTIMISERS


def side(lab: Lab, optimisers: tuple[str, ...], places: list[Place], **more: Any) -> dict[Place, Runs]:
    """Return the same as `measured`; at small scale, Fashion-MNIST has fewer rounds than in table 1."""
    rounds = side_rounds(lab)
    return {p: runs for p in places for runs in measured(lab, optimisers, [p], rounds=rounds[p[0]], **more).values()}


def side_rounds(lab: Lab) -> dict[str, int]:
    return ROUNDS[lab.scale] | ({"fashion_mnist": SIDE} if lab.small else {})


def table(lab: Lab, paper: dict[Place, Column], parts: Part, what: str, *more: Claim) -> Outcome:
    """Reproduce a table of the paper in which one part of the algorithm differs from table 1."""
    runs = side(lab, chosen(lab), list(paper), parts=parts)
    ours = {place: finals(some) for place, some in runs.items()}
    claims = [placed(lab, f"{label(p)}, {what}", paper[p], runs[p]) for p in ours]
    claims += left_out(ours, paper)
    pictures = [paths(f"{label(p)}, {what}", BORROWED, runs[p]) for p in ours]
    if len(ours) > 1:
        pictures.insert(0, heat(f"All, {what}", {label(p): c for p, c in ours.items()}))
    return Outcome(
        [*claims, *more], pictures, {"accuracy": rounded(ours)}, about(lab, rounds=side_rounds(lab), **parts)
    )


def changes(lab: Lab, place: Place, what: str, paper: Column, parts: Part, margin: Callable[[Column], float]) -> Claim:
    """Judge the gain of another part over table 1, in points."""
    names = chosen(lab)
    runs = [measured(lab, names, [place], parts=given) for given in ({}, parts)]

    def gains(columns: Sequence[dict[Place, Column]]) -> Column:
        without, with_it = (table[place] for table in columns)
        return {n: with_it[n] - without[n] for n in names}

    columns = [finals(some[place]) for some in runs]
    ours = gains([{place: column} for column in columns])
    there = {n: paper[n] - TABLE_1[place][n] for n in names}
    each = [gains(pair) for pair in zip(*map(seed_by_seed, runs), strict=True)]
    best = [max(column.values()) for column in columns]
    return lab.weigh(what, signed(there), signed(ours), margin, ours, each, best=best, strict=False)


def signed(changed: Column) -> str:
    return ", ".join(f"{name} {value:+.1f}" for name, value in changed.items())


@experiment("delta-sgd-table2b", "FedProx's objective on the most unequal CIFAR-10 (Delta-SGD, table 2b)")
def table_2b(lab: Lab) -> Outcome:
    place: Place = ("cifar10", 0.01)

    def mixed(gains: Column) -> float:
        return min(GOOD - min(gains.values()), max(gains.values()) + GOOD)

    what = "points by the proximal term: unclear whether it helps"
    return table(
        *(lab, {place: TABLE_6[place]}, PROX, "FedProx"),
        changes(lab, place, what, TABLE_6[place], PROX, mixed),
        not_run("CIFAR-100, ResNet-50, FedProx", "31.0 %, the best of 8; SGD next, 5.9 behind"),
    )


@experiment("delta-sgd-table6", "FedProx's objective on all data (Delta-SGD, table 6)", tasks=tuple(NAMES), rated=True)
def table_6(lab: Lab) -> Outcome:
    rest = not_run("CIFAR-100, ResNet-18 and ResNet-50, FedProx", "29.7 %, 0.6 behind SGD; 31.0 %, the best")
    return table(lab, TABLE_6, PROX, "FedProx", rest)


@experiment("delta-sgd-table4", "Adam at the server (Delta-SGD, table 4)", tasks=tuple(NAMES), rated=True)
def table_4(lab: Lab) -> Outcome:
    rest = not_run("CIFAR-100, ResNet-18, FedAdam", "41.9 %, 7.3 behind SGD decayed, place 3 of 8")
    return table(lab, TABLE_4, ADAM, "FedAdam", rest)


@experiment("delta-sgd-table5", "MOON's objective (Delta-SGD, table 5)")
def table_5(lab: Lab) -> Outcome:
    def few(gains: Column) -> float:
        return len(gains) - 2 * sum(value > 0 for value in gains.values())

    claim = changes(lab, TUNED, "points by MOON: no help for most optimisers", TABLE_5, MOON, few)
    return table(lab, {TUNED: TABLE_5}, MOON, "MOON", claim)


@experiment("delta-sgd-B3", "Clients with different numbers of samples (Delta-SGD B.3, table 3)")
def unequal_sizes(lab: Lab) -> Outcome:
    names = chosen(lab, (OURS, "SGD", "SGDM", "Adam"))
    settings: dict[str, Any] = {"data__partition": "quantity", "training__weights": "samples"}
    runs = measured(lab, names, [TUNED], **settings)[TUNED]
    ours = finals(runs)

    def lead(column: Column) -> float:
        return column["SGD"] - column["SGDM"]

    each = [one[TUNED] for one in seed_by_seed({TUNED: runs})]
    texts = f"{-lead(TABLE_3):+.1f}", f"{-lead(ours):+.1f}"
    best = [max(ours.values())]
    claims = [
        placed(lab, f"{label(TUNED)}, unequal sizes", TABLE_3, runs),
        lab.weigh("SGDM against SGD with unequal sizes: worse", *texts, lead, ours, each, best=best),
        not_run("CIFAR-100, ResNet-50, unequal sizes", "57.5 %, the best of 8; SGDM next, 3.6 behind"),
    ]
    sizes = "drawn evenly from 40 to 200" if lab.small else "drawn evenly from 100 to 500"
    shown = [paths(f"{label(TUNED)}, unequal sizes", f"Samples per client {sizes}; means weighted by them.", runs)]
    return Outcome(claims, shown, {"accuracy": rounded({TUNED: ours})}, about(lab, samples=sizes))


@experiment("delta-sgd-B2", "One, two and three local epochs of Delta-SGD (Delta-SGD B.2, figure 5)")
def local_epochs(lab: Lab) -> Outcome:
    alphas: list[Place] = [("cifar10", alpha) for alpha in ALPHAS]
    epochs: dict[int, dict[str, Any]] = {1: {}, 2: {"training__epochs": 2.0}, 3: {"training__epochs": 3.0}}
    cells = {
        (p, e, seed): trial(lab, p, {"part": RULES[OURS]}, seed=seed, **given)
        for p in alphas
        for e, given in epochs.items()
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    runs = {(p, e): [found[cells[p, e, seed].name] for seed in range(lab.seeds)] for p in alphas for e in epochs}
    claims = [claim for p in alphas for claim in _epochs(lab, label(p), {e: runs[p, e] for e in epochs})]
    claims.append(not_run("CIFAR-100 with ResNet-50, which figure 5 shows", "as above"))
    pictures = [
        curves(label(p), "Delta-SGD.", {f"{e} epochs": points(runs[p, e][0]) for e in epochs}, y="test accuracy, %")
        for p in alphas
    ]
    ends = {label(p): {str(e): round(final(runs[p, e]), 2) for e in epochs} for p in alphas}
    return Outcome(claims, pictures, {"accuracy": ends}, about(lab, epochs=list(epochs)))


def _epochs(lab: Lab, where: str, runs: dict[int, list[Result]]) -> list[Claim]:
    """Judge speed and final accuracy by the number of epochs."""

    def each(value: Callable[[Result], float]) -> list[list[float]]:
        return [[value(run) for run in of_seed] for of_seed in zip(*runs.values(), strict=True)]

    def mean(seeds: list[list[float]]) -> list[float]:
        return [statistics.fmean(column) for column in zip(*seeds, strict=True)]

    speeds = each(lambda run: statistics.fmean(points(run)[1] or [0.0]))
    ends = each(lambda run: final([run]))
    speed, end = mean(speeds), mean(ends)
    return [
        lab.weigh(
            f"{where}: more epochs are faster; mean accuracy over the rounds for 1, 2, 3",
            "slightly faster (figure 5)",
            ", ".join(f"{v:.1f} %" for v in speed),
            lambda s: min(s[1:]) - s[0],
            speed,
            speeds,
            best=[max(end)],
        ),
        lab.weigh(
            f"{where}: the gain at the end is marginal (no more than {POOR:g} points)",
            "marginal (figure 5)",
            ", ".join(f"{v:.1f} %" for v in end),
            lambda e: POOR - (max(e) - e[0]),
            end,
            ends,
            best=[max(end)],
            strict=False,
        ),
    ]


@experiment("delta-sgd-B7", "Three seeds: mean and deviation (Delta-SGD B.7, table 7)")
def three_seeds(lab: Lab) -> Outcome:
    seeds, names = max(3, lab.seeds), chosen(lab)
    runs = side(lab, names, list(TABLE_7), seeds=seeds)
    mean = {p: finals(some) for p, some in runs.items()}
    spread = {p: {n: statistics.stdev(final([r]) for r in some[n]) for n in names} for p, some in runs.items()}
    each = seed_by_seed(runs)
    others = [n for n in names if n != OURS]
    claims = []
    for p, (means, deviations) in TABLE_7.items():
        middle = [statistics.median(d[n] for n in others) for d in (deviations, spread[p])]
        claims += [
            placed(lab, f"{label(p)}, mean of {seeds} seeds", means, runs[p]),
            lab.weigh(
                f"{label(p)}: Delta-SGD's deviation is small, no larger than the others' median",
                f"{deviations[OURS]:.2f} points, others {middle[0]:.2f}",
                f"{spread[p][OURS]:.2f} points, others {middle[1]:.2f}",
                lambda d: statistics.median(d[n] for n in others) - d[OURS],
                spread[p],
                [{n: abs(one[p][n] - mean[p][n]) for n in names} for one in each],
                best=[max(mean[p].values())],
                strict=False,
            ),
        ]

    def farthest(columns: Columns) -> Column:
        return {n: max(behind(columns[p], n) for p in TABLE_7) for n in names}

    def lead(columns: Columns) -> float:
        far = farthest(columns)
        return min(v for n, v in far.items() if n != OURS) - far[OURS]

    claims += [
        lab.weigh(
            "the larger of the two distances to the best is smallest for Delta-SGD",
            listed(farthest({p: means for p, (means, _) in TABLE_7.items()})),
            listed(farthest(mean)),
            lead,
            mean,
            each,
            best=[max(column.values()) for column in mean.values()],
            strict=False,
        ),
        not_run("CIFAR-100, ResNet-50, three seeds", "64.02 ± 0.51 %, the best; Adam next, 5.13 behind"),
    ]
    note = f"Mean of {seeds} seeds with their deviation."
    pictures = [_bars(label(p), note, mean[p], spread[p]) for p in TABLE_7]
    rest = {"accuracy": rounded(mean), "deviation": rounded(spread)}
    return Outcome(claims, pictures, rest, about(lab, rounds=side_rounds(lab), seeds=seeds))


def _bars(title: str, note: str, mean: Column, spread: Column) -> Picture:
    bars = {
        "type": "bar",
        "x": list(mean),
        "y": list(mean.values()),
        "marker": {"color": [theme.colour(i) for i in range(len(mean))]},
        "error_y": {"type": "data", "array": list(spread.values()), "color": theme.PAGE["ink"][0]},
        "hovertemplate": "%{x}: %{y:.1f} %<extra></extra>",
    }
    layout = {"yaxis": {"title": {"text": "test accuracy, %"}}, "bargap": 0.4, "hovermode": "closest"}
    return Picture(title, note, {"data": [bars], "layout": layout})
