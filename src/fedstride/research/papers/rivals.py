"""Where 003 and 000 meet: the same tasks, the same rivals, and how the parameters of these are found.

Deviations: the best parameters are those of the highest test accuracy after 50 rounds, where 003 D.3 takes training accuracy. At
small scale a small CNN takes ResNet-18's place on CIFAR-10, softmax regression the CNN's on handwriting and a perceptron the
LSTM's on text; the grids are coarser, and searched one parameter after the other. EMNIST and FEMNIST are replaced by MNIST, by
writer, at either scale. Gradients are clipped at norm 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from fedstride.app.sweep import Cell, Result
from fedstride.research.papers.experiment import NOT_RUN, Claim, Lab, Picture, curves
from fedstride.research.papers.tasks import ROUNDS, Algorithm, accuracy, cell, loss, rounds_to, text

Runs = dict[str, list[Result]]  # recipe: one run per seed
Options = dict[str, float]
At = tuple[str, str]  # place, recipe
Best = dict[At, Options]

TUNED = 50  # rounds of a trial
NAMES = {
    "fedexp": "FedExP",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "fedadagrad": "FedAdagrad",
    "scaffold_exp": "SCAFFOLD-ExP",
    "fedexpm": "FedExP-M",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedexprox": "FedExProx",
    "fedsls": "FedSLS",
    "fedexpsls": "FedExpSLS",
}
TASKS = {"cifar10": "cifar10", "emnist": "mnist_writers", "femnist": "mnist_writers", "shakespeare": "shakespeare"}
DATA = {
    "cifar10": "CIFAR-10",
    "emnist": "MNIST by writer for EMNIST",
    "femnist": "MNIST by writer for FEMNIST",
    "shakespeare": "Shakespeare",
}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {
        "cifar10": {"data__alpha": 0.3, "training__batch_size": 20},  # an epoch is ten steps
        "emnist": {
            "model__name": "softmax",
            "model__options": {},
            "training__cohort": 20,
            "training__local_steps": 20,
            "training__evaluate_every": 1,
        },
        "shakespeare": {"model__name": "char_mlp", "training__local_steps": 10},
    },
    "paper": {
        "cifar10": {
            "data__alpha": 0.3,
            "model__name": "resnet18",
            "training__batch_size": 50,
            "training__cohort": 20,
            "training__local_steps": 20,
        },
        "emnist": {
            "model__name": "mcmahan_cnn",
            "training__batch_size": 50,
            "training__cohort": 20,
            "training__local_steps": 20,
        },
        "femnist": {
            "model__name": "softmax",
            "training__batch_size": 50,
            "training__cohort": 20,
            "training__local_steps": 20,
        },
        "shakespeare": {"training__cohort": 20},
    },
}
SIZES["small"]["femnist"] = SIZES["small"]["emnist"]

# log10 of what is searched; at small scale from the first value on
RATES: dict[str, dict[str, tuple[float, ...]]] = {
    "small": {
        "cifar10": (-1.5, -1, -0.5),
        "emnist": (-2, -1.5, -1, -0.5),
        "femnist": (-2, -1.5, -1, -0.5),
        "shakespeare": (-1.5, -1, -0.5),
    },
    "paper": dict.fromkeys(TASKS, (-2, -1.5, -1, -0.5, 0)),
}
SECOND: dict[str, dict[str, tuple[str, tuple[float, ...]]]] = {
    "small": {
        "fedexp": ("eps", (-3, -2, -1)),
        "fedavg": ("server_lr", (0, -0.5, 0.5)),
        "scaffold": ("server_lr", (0, -0.5, 0.5)),
        "fedadagrad": ("server_lr", (-1, -1.5, -0.5)),
        "scaffold_exp": ("eps", (-3,)),
        "fedexpm": ("eps", (-3,)),
        "fedavgm": ("server_lr", (0, -0.5)),
        "fedadam": ("server_lr", (-2, -1.5)),
        "fedexprox": ("gamma", (0, 1)),
    },
    "paper": {
        **dict.fromkeys(("fedexp", "scaffold_exp", "fedexpm"), ("eps", (-3, -2.5, -2, -1.5, -1))),
        **dict.fromkeys(("fedavg", "scaffold", "fedavgm"), ("server_lr", (-1, -0.5, 0, 0.5, 1))),
        **dict.fromkeys(("fedadagrad", "fedadam"), ("server_lr", (-2, -1.5, -1, -0.5, 0))),
        "fedexprox": ("gamma", (-1, 0, 1)),
    },
}
TWO_ITERATES = ("fedexp", "scaffold_exp")  # read out as a mean; with the others that would only be a second evaluation
SEARCHES = (
    "fedsls",
    "fedexpsls",
)  # a line search has no rate that could decay, and a clipped gradient would mislead it


def trial(lab: Lab, place: str, recipe: str, options: Options, rounds: int = TUNED, seed: int = 0) -> Cell:
    """A run of a recipe with 003's weight decay, clipping and decay of the rate, under a name that files can have."""
    algorithm: Algorithm = {"name": recipe, **options}
    settings = {**SIZES[lab.scale][place], "training__weight_decay": 1e-4}
    if recipe not in SEARCHES:
        algorithm["schedule"] = {"part": "Exponential"}
        settings["training__clip_norm"] = 10
    if recipe not in TWO_ITERATES:
        settings["training__readout"] = "last"
    if rounds > TUNED:
        settings["training__evaluate_every"] = 5
    run = cell(lab, TASKS[place], algorithm, rounds=rounds, seed=seed, **settings)
    model = run.arguments["config"]["model"]["name"]
    return replace(run, name=f"003 {TASKS[place]} {model} {text(algorithm)} r{rounds} s{seed}")


