"""NIID-Bench: `auto`, untuned, beside the published accuracies of FedAvg, SCAFFOLD, FedProx and FedNova.

Li, Diao, Chen, He. Federated learning on non-IID data silos: an experimental study. ICDE 2022. The figures are those that
Flower publishes with its baseline niid_bench: the best round's test accuracy; FedProx's mu was tuned.
Deviations: as in silos.py. A row whose run is not complete counts if its goal is reached already. FedAvg is run on three rows, to check the protocol. At small scale, which has other data and
fewer rounds, `auto` is compared with our FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedstride.app.sweep import Cell, Result
from fedstride.research.papers.experiment import NOT_RUN, Claim, Lab, Outcome, Picture, curves, experiment
from fedstride.research.papers.silos import CLIENTS, SPLITS, silos

Row = tuple[str, str]  # data set, partition
Runs = dict[str, dict[int, Result]]  # method: runs by seed

DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
PARTITIONS = dict(
    zip(
        SPLITS,
        ("iid", "Dirichlet 0.5", "1 label per client", "2 labels per client", "3 labels per client"),
        strict=True,
    )
)
COLUMNS = ("FedAvg", "SCAFFOLD", "FedProx", "FedNova")
PUBLISHED: dict[Row, tuple[float, ...]] = {  # per cent, in the order of COLUMNS
    ("mnist", "iid"): (99.09, 99.06, 99.16, 99.05),
    ("mnist", "dirichlet"): (98.89, 99.07, 99.02, 98.03),
    ("mnist", "labels1"): (19.33, 9.93, 51.79, 52.58),
    ("mnist", "labels2"): (96.86, 96.92, 96.85, 96.65),
    ("mnist", "labels3"): (97.86, 97.91, 97.85, 97.62),
    ("fashion_mnist", "iid"): (89.23, 89.33, 89.42, 89.36),
    ("fashion_mnist", "dirichlet"): (88.09, 88.44, 88.15, 88.22),
    ("fashion_mnist", "labels1"): (28.39, 10.00, 32.65, 16.86),
    ("fashion_mnist", "labels2"): (78.10, 33.80, 78.05, 71.67),
    ("fashion_mnist", "labels3"): (82.43, 80.32, 82.99, 81.97),
    ("cifar10", "iid"): (71.32, 71.66, 71.26, 70.69),
    ("cifar10", "dirichlet"): (62.47, 68.08, 65.63, 63.89),
    ("cifar10", "labels1"): (10.00, 10.00, 12.71, 10.00),
    ("cifar10", "labels2"): (51.17, 49.42, 50.44, 46.90),
    ("cifar10", "labels3"): (59.11, 61.00, 59.20, 57.83),
}
FIRST: list[Row] = [  # run before the others
    *(("mnist", "dirichlet"), ("mnist", "labels2"), ("fashion_mnist", "dirichlet"), ("fashion_mnist", "labels2")),
    *(("cifar10", "dirichlet"), ("cifar10", "labels2"), ("cifar10", "iid")),
]
ROWS = [*FIRST, *(row for row in PUBLISHED if row not in FIRST)]
CHECKED: dict[Row, float] = {  # rows where FedAvg is run too: the deviation of the published figure over its seeds
    ("mnist", "dirichlet"): 0.07,
    ("mnist", "labels2"): 0.30,
    ("fashion_mnist", "labels2"): 2.51,
}
NOTHING = "none"  # task that runs nothing, and shows what earlier commands have finished
OURS, PLAIN = "auto", "FedAvg"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"rounds": 10, "epochs": 2, "samples": 6000},
    "paper": {"rounds": 50, "epochs": 10, "samples": None},
}
SIZES["medium"] = SIZES["paper"]
SHARE = 2 / 3  # of the rows


def task(row: Row) -> str:
    return f"{row[0]}-{row[1]}"


@experiment(
    "niid-bench",
    "`auto` and four published columns on data silos (NIID-Bench, table 3, as run by Flower)",
    tasks=(*DATA, *map(task, PUBLISHED), NOTHING),
)
def table_3(lab: Lab) -> Outcome:
    cells = {
        (row, method, seed): _cell(lab, row, method, seed)
        for method in (OURS, PLAIN)
        for seed in range(lab.seeds)
        for row in ROWS
        if method == OURS or row in CHECKED or lab.small
    }
    asked = [one for (row, _, _), one in cells.items() if not lab.tasks or {row[0], task(row)} & set(lab.tasks)]
    found = lab.run(asked)
    found |= lab.saved([one for one in cells.values() if one.name not in found])
    rows: dict[Row, Runs] = {}
    for (row, method, seed), one in cells.items():
        if one.name in found:
            rows.setdefault(row, {}).setdefault(method, {})[seed] = found[one.name]
    known = {row: runs for row, runs in rows.items() if OURS in runs and (PLAIN in runs or not lab.small)}
    partly = lab.begun([one for one in cells.values() if one.name not in found])
    rounds = {row: partly.get(cells[row, OURS, 0].name, []) for row in ROWS if row not in known}
    claims = [_reaches(lab, row, known[row]) if row in known else _so_far(lab, row, rounds[row]) for row in PUBLISHED]
    claims += _together(lab, known, [some for some in claims if " rounds, 1 seed" in some.ours])
    claims += [_same_protocol(lab, row, rows[row]) for row in CHECKED if PLAIN in rows.get(row, {}) and not lab.small]
    settings = {**SIZES[lab.scale], "clients": f"{CLIENTS}, all in every round", "batch": 64, "weight decay": 1e-5}
    return Outcome(claims, _pictures(known), _figures(rows), {**settings, "FedAvg": "rate 0.01, momentum 0.9"})


def _cell(lab: Lab, row: Row, method: str, seed: int) -> Cell:
    arguments = {"data": row[0], "split": row[1], "method": method, "seed": seed, **SIZES[lab.scale]}
    return Cell(f"niid-bench {task(row)} {method} s{seed}", silos, arguments, resumes=True)


def best(result: Result) -> float:
    """Return the best round's test accuracy in per cent, as the benchmark does; 0 without any."""
    return 100 * max(result["history"]["test_accuracy"], default=0.0)


