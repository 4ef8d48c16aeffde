"""The price of tuning: algorithms without a knob against algorithms tuned over their papers' grids, on many tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from fedstride.errors import InvalidInput
from fedstride.study import Cell, Result, Tell, complete, training
from fedstride.verify.law import KEEPS

EVALUATIONS = 20  # of a run, evenly spread
Choice = dict[str, Any]  # an algorithm's name and its arguments
Report = dict[str, Any]
Pick = Callable[..., str] | None  # min or max, of the names of tasks; None: the mean

# FedAvg's first paper tried 11 to 13 rates; here 9, and 2 more around the best. The others: the grids of 003, appendix D.
RATES = [10**e for e in (-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1)]
LR = [10**e for e in (-2, -1.5, -1, -0.5, 0)]
GRIDS: dict[str, dict[str, list[float]]] = {
    "fedavg": {"lr": RATES},
    "fedavgm": {"lr": LR},
    "fedprox": {"lr": LR, "mu": [0.001, 0.01, 0.1, 1.0]},
    "fedadam": {"lr": LR, "server_lr": [10**e for e in (-2, -1.5, -1, -0.5, 0)]},
    "scaffold": {"lr": LR},
    "fedexp": {"lr": LR, "eps": [10**e for e in (-3, -2.5, -2, -1.5, -1)]},
}
COARSE: dict[str, list[float]] = {"lr": LR[1:], "mu": [0.01, 0.1], "server_lr": [0.01, 0.1], "eps": [0.001, 0.1]}
FREE = ("auto", "delta_sgd", "fedsls", "fedexpsls", "fedsps")


@dataclass(frozen=True)
class Task:
    """A preset with settings."""

    preset: str
    what: str
    rounds: int
    settings: dict[str, Any] = field(default_factory=dict)


CNN = {
    "model.options": {"width": 6, "hidden": 32, "dropout": 0},
    "data.samples": 200,
    "training.batch_size": 50,
}
SOFTMAX = {"model.name": "softmax"}
TASKS = {
    "digits": Task("digits", "digits, MLP, 2 classes a client", 60),
    "breast-cancer": Task("breast_cancer", "breast cancer, linear, alpha 0.5", 60),
    "fashion-linear-0.1": Task("fashion_mnist", "Fashion-MNIST, linear, alpha 0.1", 100, SOFTMAX),
    "fashion-linear-1": Task("fashion_mnist", "Fashion-MNIST, linear, alpha 1", 100, {**SOFTMAX, "data.alpha": 1.0}),
    "mnist-mlp-0.1": Task(
        "mnist", "MNIST, MLP, alpha 0.1", 60, {"model.name": "mlp", "model.options": {"hidden": [100]}}
    ),
    "writers-mlp": Task(
        "mnist_writers", "MNIST by writer, MLP", 60, {"model.name": "mlp", "model.options": {"hidden": [50]}}
    ),
    "covtype-linear-1": Task("covtype", "covtype, linear, alpha 1", 60),
    "covtype-mlp-0.1": Task(
        "covtype",
        "covtype, MLP, alpha 0.1",
        60,
        {"model.name": "mlp", "model.options": {"hidden": [64]}, "data.alpha": 0.1, "data.samples": 500},
    ),
    "shakespeare-mlp": Task(
        "shakespeare",
        "Shakespeare by role, MLP on 12 characters",
        60,
        {"model.name": "char_mlp", "training.local_steps": 10},
    ),
    "fashion-cnn-0.1": Task("fashion_mnist", "Fashion-MNIST, CNN, alpha 0.1", 60, CNN),
    "fashion-cnn-1": Task("fashion_mnist", "Fashion-MNIST, CNN, alpha 1", 60, {**CNN, "data.alpha": 1.0}),
    "cifar-cnn-0.1": Task("cifar10", "CIFAR-10, CNN, alpha 0.1", 60, CNN),
    "cifar-cnn-1": Task("cifar10", "CIFAR-10, CNN, alpha 1", 60, {**CNN, "data.alpha": 1.0}),
}


SCALES = (0.05, 20.0)  # of the inputs of SCALED, for `auto`
SCALED = ("fashion-linear-0.1", "covtype-linear-1", "covtype-mlp-0.1", "mnist-mlp-0.1", "digits", "fashion-cnn-0.1")


def cell(task: str, algorithm: Choice, seed: int = 0, scale: float = 1.0) -> Cell:
    """One run; averaged read-out for every algorithm, so that like is compared with like."""
    t = TASKS[task]
    common = {
        "training.rounds": t.rounds,
        "training.evaluate_every": max(1, t.rounds // EVALUATIONS),
        "training.readout": "average",
        **{f"{part}.seed": seed for part in ("training", "data", "model")},
    }
    chosen = {f"algorithm.{key}": value for key, value in algorithm.items()}
    run = training(f"{task} {shown(algorithm)} s{seed}", {**t.settings, **common, **chosen}, t.preset)
    return (
        run if scale == 1 else replace(run, name=f"{run.name} x{scale:g}", arguments={**run.arguments, "scale": scale})
    )


def shown(algorithm: Choice) -> str:
    arguments = ",".join(f"{k}={v:.6g}" for k, v in algorithm.items() if k != "name")
    return f"{algorithm['name']}({arguments})" if arguments else str(algorithm["name"])


def grid(name: str, coarse: bool) -> list[Choice]:
    """All that is tried for a tuned algorithm."""
    axes = GRIDS[name] if name == "fedavg" or not coarse else {key: COARSE[key] for key in GRIDS[name]}
    return [{"name": name, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]


@dataclass(frozen=True)
class Tried:
    """What a method came to on a task: its best run, and the price of finding it."""

    method: str
    setting: str  # of the best run
    runs: int
    diverged: int
    accuracy: float  # per cent, of the averaged read-out after the last round
    last: float  # of the last iterates, mean of the last evaluations
    loss: float | None  # None: it diverged
    rounds_to_target: int | None  # to the accuracy of the best tuned FedAvg
    gradients: int  # samples, of all runs
    forwards: int
    bytes: int
    own_gradients: int  # of the best run alone


def measure(
    tasks: Sequence[str],
    folder: Path,
    tell: Tell = lambda done, total, name: None,
    seeds: int = 1,
    coarse: bool = False,
    trials: int = 0,
    tuned: Sequence[str] = tuple(GRIDS),
) -> Report:
    """Everything on every task. A tuned method has one setting for all seeds; trials: of Optuna, besides the grids."""
    optuna = _optuna() if trials else None
    names = [name for name in GRIDS if name == "fedavg" or name in tuned]
    choices = {task: {name: grid(name, coarse) for name in names} for task in tasks}
    free = [{"name": name} for name in FREE]
    cells = [
        cell(task, choice, seed)
        for task in tasks
        for choice in chain(free, *choices[task].values())
        for seed in range(seeds)
    ]
    results = complete(cells, folder / "cells", tell)
    finer = {task: _around(task, choices[task]["fedavg"], results, seeds) for task in tasks}
    more = [cell(task, choice, seed) for task in tasks for choice in finer[task] for seed in range(seeds)]
    scaled = {
        (task, scale): [cell(task, {"name": "auto"}, seed, scale) for seed in range(seeds)]
        for task in tasks
        if task in SCALED
        for scale in SCALES
    }
    results |= complete([*more, *chain(*scaled.values())], folder / "cells", tell)
    found: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        choices[task]["fedavg"] += finer[task]
        if optuna is not None:
            choices[task] |= _searched(optuna, task, folder, trials, seeds, results)
        target = _tried(task, "fedavg", choices[task]["fedavg"], results, seeds, math.inf).accuracy
        rows = [_tried(task, name, tried, results, seeds, target) for name, tried in choices[task].items()]
        rows += [_tried(task, one["name"], [one], results, seeds, target) for one in free]
        found[task] = [asdict(row) for row in rows]
    costs = _costs(found, {at: _mean([results[one.name] for one in runs], _accuracy) for at, runs in scaled.items()})
    rounds = {task: TASKS[task].rounds for task in tasks}
    return {
        "tasks": {task: {"what": TASKS[task].what, "rounds": rounds[task]} for task in tasks},
        "seeds": seeds,
        "grids": {name: len(choices[tasks[0]][name]) for name in choices[tasks[0]]},
        "results": found,
        "scaled": costs,
        "claims": claims(found, costs, rounds),
    }


def _around(task: str, tried: Sequence[Choice], results: dict[str, Result], seeds: int) -> list[Choice]:
    """Two rates more, next to the best."""
    best = max(tried, key=lambda choice: _mean(_runs(task, choice, results, seeds), _accuracy))
    return [{**best, "lr": best["lr"] * 10**e} for e in (-0.25, 0.25)]


def _optuna() -> Any:
    """The library, if it is there."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("--trials needs Optuna; install it with: pip install 'fedstride[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _searched(
    optuna: Any, task: str, folder: Path, trials: int, seeds: int, results: dict[str, Result]
) -> dict[str, list[Choice]]:
    """What Optuna tries for FedAvg and FedAdam: the rates, on a logarithmic scale. Its runs are kept as all others are."""
    found: dict[str, list[Choice]] = {}
    for name, keys in (("fedavg", ("lr",)), ("fedadam", ("lr", "server_lr"))):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        tried = found[f"{name} by Optuna"] = []
        for _ in range(trials):
            trial = study.ask()
            choice = {"name": name, **{key: trial.suggest_float(key, 1e-3, 10, log=True) for key in keys}}
            cells = [cell(task, choice, seed) for seed in range(seeds)]
            results |= complete(cells, folder / "cells")
            tried.append(choice)
            study.tell(trial, _mean(_runs(task, choice, results, seeds), _accuracy))
    return found


