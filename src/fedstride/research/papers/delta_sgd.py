"""Tasks, optimisers, search and scores common to the experiments of Delta-SGD.

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: at small scale, a small CNN replaces ResNet-18, clients have 200 samples, and there are fewer rounds; at medium
scale, McMahan's CNN or a narrow ResNet-18 replaces ResNet-18; at the paper's scale, ResNet-18 has GroupNorm. A decayed rate starts at the best constant one, as in the authors' program. Accuracy is
the mean of the last three evaluations. CIFAR-100 and the text data are not run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedstride.app.sweep import Cell, Result
from fedstride.research.papers.experiment import NOT_RUN, Claim, Lab, Picture, curves, heat_map
from fedstride.research.papers.tasks import accuracy, cell, cifar_model

Place = tuple[str, float]  # task, alpha
Column = dict[str, float]  # optimiser: test accuracy in per cent
Columns = Mapping[Place, Column]
Runs = dict[str, list[Result]]  # optimiser: one run per seed
Part = dict[str, Any]

OURS = "Delta-SGD"
RULES = {
    OURS: "DeltaSGD",
    "SGD": "Constant",
    "SGDM": "Momentum",
    "Adam": "Adam",
    "Adagrad": "Adagrad",
    "SPS": "Polyak",
}
DECAYED = {"SGD decayed": "SGD", "SGDM decayed": "SGDM"}
OPTIMISERS = (OURS, "SGD", "SGD decayed", "SGDM", "SGDM decayed", "Adam", "Adagrad", "SPS")
GRID = {  # Delta-SGD sec. 4
    "SGD": (0.01, 0.05, 0.1, 0.5),
    "SGDM": (0.01, 0.05, 0.1, 0.5),
    "Adam": (0.001, 0.01, 0.1),
    "Adagrad": (0.001, 0.01, 0.1),
}
TUNED: Place = ("cifar10", 0.1)  # task of the grid search
ALPHAS = (1.0, 0.1, 0.01)
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
PLACES: list[Place] = [(task, alpha) for task in NAMES for alpha in ALPHAS]
ROUNDS = {
    "small": {"mnist": 40, "fashion_mnist": 300, "cifar10": 45},
    "paper": {"mnist": 500, "fashion_mnist": 1000, "cifar10": 2000},
}
ROUNDS["medium"] = ROUNDS["paper"]
EVALUATIONS = {"small": 15, "medium": 100, "paper": 100}
POOR = 2.0  # points behind the best: the paper marks results from here on in pink
GOOD = 0.5  # points behind the best: the paper prints results up to here in bold
BORROWED = "Rates from CIFAR-10, α = 0.1."


def in_order(*accuracies: float) -> Column:
    """Return a column from values in the order of the paper's tables, which have Delta-SGD last."""
    return dict(zip((*OPTIMISERS[1:], OURS), accuracies, strict=True))


TABLE_1: dict[Place, Column] = {
    ("mnist", 1.0): in_order(98.3, 97.8, 98.5, 98.4, 94.7, 64.3, 10.1, 98.4),
    ("mnist", 0.1): in_order(98.1, 98.0, 97.6, 98.0, 96.4, 89.9, 96.0, 98.1),
    ("mnist", 0.01): in_order(96.8, 97.2, 77.9, 94.0, 80.8, 72.4, 69.7, 97.5),
    ("fashion_mnist", 1.0): in_order(86.5, 86.3, 85.2, 87.2, 71.8, 45.5, 85.9, 87.3),
    ("fashion_mnist", 0.1): in_order(83.6, 84.7, 83.6, 86.1, 80.4, 46.3, 85.0, 86.4),
    ("fashion_mnist", 0.01): in_order(79.0, 79.3, 75.7, 79.5, 60.6, 45.9, 44.0, 80.2),
    ("cifar10", 1.0): in_order(87.7, 87.8, 88.7, 89.3, 89.4, 86.6, 82.7, 89.8),
    ("cifar10", 0.1): in_order(72.1, 78.4, 79.6, 77.9, 85.0, 84.1, 70.3, 84.5),
    ("cifar10", 0.01): in_order(22.6, 33.9, 28.4, 29.0, 22.1, 12.5, 21.5, 31.6),
}