def last(result: Result) -> float:
    """Return the last round's test accuracy in per cent; 0 for a run that diverged."""
    return 0.0 if result["diverged"] else 100 * float(result["history"]["test_accuracy"][-1])


def _mean(runs: Runs, method: str) -> float:
    return fmean(map(best, runs[method].values()))


def _label(row: Row) -> str:
    return f"{DATA[row[0]]}, {PARTITIONS[row[1]]}"


def _text(row: Row) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in zip(COLUMNS, PUBLISHED[row], strict=True))


def _so_far(lab: Lab, row: Row, rounds: Sequence[Result]) -> Claim:
    """Judge a run that was interrupted: more rounds can only raise the best round, so it may have reached its goal."""
    what, paper = f"{_label(row)}: auto reaches the best column", _text(row)
    if not rounds:
        return Claim(what, paper, "left out", NOT_RUN)
    top = 100 * max(each["test_accuracy"] for each in rounds)
    words = f"auto {top:.2f} after {len(rounds)} of {SIZES[lab.scale]['rounds']} rounds, 1 seed"
    if top >= max(PUBLISHED[row]) and not lab.small:
        return lab.judge(what, paper, words, True)
    return Claim(what, paper, words, NOT_RUN)


def _margins(lab: Lab, row: Row, runs: Runs) -> list[float]:
    """Return the distance of each seed to the best published column; at small scale, to our FedAvg with that seed."""
    if lab.small:
        return [best(run) - best(runs[PLAIN][seed]) for seed, run in runs[OURS].items() if seed in runs[PLAIN]]
    return [best(run) - max(PUBLISHED[row]) for run in runs[OURS].values()]


def _reaches(lab: Lab, row: Row, runs: Runs) -> Claim:
    words = f"auto {_mean(runs, OURS):.2f} (last round {fmean(map(last, runs[OURS].values())):.2f})"
    words += f", FedAvg {_mean(runs, PLAIN):.2f}" if PLAIN in runs else ""
    margins = _margins(lab, row, runs)
    goal = "our FedAvg" if lab.small else "the best column"
    top = max(_mean(runs, OURS), max(PUBLISHED[row]))
    return lab.weigh(
        f"{_label(row)}: auto reaches {goal}",
        _text(row),
        words,
        lambda margin: margin,
        fmean(margins),
        margins,
        best=[top],
        strict=False,
    )


def _together(lab: Lab, rows: dict[Row, Runs], partly: Sequence[Claim]) -> list[Claim]:
    """Count the rows that reach their goal; a row that is not complete counts as one that has not, until it has."""
    count = len(rows) + len(partly)
    if not count:
        return []
    reached = sum(fmean(_margins(lab, row, runs)) >= 0 for row, runs in rows.items())
    reached += sum(claim.verdict != NOT_RUN for claim in partly)
    goal = "our FedAvg" if lab.small else "the best published column"
    what = f"auto, untuned, reaches {goal} on at least two thirds of the rows"
    words = f"on {reached} of {count}" + (f", {len(partly)} of them not complete" if partly else "")
    return [lab.judge(what, "not part of the benchmark", words, reached >= SHARE * count)]


def _same_protocol(lab: Lab, row: Row, runs: Runs) -> Claim:
    allowed = max(1.0, 2 * CHECKED[row])
    published = PUBLISHED[row][0]
    scores = [best(run) for run in runs[PLAIN].values()]
    return lab.weigh(
        f"{_label(row)}: our FedAvg is within {allowed:g} points of the published one",
        f"{published:.2f} ± {CHECKED[row]:.2f}",
        f"{fmean(scores):.2f}",
        lambda score: allowed - abs(score - published),
        fmean(scores),
        scores,
        strict=False,
    )


def _pictures(rows: dict[Row, Runs]) -> list[Picture]:
    note = "Test accuracy of auto by round, first seed."
    return [
        curves(name, note, {PARTITIONS[row[1]]: _path(runs) for row, runs in rows.items() if row[0] == data}, y="%")
        for data, name in DATA.items()
        if any(row[0] == data for row in rows)
    ]


def _path(runs: Runs) -> tuple[Sequence[int], list[float | None]]:
    history = runs[OURS][min(runs[OURS])]["history"]
    return history["round"], [100 * value for value in history["test_accuracy"]]


def _figures(rows: dict[Row, Runs]) -> dict[str, Any]:
    """Return the accuracies of all seeds, for the record."""
    return {
        _label(row): {
            "published": dict(zip(COLUMNS, PUBLISHED[row], strict=True)),
            **{
                f"{method}, {word}": {f"seed {seed}": round(score(run), 2) for seed, run in some.items()}
                for method, some in runs.items()
                for word, score in (("best round", best), ("last round", last))
            },
        }
        for row, runs in rows.items()
    }