def _tried(
    task: str, method: str, tried: Sequence[Choice], results: dict[str, Result], seeds: int, target: float
) -> Tried:
    runs = [_runs(task, choice, results, seeds) for choice in tried]
    best = max(range(len(runs)), key=lambda i: _mean(runs[i], _accuracy))
    every = [run for some in runs for run in some]

    def total(*names: str) -> int:
        return sum(run["totals"][name] for run in every for name in names)

    return Tried(
        method,
        shown(tried[best]),
        len(every),
        sum(run["diverged"] is not None for run in every),
        _mean(runs[best], _accuracy),
        _mean(runs[best], _last),
        _loss(runs[best]),
        _rounds_to(runs[best], target),
        total("gradients"),
        total("forwards"),
        total("bytes_up", "bytes_down"),
        sum(run["totals"]["gradients"] for run in runs[best]),
    )


def _runs(task: str, choice: Choice, results: dict[str, Result], seeds: int) -> list[Result]:
    return [results[cell(task, choice, seed).name] for seed in range(seeds)]


def _mean(runs: Sequence[Result], score: Callable[[Result], float]) -> float:
    return statistics.fmean(score(run) for run in runs)


def _scores(run: Result, column: str) -> list[float]:
    return [v for v in run["history"][column] if v is not None]


