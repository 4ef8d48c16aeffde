"""The price of tuning: algorithms without a knob against algorithms tuned over their papers' grids, on many tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fedstride.study import Cell, training

EVALUATIONS = 20  # of a run, evenly spread
Choice = dict[str, Any]  # an algorithm's name and its arguments

RATES = [10**e for e in (-2, -1.5, -1, -0.5, 0, 0.5)]
GRIDS: dict[str, dict[str, list[float]]] = {
    "fedavg": {"lr": RATES},
    "fedavgm": {"lr": RATES},
    "fedprox": {"lr": RATES, "mu": [0.01, 0.1, 1.0]},
    "fedadam": {"lr": RATES, "server_lr": [0.01, 10**-1.5, 0.1]},
    "scaffold": {"lr": RATES},
    "fedexp": {"lr": RATES, "eps": [0.001, 0.01, 0.1]},
}
FREE = ("auto", "delta_sgd", "fedsls", "fedexpsls", "fedsps")


@dataclass(frozen=True)
class Task:
    """A preset with settings; `heavy` tasks get a coarser grid."""

    preset: str
    what: str
    rounds: int
    settings: dict[str, Any] = field(default_factory=dict)
    heavy: bool = False


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
    "fashion-cnn-0.1": Task("fashion_mnist", "Fashion-MNIST, CNN, alpha 0.1", 60, CNN, heavy=True),
    "fashion-cnn-1": Task("fashion_mnist", "Fashion-MNIST, CNN, alpha 1", 60, {**CNN, "data.alpha": 1.0}, heavy=True),
    "cifar-cnn-0.1": Task("cifar10", "CIFAR-10, CNN, alpha 0.1", 60, CNN, heavy=True),
    "cifar-cnn-1": Task("cifar10", "CIFAR-10, CNN, alpha 1", 60, {**CNN, "data.alpha": 1.0}, heavy=True),
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


def grid(name: str, heavy: bool = False) -> Iterator[Choice]:
    """All that is tried for a tuned algorithm."""
    axes = GRIDS[name]
    if heavy:
        axes = {key: values[1:-1] if key == "lr" else values[::2] for key, values in axes.items()}
    for values in product(*axes.values()):
        yield {"name": name, **dict(zip(axes, values, strict=True))}
