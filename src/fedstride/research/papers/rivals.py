"""Tasks, baselines and scores common to the deep experiments of FedExP and FedSLS.

Deviations: at small scale, a small CNN replaces ResNet-18 on CIFAR-10, softmax regression the CNN on handwriting, and a
perceptron the LSTM on text; at medium scale, McMahan's CNN or a narrow ResNet-18 replaces ResNet-18, and the CNN of
Delta-SGD that of Reddi et al., which needs twenty times the operations. At all scales, MNIST by writer replaces
EMNIST and FEMNIST. Gradients are clipped at norm 10. The mean of the last two iterates is the read-out of FedExP and its
variants (FedExP sec. 5) and of FedExpSLS, although FedSLS alg. 5 returns the last iterate; the last iterate is that of the
others. Accuracies of both are recorded. The training loss is what the clients report of the model that they receive, which is
the last iterate (FedSLS sec. 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, TypeVar

from fedstride.app.sweep import Cell, Result
from fedstride.research.papers.experiment import CHANCE, NOT_RUN, Claim, Lab, Picture, curves
from fedstride.research.papers.tasks import (
    ROUNDS,
    Algorithm,
    accuracy,
    cell,
    cifar_model,
    is_augmented,
    loss,
    rounds_to,
    text,
)

Runs = dict[str, list[Result]]  # recipe: one run per seed
Options = dict[str, Any]
K = TypeVar("K")
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
            "training__batch_size": 50,
            "training__cohort": 20,
            "training__local_steps": 20,
        },
        "emnist": {
            "model__name": "reddi_cnn",
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
SIZES["medium"] = {**SIZES["paper"], "emnist": {**SIZES["paper"]["emnist"], "model__name": "small_cnn"}}
CHANCES = {"cifar10": CHANCE, "emnist": CHANCE, "femnist": CHANCE, "shakespeare": 100 / 77}  # 77 characters

TWO_ITERATES = ("fedexp", "scaffold_exp", "fedexpm", "fedexpsls")  # judged by the mean of two, the others by the last
SEARCHES = (
    "fedsls",
    "fedexpsls",
)  # a line search has no rate to decay, and needs unclipped gradients


def trial(lab: Lab, place: str, recipe: str, options: Options, rounds: int = TUNED, seed: int = 0) -> Cell:
    """Return a run of a recipe with FedExP's weight decay, clipping and decay of the rate, named for use in file names.

    Its result has the scores of both read-outs, of the last iterate and of the mean of the last two. If the recipe is
    not judged by the mean of two, the mean is scored only in the last fifth of the rounds.
    """
    algorithm: Algorithm = {"name": recipe, **options}
    settings = {**SIZES[lab.scale][place], "training__weight_decay": 1e-4}
    if place == "cifar10" and not lab.small:
        settings |= cifar_model(lab)
    if recipe not in SEARCHES:
        algorithm["schedule"] = {"part": "Exponential"}
        settings["training__clip_norm"] = 10
    settings["training__readout"] = "last"
    if rounds > TUNED:
        settings["training__evaluate_every"] = 5
    run = cell(lab, TASKS[place], algorithm, rounds=rounds, seed=seed, **settings)
    model = run.arguments["config"]["model"]["name"]
    name = f"fedexp {TASKS[place]} {model} {text(algorithm)} r{rounds} s{seed}"
    name += " augmented" if is_augmented(lab, TASKS[place]) else ""
    pair = 1 if recipe in TWO_ITERATES else rounds - rounds // 5
    return replace(run, name=name, arguments={**run.arguments, "pair": pair})


def results(lab: Lab, cells: Mapping[K, tuple[str, Cell]]) -> dict[K, Result]:
    """Return the results of runs, given with their recipes; test accuracy and loss are those of the recipe's read-out."""
    found = lab.run([one for _, one in cells.values()])
    return {key: _read_out(recipe, found[one.name]) for key, (recipe, one) in cells.items()}


def _read_out(recipe: str, result: Result) -> Result:
    history = dict(result["history"])
    for score in ("loss", "accuracy"):
        history[f"last_{score}"] = history[f"test_{score}"]
        if recipe in TWO_ITERATES:
            history[f"test_{score}"] = history[f"pair_{score}"]
    return {**result, "history": history}


def power(exponent: float) -> float:
    """Return 10^exponent, rounded for use in names."""
    return float(f"{10**exponent:.3g}")


def score(runs: Sequence[Result]) -> float:
    return fmean(accuracy(run) for run in runs)


def seed_by_seed(runs: Runs) -> list[Runs]:
    """Return the runs of each seed."""
    count = min(map(len, runs.values()))
    return [{recipe: some[seed : seed + 1] for recipe, some in runs.items()} for seed in range(count)]


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


def both(runs: Runs) -> str:
    """List accuracies by the recipe's own read-out, with those by the other one in brackets."""

    def other(recipe: str, some: Sequence[Result]) -> str:
        word, column = ("last", "last_accuracy") if recipe in TWO_ITERATES else ("mean of two", "pair_accuracy")
        return f"({word} {fmean(accuracy(run, column) for run in some):.1f})"

    return ", ".join(f"{NAMES[recipe]} {score(some):.1f} {other(recipe, some)}" for recipe, some in runs.items())


def read_outs(runs: Runs) -> dict[str, dict[str, float]]:
    """Return the accuracies of both read-outs, for the record."""
    columns = {"last iterate": "last_accuracy", "mean of two": "pair_accuracy"}
    return {
        word: {recipe: round(fmean(accuracy(run, column) for run in some), 3) for recipe, some in runs.items()}
        for word, column in columns.items()
    }


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in values.items()}


def about(lab: Lab, best: Best) -> dict[str, Any]:
    """Return the settings for the page."""
    found = {f"{DATA[place]}, {NAMES[r]}": options for (place, r), options in best.items() if options}
    return {"parameters found": found, "rounds": ROUNDS[lab.scale], "rounds of the search": TUNED, "seeds": lab.seeds}


def not_run(what: str, paper: str, why: str = "it is not among the data sources") -> Claim:
    return Claim(what, paper, why, NOT_RUN)