def trial(
    lab: Lab, place: Place, step: Part, *, rounds: int | None = None, parts: Part | None = None, **settings: Any
) -> Cell:
    """Return a run at a place that evaluates its last iterate, as in the paper; `parts` are besides the step rule."""
    task, alpha = place
    rounds = rounds or ROUNDS[lab.scale][task]
    size: dict[str, Any] = {}
    if not lab.small:
        size = cifar_model(lab) if task == "cifar10" else {"model__options": {"dropout": 0.5}}
    every = -(-rounds // EVALUATIONS[lab.scale])
    size |= {"training__readout": "last", "training__evaluate_every": every, "data__alpha": alpha}
    algorithm = {"name": "custom", "step": step, **(parts or {})}
    return cell(lab, task, algorithm, rounds=rounds, **size, **settings)


def is_asked(lab: Lab, place: Place) -> bool:
    """Whether a place is to be run, by --tasks; all by default."""
    return not lab.tasks or bool({place[0], task(place)} & set(lab.tasks))


def task(place: Place) -> str:
    """Return the name of a place in --tasks."""
    return f"{place[0]}-{place[1]:g}"


def left_out(shown: Iterable[Place], of: Mapping[Place, Column]) -> list[Claim]:
    """Return the places that were not asked for, and that no earlier command has finished."""
    rest = [place for place in of if place not in shown]
    return [not_run(f"Delta-SGD's place: {label(p)}", standing(of[p]), "left out by --tasks") for p in rest]


def search(lab: Lab) -> dict[str, dict[float, float]]:
    """Return the accuracies on the task of the search, by optimiser and rate."""
    cells = {
        (name, lr): trial(lab, TUNED, {"part": RULES[name], "lr": lr}) for name, grid in GRID.items() for lr in grid
    }
    found = lab.run(list(cells.values()))
    return {name: {lr: final([found[cells[name, lr].name]]) for lr in grid} for name, grid in GRID.items()}


def steps(lab: Lab) -> dict[str, Part]:
    """Return the step rule of every optimiser, with the given rate or the one found by the search if it needs one."""
    rates = lab.rates or {name: max(scores, key=scores.__getitem__) for name, scores in search(lab).items()}

    def rule(name: str) -> Part:
        base = DECAYED.get(name, name)
        rate = {"lr": rates[base]} if base in rates else {}
        return {"part": RULES[base], **rate, **({"schedule": {"part": "Stepwise"}} if name in DECAYED else {})}

    return {name: rule(name) for name in OPTIMISERS}


def measured(
    lab: Lab, optimisers: Sequence[str], places: Sequence[Place], seeds: int | None = None, **more: Any
) -> dict[Place, Runs]:
    """Return the runs of these optimisers at these places, all with the rates found by the search.

    Places that --tasks leaves out have the seeds that earlier commands have finished, if any.
    """
    rules = steps(lab)
    cells = {
        (place, name, seed): trial(lab, place, rules[name], seed=seed, **more)
        for place in places
        for name in optimisers
        for seed in range(seeds or lab.seeds)
    }
    found = lab.run([one for (place, _, _), one in cells.items() if is_asked(lab, place)])
    found |= lab.saved([one for (place, _, _), one in cells.items() if not is_asked(lab, place)])
    runs: dict[Place, Runs] = {}
    for place in places:
        for seed in range(seeds or lab.seeds):
            these = {name: cells[place, name, seed].name for name in optimisers}
            if all(one in found for one in these.values()):
                column = runs.setdefault(place, {name: [] for name in optimisers})
                for name, one in these.items():
                    column[name].append(found[one])
    return runs


def seed_by_seed(runs: Mapping[Place, Runs]) -> list[dict[Place, Column]]:
    """Return the accuracies of each seed."""
    count = min(len(some) for of_place in runs.values() for some in of_place.values())
    return [
        {place: finals({name: some[seed : seed + 1] for name, some in named.items()}) for place, named in runs.items()}
        for seed in range(count)
    ]


def final(runs: Sequence[Result]) -> float:
    return statistics.fmean(accuracy(run, last=3) for run in runs)


def finals(runs: Runs) -> Column:
    return {name: final(some) for name, some in runs.items()}


def behind(column: Column, name: str = OURS) -> float:
    """Return the distance to the best of the column, in points."""
    return max(column.values()) - column[name]


def mean_behind(columns: Iterable[Column], names: Sequence[str]) -> float:
    return statistics.fmean(behind(c, name) for c in columns for name in names)


def label(place: Place) -> str:
    return f"{NAMES[place[0]]}, α = {place[1]:g}"


def standing(column: Column) -> str:
    """Describe Delta-SGD's accuracy, distance to the best, and rank."""
    rank = 1 + sum(value > column[OURS] for value in column.values())
    best = max(column, key=column.__getitem__)
    lead = "the best" if rank == 1 else f"{behind(column):.1f} behind {best}"
    return f"{column[OURS]:.1f} %, {lead}, place {rank} of {len(column)}"


def placed(lab: Lab, where: str, paper: Column, runs: Runs) -> Claim:
    """Check that Delta-SGD is as near to the best as in the paper, or at least not poor, among the optimisers run."""
    ours = finals(runs)
    paper = {name: paper[name] for name in ours}
    allowed = max(POOR, behind(paper))
    return lab.weigh(
        f"Delta-SGD's place: {where}",
        standing(paper),
        standing(ours),
        lambda column: allowed - behind(column),
        ours,
        [one["", 0.0] for one in seed_by_seed({("", 0.0): runs})],
        best=[max(ours.values())],
        strict=False,
    )


def listed(values: Column) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in values.items())


