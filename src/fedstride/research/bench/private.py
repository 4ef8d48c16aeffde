"""Private runs: `auto` compared with DP-FedAvg and FedExP with tuned rates, at equal epsilon, on MNIST.

All use the same mechanism: Poisson-sampled cohorts and a clip that follows the median of the updates' norms. They are scored
with the averaged read-out. A tuned method uses one rate per model and epsilon, selected by its test score with the first seed,
which favours it; the privacy that such a search would spend is not counted.
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
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
TUNED = ("fedavg", "fedexp")
NAMES = {"fedavg": "DP-FedAvg", "fedexp": "FedExP"}
Report = dict[str, Any]
Case = tuple[str, float]  # model and epsilon


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
    """Run everything that the folder does not contain, and compare. Rates are picked with the first seed."""
    cases = [(model, epsilon) for model in models for epsilon in epsilons]
    tried: list[Choice] = [{"name": name, "lr": lr} for name in TUNED for lr in RATES]
    auto: Choice = {"name": "auto"}

    def run(chosen: dict[Case, list[Choice]], numbers: Sequence[int]) -> dict[str, Result]:
        cells = [cell(data, *case, c, seed, rounds) for case in cases for seed in numbers for c in chosen[case]]
        return complete(cells, folder / "cells", tell)

    def score(case: Case, choice: Choice, seed: int) -> float:
        return float(results[cell(data, *case, choice, seed, rounds).name]["accuracy"])

    results = run({case: [*tried, auto] for case in cases}, [0])
    best = {
        case: {name: max((c for c in tried if c["name"] == name), key=lambda c: score(case, c, 0)) for name in TUNED}
        for case in cases
    }
    results |= run({case: [*best[case].values(), auto] for case in cases}, range(1, seeds))
    rows = []
    for case in cases:
        chosen = {**best[case], "auto": auto}
        points = {name: [score(case, choice, seed) for seed in range(seeds)] for name, choice in chosen.items()}
        row = {"model": case[0], "epsilon": case[1], "noise": multiplier(case[1], rounds)}
        first = {shown(choice): score(case, choice, 0) for choice in tried}
        rows.append(
            {**row, **_compared(points), "rates": {n: c["lr"] for n, c in best[case].items()}, "first seed": first}
        )
    about = {"data": data, "clients": CLIENTS, "samples": SAMPLES, "alpha": ALPHA, "share": SHARE, "rounds": rounds}
    return {**about, "delta": Privacy(1.0).delta_for(CLIENTS), "seeds": seeds, "rows": rows}


def _compared(points: dict[str, list[float]]) -> dict[str, Any]:
    """Return scores by seed, their means, and the lead of `auto` over the others."""
    ahead = {name: verdicts.paired(points["auto"], points[name]) for name in TUNED}
    means = {name: statistics.fmean(values) for name, values in points.items()}
    return {"accuracy": means, "ahead": ahead, "scores": points}


def table(report: Report) -> list[list[str]]:
    """Return accuracies in per cent; tuned methods with their best rate."""
    tuned, ahead = ([f"{NAMES[name]}, tuned" for name in TUNED], [f"ahead of {NAMES[name]}" for name in TUNED])
    rows = [["model", "epsilon", "noise", *tuned, "auto", *ahead]]
    for row in report["rows"]:
        tuned = [f"{row['accuracy'][name]:.1f} (lr={row['rates'][name]:g})" for name in TUNED]
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
