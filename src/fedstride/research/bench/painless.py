"""The price of tuning: algorithms without hyper-parameters compared with tuned ones, on the tasks of task_table.py.

All are scored with the averaged read-out. A tuned method uses one setting per task for all seeds, selected by its test
score, which favours the tuned methods.
"""

from __future__ import annotations

import ast
import inspect
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstride.algorithm import Algorithm, spelled_out
from fedstride.algorithm.recipes import RECIPES
from fedstride.app.sweep import SUMMED, Cell, Result, Tell, complete
from fedstride.client.step import NGN, Adam, CappedPolyak
from fedstride.core import losses
from fedstride.core.errors import FedstrideWarning, GivenUp, InvalidInput
from fedstride.engine import Local
from fedstride.research.bench import verdicts
from fedstride.research.bench.scores import Choice, Scores, name_of, tried_on
from fedstride.research.bench.scores import shown as shown
from fedstride.research.bench.task_parts import constant
from fedstride.research.bench.task_table import TASKS
from fedstride.research.bench.tasks import Problem
from fedstride.server import Auto, Average, DoG, Prodigy
from fedstride.training.train import train

EVALUATIONS = 8  # evaluations per run, evenly spaced
Make = Callable[..., Algorithm]
Report = dict[str, Any]


def rates(low: float, high: float) -> list[float]:
    """Return rates from 10^low to 10^high, half a decade apart."""
    return [10 ** (low + i / 2) for i in range(round(2 * (high - low)) + 1)]


GRIDS: dict[str, dict[str, list[float]]] = {  # FedAvg gets two more rates, next to the best
    "fedavg": {"lr": rates(-3, 1)},
    "fedavgm": {"lr": rates(-2.5, 0.5)},
    "fedexp": {"lr": rates(-2, 1), "eps": [1e-3]},
    "fedadam": {"lr": rates(-1.5, -0.5), "server_lr": rates(-2, -1.5)},
    "scaffold": {"lr": rates(-1.5, 0.5)},
    "client_adam": {"lr": rates(-4, -1.5)},
}
COMPOSED: dict[str, Make] = {  # methods that are not recipes
    "client_adam": lambda lr: Algorithm(Adam(lr), name="client_adam"),
    "ngn_prodigy": lambda: Algorithm(NGN(), Prodigy(), name="ngn_prodigy"),
    "ngn_dog": lambda: Algorithm(NGN(), DoG(), name="ngn_dog"),
}
FREE = (
    "auto",
    "delta_sgd",
    "fedsls",
    "fedexpsls",
    "fedsps",
    "feddecsps",
    "fedngn",
    "ngn_prodigy",
    "ngn_dog",
)
ALWAYS = ("fedavg", "auto")  # run with any selection of methods

# For --ablation: `auto` with one part changed, scored with its own read-out.
VARIANTS: dict[str, Callable[[], Algorithm]] = {
    "last iterate": lambda: replace(RECIPES["auto"](), readout="last"),
    "plain mean": lambda: replace(RECIPES["auto"](), server=Average()),
    "momentum 0": lambda: replace(RECIPES["auto"](), server=Auto(beta=0.0)),
    "momentum 0.9": lambda: replace(RECIPES["auto"](), server=Auto(beta=0.9)),
    "extrapolation not damped": lambda: replace(RECIPES["auto"](), server=Auto(rho=0.0)),
    "cap 0.02": lambda: replace(RECIPES["auto"](), step=CappedPolyak(cap=0.02)),
    "cap 0.2": lambda: replace(RECIPES["auto"](), step=CappedPolyak(cap=0.2)),
}

SCALED = ("digits", "fashion-linear", "mnist-mlp", "covtype-mlp", "cifar-cnn", "regression", "digits-cnn")
SCALES: dict[str, dict[str, float]] = {  # factors of inputs and loss, for `auto`
    "inputs x 0.05": {"inputs": 0.05},
    "inputs x 20": {"inputs": 20.0},
    "loss x 0.01": {"loss": 0.01},
    "loss x 100": {"loss": 100.0},
}