def not_run(what: str, paper: str, why: str = "CIFAR-100 is not among the data sources") -> Claim:
    return Claim(what, paper, why, NOT_RUN)


def points(run: Result) -> tuple[list[int], list[float]]:
    """Return the evaluated rounds and their accuracies in per cent."""
    scores = zip(run["history"]["round"], run["history"]["test_accuracy"], strict=True)
    scored = [(t, 100 * v) for t, v in scores if v is not None]
    return [t for t, _ in scored], [v for _, v in scored]


def paths(title: str, note: str, runs: Runs) -> Picture:
    """Draw the first seed's accuracies over the rounds."""
    return curves(title, note, {name: points(some[0]) for name, some in runs.items()}, y="test accuracy, %")


def heat(title: str, columns: Mapping[str, Column]) -> Picture:
    """Draw a table, coloured by the distance to the best of its column."""
    names = list(next(iter(columns.values())))
    z = [[round(behind(c, name), 2) for c in columns.values()] for name in names]
    shown = [[f"{c[name]:.1f}" for c in columns.values()] for name in names]
    trace = heat_map(list(columns), names, z, shown, "%{y}, %{x}: %{text} %, %{z} behind the best", zmin=0, zmax=20)
    axes = {"xaxis": {"showgrid": False}, "yaxis": {"autorange": "reversed", "showgrid": False, "nticks": len(names)}}
    note = "Test accuracy in per cent; the colour is the distance to the best of the column."
    return Picture(title, note, {"data": [trace], "layout": {**axes, "hovermode": "closest"}})


def rounded(columns: Columns) -> dict[str, Column]:
    """Round the columns for the record."""
    return {label(place): {name: round(v, 2) for name, v in c.items()} for place, c in columns.items()}


MODELS = {
    "small": "small CNN, 6 and 12 filters",
    "medium": "CNN with dropout; CIFAR-10: McMahan's CNN",
    "residual": "CNN with dropout; CIFAR-10: ResNet-18 of width 16",
    "paper": "CNN with dropout; CIFAR-10: ResNet-18",
}


def about(lab: Lab, **more: Any) -> dict[str, Any]:
    rates = {name: step["lr"] for name, step in steps(lab).items() if "lr" in step}
    sizes = "100 clients of 200 samples, batches of 50" if lab.small else "100 clients of 500 samples, batches of 64"
    model = MODELS["residual" if lab.residual else lab.scale]
    source = "given rates" if lab.rates else "rates found on CIFAR-10, α = 0.1"
    fixed = {source: rates, "model": model, "clients": f"{sizes}, 10 per round", "epochs": 1}
    return {**fixed, "rounds": ROUNDS[lab.scale], **more}
