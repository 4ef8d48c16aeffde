"""Private runs: `auto` compared with DP-FedAvg and FedExP with tuned rates, at equal epsilon, on MNIST.

All use the same mechanism: Poisson-sampled cohorts and a clip that follows the median of the updates' norms. They are scored
with the averaged read-out. A tuned method uses one rate per task and epsilon for all seeds, selected by its test score, which
favours it; the privacy that such a search would spend is not counted.
"""

from __future__ import annotations

import ast
import inspect
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedstride.algorithm import Algorithm, privacy
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.sampling import Bernoulli
from fedstride.app.sweep import Cell, Result, Tell, complete
from fedstride.core.errors import GivenUp
from fedstride.data import partition
from fedstride.engine import Local
from fedstride.models import MLP, Softmax
from fedstride.research.bench import verdicts
from fedstride.research.bench.painless import _code
from fedstride.research.bench.scores import Choice, shown
from fedstride.research.bench.task_parts import Samples, source
from fedstride.training.train import train

CLIENTS, SAMPLES, ALPHA = 1000, 60, 0.5  # labels from a Dirichlet distribution
SHARE, ROUNDS = 0.1, 50
EPSILONS = (8.0, 3.0, 1.0)
MODELS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "softmax": lambda shape: Softmax(shape, 10),
    "mlp": lambda shape: MLP(shape, 10, (32,)),
}
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
TUNED = ("fedavg", "fedexp")
NAMES = {"fedavg": "DP-FedAvg", "fedexp": "FedExP"}
Report = dict[str, Any]


@lru_cache
def multiplier(epsilon: float, rounds: int) -> float:
    """Return the smallest noise multiplier that spends at most epsilon, to three digits."""
    low, high = 0.1, 50.0
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        spent = Privacy(middle).epsilon(Bernoulli(SHARE), CLIENTS, rounds)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return round(high, 3)


def cell(data: str, model: str, epsilon: float, choice: Choice, seed: int, rounds: int = ROUNDS) -> Cell:
    arguments: dict[str, Any] = {"data": data, "model": model, "epsilon": epsilon, "choice": choice, "seed": seed}
    arguments |= {"rounds": rounds, "code": _digest(choice)}
    return Cell(f"{data} {model} eps{epsilon:g} {shown(choice)} s{seed}", trained, arguments)


def _digest(choice: Choice) -> str:
    """Return a digest of the code that runs depend on, so that those of an earlier version are not reused."""
    tree = ast.dump(ast.parse(inspect.getsource(privacy)))
    return sha256(f"{_code(make(choice))} {tree}".encode()).hexdigest()[:16]


def make(choice: Choice) -> Algorithm:
    return RECIPES[choice["name"]](**{key: value for key, value in choice.items() if key != "name"})


def trained(
    data: str, model: str, epsilon: float, choice: Choice, seed: int, rounds: int = ROUNDS, code: str = ""
) -> Result:
    """Train with privacy. Noise and cohorts come from a known text, so that the run can be repeated."""
    clients, test = _federation(data)
    with torch.random.fork_rng():
        torch.manual_seed(1000 + seed)
        start = MODELS[model](tuple(test[0].shape[1:]))
    mechanism = Privacy(multiplier(epsilon, rounds), quantile=0.5).drawn_from(f"bench {data} {seed}")
    try:
        run = train(
            start,
            "cross_entropy",
            clients,
            replace(make(choice), privacy=mechanism),
            rounds=rounds,
            cohort=Bernoulli(SHARE),
            epochs=1,
            batch_size=20,
            test=test,
            seed=seed,
            engine=Local(workers=1),
            readout="average",
            evaluate_every=rounds,
        )
    except GivenUp:
        return {"accuracy": 0.0, "epsilon": None, "noise": mechanism.noise}
    last = run.history[-1]
    return {"accuracy": 100 * last["test_accuracy"], "epsilon": last["epsilon"], "noise": mechanism.noise}


@lru_cache(1)
def _federation(data: str) -> tuple[list[Samples], Samples]:
    """Return the clients, with images of half the side, and the test set."""
    (x, y), test = source(data, pooled=True)(0)
    parts = partition.dirichlet(y, CLIENTS, 0, ALPHA, SAMPLES)
    return [(x[part], y[part]) for part in parts], test


def measure(
    folder: Path,
    tell: Tell = lambda done, total, name: None,
    data: str = "mnist",
    seeds: int = 3,
    models: Sequence[str] = tuple(MODELS),
    epsilons: Sequence[float] = EPSILONS,
    rounds: int = ROUNDS,
) -> Report:
    """Run everything that the folder does not contain, and compare."""
    tried: dict[str, list[Choice]] = {name: [{"name": name, "lr": lr} for lr in RATES] for name in TUNED}
    tried["auto"] = [{"name": "auto"}]
    cells = {
        (model, epsilon, shown(choice), seed): cell(data, model, epsilon, choice, seed, rounds)
        for model in models
        for epsilon in epsilons
        for seed in range(seeds)
        for choices in tried.values()
        for choice in choices
    }
    results = complete(list(cells.values()), folder / "cells", tell)

    def scores(model: str, epsilon: float, choice: Choice) -> list[float]:
        return [results[cells[model, epsilon, shown(choice), seed].name]["accuracy"] for seed in range(seeds)]

    rows = []
    for model in models:
        for epsilon in epsilons:
            points = {name: {shown(c): scores(model, epsilon, c) for c in choices} for name, choices in tried.items()}
            any_run = results[cells[model, epsilon, "auto", 0].name]
            rows.append({"model": model, **any_run, "epsilon": epsilon, **_compared(points)})
    about = {"data": data, "clients": CLIENTS, "samples": SAMPLES, "alpha": ALPHA, "share": SHARE, "rounds": rounds}
    return {**about, "delta": Privacy(1.0).delta_for(CLIENTS), "seeds": seeds, "rows": rows}


def _compared(points: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Return every setting's scores, the best setting of each method, and the lead of `auto` over it."""
    best = {name: max(tried, key=lambda s: statistics.fmean(tried[s])) for name, tried in points.items()}
    ahead = {
        name: verdicts.paired(points["auto"]["auto"], points[name][best[name]]) for name in points if name != "auto"
    }
    means = {name: statistics.fmean(points[name][best[name]]) for name in points}
    return {"accuracy": means, "best": best, "ahead": ahead, "scores": points}


def table(report: Report) -> list[list[str]]:
    """Return accuracies in per cent; tuned methods with their best rate."""
    tuned, ahead = ([f"{NAMES[name]}, tuned" for name in TUNED], [f"ahead of {NAMES[name]}" for name in TUNED])
    rows = [["model", "epsilon", "noise", *tuned, "auto", *ahead]]
    for row in report["rows"]:
        tuned = [f"{row['accuracy'][name]:.1f} ({row['best'][name].split('(')[1][:-1]})" for name in TUNED]
        ahead = [f"{row['ahead'][name]['mean']:+.1f}" + _interval(row["ahead"][name]["half"]) for name in TUNED]
        shares = [row["model"], f"{row['epsilon']:g}", f"{row['noise']:g}"]
        rows.append([*shares, *tuned, f"{row['accuracy']['auto']:.1f}", *ahead])
    return rows


def _interval(half: float | None) -> str:
    return "" if half is None else f" ± {half:.1f}"


def about(report: Report) -> str:
    return (
        f"{report['data']}, {report['clients']:,} clients of {report['samples']} samples, Bernoulli({report['share']}), "
        f"{report['rounds']} rounds, delta {report['delta']:.2g}, {report['seeds']} seed(s). Test accuracy in per cent."
    )