def _accuracy(run: Result) -> float:
    return 0.0 if run["diverged"] else 100 * _scores(run, "test_accuracy")[-1]


def _last(run: Result) -> float:
    return 0.0 if run["diverged"] else 100 * statistics.fmean(_scores(run, "last_accuracy")[-4:])


def _loss(runs: Sequence[Result]) -> float | None:
    diverged = any(run["diverged"] for run in runs)
    return None if diverged else _mean(runs, lambda run: _scores(run, "test_loss")[-1])


def _rounds_to(runs: Sequence[Result], target: float) -> int | None:
    """The first evaluated round at which the mean over the seeds is at the target."""
    if any(run["diverged"] for run in runs):
        return None
    history = runs[0]["history"]
    for i, t in enumerate(history["round"]):
        if history["test_accuracy"][i] is not None and target <= 100 * statistics.fmean(
            run["history"]["test_accuracy"][i] for run in runs
        ):
            return int(t)
    return None


def _costs(
    found: dict[str, list[dict[str, Any]]], scores: dict[tuple[str, float], float]
) -> dict[str, dict[str, float]]:
    """Accuracy of `auto` where its inputs are multiplied, by task and factor."""
    plain = {task: next(row["accuracy"] for row in rows if row["method"] == "auto") for task, rows in found.items()}
    return {task: {"1": plain[task], **{f"{s:g}": scores[task, s] for s in SCALES}} for task in found if task in SCALED}


def claims(
    found: dict[str, list[dict[str, Any]]], scaled: dict[str, dict[str, float]], rounds: dict[str, int]
) -> list[dict[str, Any]]:
    """What `auto` should reach, and what it reached: on the worst task, or on the mean of all."""
    rows = {task: {row["method"]: row for row in some} for task, some in found.items()}
    last = {t: r["auto"]["accuracy"] - r["fedavg"]["last"] for t, r in rows.items()}
    averaged = {t: r["auto"]["accuracy"] - r["fedavg"]["accuracy"] for t, r in rows.items()}
    work = {t: r["auto"]["gradients"] / r["fedavg"]["own_gradients"] for t, r in rows.items()}
    price = {t: r["fedavg"]["gradients"] / r["auto"]["gradients"] for t, r in rows.items()}
    reached = {t: r["auto"]["rounds_to_target"] for t, r in rows.items()}
    equal = {t: price[t] * rounds[t] / at if at else 0.0 for t, at in reached.items()}
    lost = {f"{t}, x {factor}": values["1"] - v for t, values in scaled.items() for factor, v in values.items()}
    diverged = {t: float(r["auto"]["diverged"]) for t, r in rows.items()}
    stated: list[tuple[str, dict[str, float], Pick, str, float]] = [
        ("points ahead of tuned FedAvg's last iterate", last, min, ">=", -0.5),
        ("points ahead of its last iterate, mean", last, None, ">=", 1.0),
        ("points ahead of its averaged read-out", averaged, min, ">=", -1.5),
        ("points ahead of its averaged read-out, mean", averaged, None, ">=", 1.0),
        ("gradients per local step", work, max, "<=", 1.1),
        ("runs that diverged", diverged, max, "<=", 0.0),
        ("gradients of tuning FedAvg, in runs of auto", price, min, ">=", 10.0),
        ("the same, until auto has FedAvg's accuracy", equal, min, ">=", 10.0),
        ("points that scaled inputs cost", lost, max, "<=", 1.0),
    ]
    return [_claim(what, values, pick, relation, bound) for what, values, pick, relation, bound in stated if values]


def _claim(what: str, values: dict[str, float], pick: Pick, relation: str, bound: float) -> dict[str, Any]:
    on = "" if pick is None else pick(values, key=values.__getitem__)
    measured = statistics.fmean(values.values()) if pick is None else values[on]
    kept = KEEPS[relation](measured, bound)
    return {"what": what, "task": on, "measured": measured, "relation": relation, "bound": bound, "kept": kept}
