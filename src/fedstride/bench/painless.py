"""The price of tuning: algorithms without a knob against algorithms tuned over their papers' grids, on many tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedstride.study import Cell, training

EVALUATIONS = 20  # of a run, evenly spread
Choice = dict[str, Any]  # an algorithm's name and its arguments

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


def cell(task: str, algorithm: Choice, seed: int = 0, **more: Any) -> Cell:
    """One run; averaged read-out for every algorithm, so that like is compared with like."""
    t = TASKS[task]
    common = {
        "training.rounds": t.rounds,
        "training.evaluate_every": max(1, t.rounds // EVALUATIONS),
        "training.readout": "average",
        **{f"{part}.seed": seed for part in ("training", "data", "model")},
    }
    chosen = {f"algorithm.{key}": value for key, value in algorithm.items()}
    name = f"{task} {shown(algorithm)} s{seed}" + "".join(f" {k}={v}" for k, v in more.items())
    return training(name, {**t.settings, **common, **chosen, **more}, t.preset)


def shown(algorithm: Choice) -> str:
    arguments = ",".join(f"{k}={v:.3g}" for k, v in algorithm.items() if k != "name")
    return f"{algorithm['name']}({arguments})" if arguments else str(algorithm["name"])


def grid(name: str, coarse: bool) -> list[Choice]:
    """All that is tried for a tuned algorithm."""
    axes = GRIDS[name] if name == "fedavg" or not coarse else {key: COARSE[key] for key in GRIDS[name]}
    return [{"name": name, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]
