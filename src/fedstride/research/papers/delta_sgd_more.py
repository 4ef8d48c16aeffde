"""Further experiments of Delta-SGD: other objectives, servers, sizes, epochs and seeds (table 2b, B.2 to B.7).

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: as in delta_sgd.py. The paper states neither FedProx's mu nor MOON's constants; these (0.01; 1 and 0.5) are from
its authors' program. At small scale, each table has four optimisers. B.2 uses CIFAR-10 instead of CIFAR-100.
"""

from __future__ import annotations

import statistics
from typing import Any

from fedstride.app.report import theme
from fedstride.research.papers.delta_sgd import (
    ALPHAS,
    BORROWED,
    GOOD,
    OPTIMISERS,
    OURS,
    POOR,
    ROUNDS,
    RULES,
    TABLE_1,
    TUNED,
    Column,
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
    listed,
    measured,
    not_run,
    paths,
    placed,
    points,
    rounded,
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
    return {p: measured(lab, optimisers, [p], rounds=rounds[p[0]], **more)[p] for p in places}


def side_rounds(lab: Lab) -> dict[str, int]:
    return ROUNDS[lab.scale] | ({"fashion_mnist": SIDE} if lab.small else {})


def table(lab: Lab, paper: dict[Place, Column], parts: Part, what: str, *more: Claim) -> Outcome:
    """Reproduce a table of the paper in which one part of the algorithm differs from table 1."""
    runs = side(lab, chosen(lab), list(paper), parts=parts)
    ours = {place: finals(some) for place, some in runs.items()}
    claims = [placed(lab, f"{label(p)}, {what}", paper[p], ours[p]) for p in paper]
    pictures = [paths(f"{label(p)}, {what}", BORROWED, runs[p]) for p in paper]
    if len(paper) > 1:
        pictures.insert(0, heat(f"All, {what}", {label(p): c for p, c in ours.items()}))
    return Outcome(
        [*claims, *more], pictures, {"accuracy": rounded(ours)}, about(lab, rounds=side_rounds(lab), **parts)
    )


def changes(lab: Lab, place: Place, paper: Column, parts: Part) -> tuple[Column, Column]:
    """Return the gain of another part over table 1 in points, in the paper and in our runs."""
    names = chosen(lab)
    without, ours = (finals(measured(lab, names, [place], parts=given)[place]) for given in ({}, parts))
    return {n: paper[n] - TABLE_1[place][n] for n in names}, {n: ours[n] - without[n] for n in names}


def signed(changed: Column) -> str:
    return ", ".join(f"{name} {value:+.1f}" for name, value in changed.items())


@experiment("delta-sgd-table2b", "FedProx's objective on the most unequal CIFAR-10 (Delta-SGD, table 2b)")
def table_2b(lab: Lab) -> Outcome:
    place: Place = ("cifar10", 0.01)
    paper, ours = changes(lab, place, TABLE_6[place], PROX)
    one_way = min(ours.values()) > GOOD or max(ours.values()) < -GOOD
    return table(
        *(lab, {place: TABLE_6[place]}, PROX, "FedProx"),
        lab.judge("points by the proximal term: unclear whether it helps", signed(paper), signed(ours), not one_way),
        not_run("CIFAR-100, ResNet-50, FedProx", "31.0 %, the best of 8; SGD next, 5.9 behind"),
    )


@experiment("delta-sgd-table6", "FedProx's objective on all data (Delta-SGD, table 6)")
def table_6(lab: Lab) -> Outcome:
    rest = not_run("CIFAR-100, ResNet-18 and ResNet-50, FedProx", "29.7 %, 0.6 behind SGD; 31.0 %, the best")
    return table(lab, TABLE_6, PROX, "FedProx", rest)


@experiment("delta-sgd-table4", "Adam at the server (Delta-SGD, table 4)")
def table_4(lab: Lab) -> Outcome:
    rest = not_run("CIFAR-100, ResNet-18, FedAdam", "41.9 %, 7.3 behind SGD decayed, place 3 of 8")
    return table(lab, TABLE_4, ADAM, "FedAdam", rest)


@experiment("delta-sgd-table5", "MOON's objective (Delta-SGD, table 5)")
def table_5(lab: Lab) -> Outcome:
    paper, ours = changes(lab, TUNED, TABLE_5, MOON)
    few = 2 * sum(value > 0 for value in ours.values()) <= len(ours)
    claim = lab.judge("points by MOON: no help for most optimisers", signed(paper), signed(ours), few)
    return table(lab, {TUNED: TABLE_5}, MOON, "MOON", claim)


@experiment("delta-sgd-B3", "Clients with different numbers of samples (Delta-SGD B.3, table 3)")
def unequal_sizes(lab: Lab) -> Outcome:
    names = chosen(lab, (OURS, "SGD", "SGDM", "Adam"))
    settings: dict[str, Any] = {"data__partition": "quantity", "training__weights": "samples"}
    runs = measured(lab, names, [TUNED], **settings)[TUNED]
    ours = finals(runs)
    edge = [c["SGDM"] - c["SGD"] for c in (TABLE_3, ours)]
    claims = [
        placed(lab, f"{label(TUNED)}, unequal sizes", TABLE_3, ours),
        lab.judge("SGDM against SGD with unequal sizes: worse", f"{edge[0]:+.1f}", f"{edge[1]:+.1f}", edge[1] < 0),
        not_run("CIFAR-100, ResNet-50, unequal sizes", "57.5 %, the best of 8; SGDM next, 3.6 behind"),
    ]
    sizes = "drawn evenly from 40 to 200" if lab.small else "drawn evenly from 100 to 500"
    shown = [paths(f"{label(TUNED)}, unequal sizes", f"Samples per client {sizes}; means weighted by them.", runs)]
    return Outcome(claims, shown, {"accuracy": rounded({TUNED: ours})}, about(lab, samples=sizes))


@experiment("delta-sgd-B2", "One, two and three local epochs of Delta-SGD (Delta-SGD B.2, figure 5)")
def local_epochs(lab: Lab) -> Outcome:
    places: list[Place] = [("cifar10", alpha) for alpha in ALPHAS]
    epochs: dict[int, dict[str, Any]] = {1: {}, 2: {"training__epochs": 2.0}, 3: {"training__epochs": 3.0}}
    cells = {(p, e): trial(lab, p, {"part": RULES[OURS]}, **given) for p in places for e, given in epochs.items()}
    found = lab.run(list(cells.values()))
    runs = {key: found[one.name] for key, one in cells.items()}
    claims = []
    for p in places:
        speed = [statistics.fmean(points(runs[p, e])[1] or [0.0]) for e in epochs]
        end = [final([runs[p, e]]) for e in epochs]
        claims += [
            lab.judge(
                f"{label(p)}: more epochs are faster; mean accuracy over the rounds for 1, 2, 3",
                "slightly faster (figure 5)",
                ", ".join(f"{v:.1f} %" for v in speed),
                min(speed[1:]) > speed[0],
            ),
            lab.judge(
                f"{label(p)}: the gain at the end is marginal (no more than {POOR:g} points)",
                "marginal (figure 5)",
                ", ".join(f"{v:.1f} %" for v in end),
                max(end) - end[0] <= POOR,
            ),
        ]
    claims.append(not_run("CIFAR-100 with ResNet-50, which figure 5 shows", "as above"))
    pictures = [
        curves(label(p), "Delta-SGD.", {f"{e} epochs": points(runs[p, e]) for e in epochs}, y="test accuracy, %")
        for p in places
    ]
    ends = {label(p): {str(e): round(final([runs[p, e]]), 2) for e in epochs} for p in places}
    return Outcome(claims, pictures, {"accuracy": ends}, about(lab, epochs=list(epochs)))


@experiment("delta-sgd-B7", "Three seeds: mean and deviation (Delta-SGD B.7, table 7)")
def three_seeds(lab: Lab) -> Outcome:
    seeds, names = max(3, lab.seeds), chosen(lab)
    runs = side(lab, names, list(TABLE_7), seeds=seeds)
    mean = {p: finals(some) for p, some in runs.items()}
    spread = {p: {n: statistics.stdev(final([r]) for r in some[n]) for n in names} for p, some in runs.items()}
    claims = []
    for p, (means, deviations) in TABLE_7.items():
        others = [n for n in names if n != OURS]
        middle = [statistics.median(d[n] for n in others) for d in (deviations, spread[p])]
        claims += [
            placed(lab, f"{label(p)}, mean of {seeds} seeds", means, mean[p]),
            lab.judge(
                f"{label(p)}: Delta-SGD's deviation is small, no larger than the others' median",
                f"{deviations[OURS]:.2f} points, others {middle[0]:.2f}",
                f"{spread[p][OURS]:.2f} points, others {middle[1]:.2f}",
                spread[p][OURS] <= middle[1],
            ),
        ]
    means_there = {p: means for p, (means, _) in TABLE_7.items()}
    far, far_here = ({n: max(behind(c[p], n) for p in TABLE_7) for n in names} for c in (means_there, mean))
    claims += [
        lab.judge(
            "the larger of the two distances to the best is smallest for Delta-SGD",
            listed(far),
            listed(far_here),
            far_here[OURS] == min(far_here.values()),
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
