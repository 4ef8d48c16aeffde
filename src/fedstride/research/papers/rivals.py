"""Tasks and baselines common to FedExP and FedSLS, and the tuning of the baselines.

Deviations: the best parameters are those with the highest test accuracy after 50 rounds, while FedExP app. D.3 uses
training accuracy. At small scale, a small CNN replaces ResNet-18 on CIFAR-10, softmax regression the CNN on handwriting, and a
perceptron the LSTM on text; the grids are coarser and searched one parameter at a time. At both scales, MNIST by writer
replaces EMNIST and FEMNIST. Gradients are clipped at norm 10.
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

TUNED = 50  # rounds of a tuning run
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

# log10 of the search grids; at small scale, the search starts at the first value
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
TWO_ITERATES = ("fedexp", "scaffold_exp")  # return a mean of two iterates; the others return the last iterate
SEARCHES = (
    "fedsls",
    "fedexpsls",
)  # a line search has no rate to decay, and needs unclipped gradients


def trial(lab: Lab, place: str, recipe: str, options: Options, rounds: int = TUNED, seed: int = 0) -> Cell:
    """Return a run of a recipe with FedExP's weight decay, clipping and decay of the rate, named for use in file names."""
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
    return replace(run, name=f"fedexp {TASKS[place]} {model} {text(algorithm)} r{rounds} s{seed}")


def power(exponent: float) -> float:
    """Return 10^exponent, rounded for use in names."""
    return float(f"{10**exponent:.3g}")


def tuned(lab: Lab, wanted: Iterable[At]) -> Best:
    """Return the best parameters of recipes at places; empty for line searches, which need none."""
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
    """Return the best parameters, and the full-length runs with them by place."""
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
    """Return the mean training loss of the participating clients over the last ten rounds."""
    return fmean(loss(run, "train_loss", last=10) for run in runs)


def scores(runs: Runs) -> dict[str, float]:
    return {recipe: score(some) for recipe, some in runs.items()}


def points(run: Result, column: str = "test_accuracy", factor: float = 100) -> tuple[list[int], list[float]]:
    """Return the rounds that have a value, and the values."""
    pairs = zip(run["history"]["round"], run["history"][column], strict=True)
    kept = [(t, factor * v) for t, v in pairs if v is not None]
    return [t for t, _ in kept], [v for _, v in kept]


def target_of(runs: Sequence[Result], rounds: int) -> float:
    """Return the target if the paper's is not applicable: FedAvg's mean accuracy in the third quarter, in per cent."""
    return fmean(v for run in runs for t, v in zip(*points(run), strict=True) if rounds / 2 < t <= rounds * 3 / 4)


def needed(runs: Sequence[Result], target: float, rounds: int) -> float:
    """Return the mean number of rounds to the target; a run that does not reach it counts as `rounds` + 1."""
    return fmean(rounds_to(run, target) or rounds + 1 for run in runs)


def paths(title: str, note: str, runs: Runs) -> Picture:
    """Draw the first seed's accuracies over the rounds."""
    series = {NAMES[recipe]: points(some[0]) for recipe, some in runs.items()}
    return curves(title, note, series, y="test accuracy, %")


def listed(values: Mapping[str, float], form: str = ".1f") -> str:
    return ", ".join(f"{NAMES[recipe]} {value:{form}}" for recipe, value in values.items())


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in values.items()}


def about(lab: Lab, best: Best) -> dict[str, Any]:
    """Return the settings for the page."""
    found = {f"{DATA[place]}, {NAMES[r]}": options for (place, r), options in best.items() if options}
    return {"parameters found": found, "rounds": ROUNDS[lab.scale], "rounds of the search": TUNED, "seeds": lab.seeds}


def not_run(what: str, paper: str, why: str = "it is not among the data sources") -> Claim:
    return Claim(what, paper, why, NOT_RUN)
