"""Deep-learning tasks shared by experiments, small enough for two cores or as large as in the papers."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

from fedstride.app.sweep import Cell, Result, training
from fedstride.research.papers.experiment import Lab

EVALUATIONS = 20  # evaluations per run, evenly spaced; the scores of the last few are averaged
Algorithm = dict[str, Any]  # as in a configuration: {"name": "fedavg", "lr": 0.1}

# At small scale: two convolutions of 6 and 12 filters, 200 samples per client, 4 steps per epoch.
SMALL = {
    "data.samples": 200,
    "training.batch_size": 50,
    "model.name": "small_cnn",
    "model.options": {"width": 6, "hidden": 32, "dropout": 0},
}
ROUNDS = {"small": 50, "medium": 500, "paper": 500}


def cifar_model(lab: Lab) -> dict[str, Any]:
    """Return the settings of the model on CIFAR-10 above the small scale: ResNet-18, or what replaces it."""
    if lab.scale == "paper":
        return {"model__name": "resnet18"}
    if lab.residual:
        return {"model__name": "resnet18", "model__options": {"width": 16, "groups": 16}}
    return {"model__name": "mcmahan_cnn"}


def is_augmented(lab: Lab, task: str) -> bool:
    """Whether the images of a task are cropped and flipped: those of CIFAR-10, if asked for."""
    return lab.augment and task == "cifar10"


def cell(
    lab: Lab, task: str, algorithm: Algorithm, *, rounds: int | None = None, seed: int = 0, **settings: Any
) -> Cell:
    """Return a training run. Its name contains all differences from the task, so that experiments share equal runs.

    `settings` are dotted names of a configuration with __ for the dot, as in data__alpha=0.1; they take precedence.
    """
    rounds = rounds or ROUNDS[lab.scale]
    size = SMALL if lab.small and task not in ("shakespeare",) else {}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    common = {
        "training.rounds": rounds,
        "training.seed": seed,
        "training.evaluate_every": max(1, rounds // EVALUATIONS),
        "data.seed": seed,
        "model.seed": seed,
    }
    chosen = {f"algorithm.{key}": value for key, value in algorithm.items()}
    name = f"{task} {text(algorithm)} r{rounds} s{seed} " + " ".join(f"{k}={json.dumps(v)}" for k, v in given.items())
    run = training(name.strip(), {**size, **common, **chosen, **given}, task)
    if is_augmented(lab, task):
        run.arguments["config"]["model"]["options"]["augment"] = True
        run = replace(run, name=f"{run.name} augmented")
    return run


def text(algorithm: Algorithm) -> str:
    """Format an algorithm as on the command line: fedavg(lr=0.1)."""
    rest = [f"{key}={_value(value)}" for key, value in algorithm.items() if key != "name"]
    return f"{algorithm['name']}({','.join(rest)})" if rest else str(algorithm["name"])


def _value(value: Any) -> str:
    return (
        text({"name": value["part"], **{k: v for k, v in value.items() if k != "part"}})
        if isinstance(value, dict)
        else f"{value}"
    )


def accuracy(result: Result, column: str = "test_accuracy", last: int = 4) -> float:
    """Return the mean of the last evaluations in per cent; 0 for a run that diverged."""
    if result["diverged"]:
        return 0.0
    return 100 * statistics.fmean([v for v in result["history"][column] if v is not None][-last:])


def loss(result: Result, column: str = "test_loss", last: int = 4) -> float:
    if result["diverged"]:
        return float("inf")
    return statistics.fmean([v for v in result["history"][column] if v is not None][-last:])


def rounds_to(result: Result, target: float, column: str = "test_accuracy") -> int | None:
    """Return the first evaluated round with this accuracy (per cent), or None."""
    history = result["history"]
    scored = zip(history["round"], history[column], strict=True)
    return next((t for t, value in scored if value is not None and 100 * value >= target), None)