def make(choice: Choice) -> Algorithm:
    name, arguments = choice["name"], {key: value for key, value in choice.items() if key != "name"}
    made = VARIANTS.get(name) or COMPOSED.get(name) or RECIPES[name]
    return made(**arguments)


def cell(task: str, choice: Choice, seed: int = 0, scale: str = "") -> Cell:
    """Return one run; `scale` is a name in SCALES."""
    arguments = {"task": task, "rounds": TASKS[task].rounds, "choice": choice, "seed": seed, **SCALES.get(scale, {})}
    if choice["name"] == "auto" or choice["name"] in VARIANTS:
        arguments["code"] = _code(make(choice))  # so that runs of an earlier `auto` are not reused
    return Cell(name_of(task, choice, seed, scale), trained, arguments)


def _code(algorithm: Algorithm) -> str:
    """Return a digest of the parts and of the code of their modules, without comments."""
    modules = [inspect.getmodule(type(part)) for part in (algorithm.step, algorithm.server)]
    trees = [ast.dump(ast.parse(inspect.getsource(module))) for module in modules if module is not None]
    return sha256("\n".join([spelled_out(algorithm), *trees]).encode()).hexdigest()[:16]


def grid(name: str) -> list[Choice]:
    """Return the settings of a method's grid."""
    axes = GRIDS.get(name, {})
    return [{"name": name, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]


def trained(
    task: str, rounds: int, choice: Choice, seed: int, inputs: float = 1.0, loss: float = 1.0, code: str = ""
) -> Result:
    """Train on a task. `inputs` and `loss` multiply those of the task; losses in the result are divided by the latter again."""
    setup, start = _setup(task, seed), time.process_time()
    clients, test = setup.clients, setup.test
    if inputs != 1:
        clients, test = [(inputs * x, y) for x, y in clients], (inputs * test[0], test[1])
    own = losses.resolve(setup.loss)

    def scaled(output: Tensor, target: Tensor) -> Tensor:
        return loss * own(output, target)

    diverged = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedstrideWarning)
        try:
            run = train(
                setup.model,
                setup.loss if loss == 1 else scaled,
                clients,
                make(choice),
                test=test,
                rounds=rounds,
                seed=seed,
                engine=Local(workers=1),
                readout=None if choice["name"] in VARIANTS else "average",
                evaluate_every=max(1, rounds // EVALUATIONS),
                **setup.arguments,
            )
        except GivenUp as error:
            run, diverged = error.run, error.round
    tested = [row for row in run.history if row["test_loss"] is not None]
    values = [_finite(row["test_loss"], loss) for row in tested]
    if diverged is None and values[-1] is None:
        diverged = rounds
    return {
        **{"task": task, "seed": seed, "scaled": (inputs, loss) != (1, 1)},
        "diverged": diverged,
        "accuracy": tested[-1]["test_accuracy"] if tested else None,
        "loss": values[-1] if values else None,
        "constant": constant(own, test[1]),
        "history": {
            "round": [row["round"] for row in tested],
            "loss": values,
            "accuracy": [row["test_accuracy"] for row in tested],
        },
        "totals": {name: sum(row[name] for row in run.history) for name in SUMMED},
        "seconds": round(time.process_time() - start, 2),  # of the processor
    }


@lru_cache(1)  # runs that follow each other differ in the method first
def _setup(task: str, seed: int) -> Problem:
    return TASKS[task].make(seed)


def _finite(value: float, divisor: float) -> float | None:
    return float(f"{value / divisor:.7g}") if math.isfinite(value) else None


def measure(
    tasks: Sequence[str],
    folder: Path,
    tell: Tell = lambda done, total, name: None,
    seeds: int = 3,
    methods: Sequence[str] = (*GRIDS, *FREE),
    trials: int = 0,
) -> Report:
    """Everything on every task. trials: of Optuna for FedAvg and FedAdam, besides the grids."""
    optuna = _optuna() if trials else None
    names = [name for name in (*GRIDS, *FREE) if name in methods or name in ALWAYS]
    choices = {task: {name: grid(name) for name in names} for task in tasks}
    results = complete(_cells(choices, seeds), folder / "cells", tell)
    scores = Scores(results, seeds)
    finer = {task: {"fedavg": _around(task, choices[task]["fedavg"], scores)} for task in tasks}
    scaled = [task for task in tasks if task in SCALED]
    more = [cell(task, {"name": "auto"}, seed, scale) for task in scaled for seed in range(seeds) for scale in SCALES]
    results |= complete([*_cells(finer, seeds), *more], folder / "cells", tell)
    for task in tasks:
        choices[task]["fedavg"] += finer[task]["fedavg"]
        if optuna is not None:
            choices[task] |= _searched(optuna, task, folder, trials, seeds, results)
    scores = Scores(results, seeds)
    found = {task: [tried_on(task, *one, scores) for one in choices[task].items()] for task in tasks}
    auto: Choice = {"name": "auto"}
    costs = {
        task: {s: verdicts.paired(scores.of(task, auto), scores.of(task, auto, s)) for s in SCALES} for task in scaled
    }
    about = {
        task: {"group": t.group, "what": t.what, "rounds": t.rounds, "score": t.score}
        for task, t in TASKS.items()
        if task in tasks
    }
    rows = {task: [asdict(row) for row in some] for task, some in found.items()}
    settings = {name: len(tried) for name, tried in choices[tasks[0]].items()}
    return {"tasks": about, "seeds": seeds, "settings": settings, **verdicts.judge(about, rows, costs)}


def ablation(tasks: Sequence[str], folder: Path, tell: Tell = lambda done, total, name: None, seeds: int = 3) -> Report:
    """Compare `auto` with its variants: the lead of each over `auto` in points, by task."""
    names = ["auto", *VARIANTS]
    choices = {task: {name: [{"name": name}] for name in names} for task in tasks}
    results = complete(_cells(choices, seeds), folder / "cells", tell)
    scores = Scores(results, seeds)
    points = {task: {name: scores.of(task, {"name": name}) for name in names} for task in tasks}
    ahead = {
        name: {task: verdicts.paired(points[task][name], points[task]["auto"]) for task in tasks} for name in VARIANTS
    }
    return {
        "seeds": seeds,
        "scores": {task: {name: statistics.fmean(v) for name, v in some.items()} for task, some in points.items()},
        "ahead": ahead,
        "variants": {name: verdicts.summary(values) for name, values in ahead.items()},
    }


def _cells(choices: dict[str, dict[str, list[Choice]]], seeds: int) -> list[Cell]:
    return [
        cell(task, choice, seed)
        for task, methods in choices.items()
        for seed in range(seeds)
        for tried in methods.values()
        for choice in tried
    ]


def _around(task: str, tried: Sequence[Choice], scores: Scores) -> list[Choice]:
    """Return two more settings, with rates next to the best."""
    best = max(tried, key=lambda choice: scores.mean(task, choice))
    return [{**best, "lr": best["lr"] * 10**e} for e in (-0.25, 0.25)]


def _optuna() -> Any:
    """Return the library Optuna, if it is installed."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("--trials needs Optuna; install it with: pip install 'fedstride[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _searched(
    optuna: Any, task: str, folder: Path, trials: int, seeds: int, results: dict[str, Result]
) -> dict[str, list[Choice]]:
    """Return the settings that Optuna tries for FedAvg and FedAdam: rates on a logarithmic scale. Its runs are kept."""
    found: dict[str, list[Choice]] = {}
    for name, keys in (("fedavg", ("lr",)), ("fedadam", ("lr", "server_lr"))):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        tried = found[f"{name} by Optuna"] = []
        for _ in range(trials):
            trial = study.ask()
            choice = {"name": name, **{key: trial.suggest_float(key, 1e-3, 10, log=True) for key in keys}}
            results |= complete([cell(task, choice, seed) for seed in range(seeds)], folder / "cells")
            tried.append(choice)
            study.tell(trial, Scores(results, seeds).mean(task, choice))
    return found