def power(exponent: float) -> float:
    """Of ten, short enough for a name."""
    return float(f"{10**exponent:.3g}")


def tuned(lab: Lab, wanted: Iterable[At]) -> Best:
    """The best parameters of recipes at places; a line search has none to find."""
    wanted = list(wanted)
    rates = {at: [power(r) for r in RATES[lab.scale][at[0]]] for at in wanted if at[1] not in SEARCHES}
    second = {at: (SECOND[lab.scale][at[1]][0], [power(v) for v in SECOND[lab.scale][at[1]][1]]) for at in rates}
    if lab.small:
        first = _best(lab, {at: [{"lr": lr, second[at][0]: second[at][1][0]} for lr in rates[at]] for at in rates})
        found = _best(
            lab, {at: [{**first[at], key: value} for value in values] for at, (key, values) in second.items()}
        )
    else:
        grids = {at: product(rates[at], values) for at, (_, values) in second.items()}
        found = _best(lab, {at: [{"lr": lr, second[at][0]: v} for lr, v in grid] for at, grid in grids.items()})
    return {at: found.get(at, {}) for at in wanted}


def _best(lab: Lab, tried: Mapping[At, Sequence[Options]]) -> Best:
    cells = {(at, i): trial(lab, *at, options) for at, some in tried.items() for i, options in enumerate(some)}
    found = lab.run(list(cells.values()))
    scores = {key: accuracy(found[one.name]) for key, one in cells.items()}
    return {at: some[max(range(len(some)), key=lambda i: scores[at, i])] for at, some in tried.items()}


def finals(lab: Lab, wanted: Iterable[At]) -> tuple[Best, dict[str, Runs]]:
    """The best parameters, and the runs of full length with them by place."""
    best = tuned(lab, wanted)
    cells = {
        (at, seed): trial(lab, *at, options, ROUNDS[lab.scale], seed)
        for at, options in best.items()
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    runs: dict[str, Runs] = {}
    for place, recipe in best:
        some = [found[cells[(place, recipe), seed].name] for seed in range(lab.seeds)]
        runs.setdefault(place, {})[recipe] = some
    return best, runs


def score(runs: Sequence[Result]) -> float:
    return fmean(accuracy(run) for run in runs)


def training_loss(runs: Sequence[Result]) -> float:
    """Mean over the last ten rounds of what the participating clients report."""
    return fmean(loss(run, "train_loss", last=10) for run in runs)


def scores(runs: Runs) -> dict[str, float]:
    return {recipe: score(some) for recipe, some in runs.items()}


def points(run: Result, column: str = "test_accuracy", factor: float = 100) -> tuple[list[int], list[float]]:
    """The rounds that have a value, and the values."""
    pairs = zip(run["history"]["round"], run["history"][column], strict=True)
    kept = [(t, factor * v) for t, v in pairs if v is not None]
    return [t for t, _ in kept], [v for _, v in kept]


def target_of(runs: Sequence[Result], rounds: int) -> float:
    """The target where a paper's does not fit: FedAvg's mean accuracy over the third quarter of its rounds, per cent."""
    return fmean(v for run in runs for t, v in zip(*points(run), strict=True) if rounds / 2 < t <= rounds * 3 / 4)


def needed(runs: Sequence[Result], target: float, rounds: int) -> float:
    """Mean number of rounds to the target; a run that does not reach it counts one round more than it had."""
    return fmean(rounds_to(run, target) or rounds + 1 for run in runs)


def paths(title: str, note: str, runs: Runs) -> Picture:
    """The first seed's accuracies over the rounds."""
    series = {NAMES[recipe]: points(some[0]) for recipe, some in runs.items()}
    return curves(title, note, series, y="test accuracy, %")


def listed(values: Mapping[str, float], form: str = ".1f") -> str:
    return ", ".join(f"{NAMES[recipe]} {value:{form}}" for recipe, value in values.items())


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in values.items()}


def about(lab: Lab, best: Best) -> dict[str, Any]:
    """For the page."""
    found = {f"{DATA[place]}, {NAMES[r]}": options for (place, r), options in best.items() if options}
    return {"parameters found": found, "rounds": ROUNDS[lab.scale], "rounds of the search": TUNED, "seeds": lab.seeds}


def not_run(what: str, paper: str, why: str = "it is not among the data sources") -> Claim:
    return Claim(what, paper, why, NOT_RUN)
