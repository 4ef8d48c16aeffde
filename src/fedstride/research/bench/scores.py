"""Runs of `fedstride bench painless`: their names, their scores, and the best setting of a method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedstride.app.sweep import Result
from fedstride.research.bench.task_table import TASKS
from fedstride.research.bench.tasks import ACCURACY

Choice = dict[str, Any]  # a method's name and its arguments


def shown(choice: Choice) -> str:
    arguments = ",".join(f"{k}={v:.6g}" for k, v in choice.items() if k != "name")
    return f"{choice['name']}({arguments})" if arguments else str(choice["name"])


def name_of(task: str, choice: Choice, seed: int, scale: str) -> str:
    return " ".join([task, shown(choice), f"s{seed}", *([scale] if scale else [])])


@dataclass(frozen=True)
class Tried:
    """The result of a method on a task: its best setting, and the cost of finding it."""

    method: str
    setting: str  # the best setting
    edge: bool  # its learning rate is the first or the last of the grid
    runs: int
    diverged: int
    scores: list[float]  # of the best setting, by seed
    score: float  # their mean
    loss: float | None  # mean over the seeds; None if a run diverged
    gradients: int  # samples in all runs
    forwards: int
    bytes: int
    seconds: float
    own_gradients: int  # of the best setting alone
    own_forwards: int


class Scores:
    """Points of runs, 0 to 100; `fit` depends on the lowest loss that any run of the task and the seed reached."""

    def __init__(self, results: dict[str, Result], seeds: int) -> None:
        self.results, self.seeds = results, seeds
        self.lowest: dict[tuple[str, int], float] = {}
        for run in results.values():
            if run["diverged"] is None and not run["scaled"]:
                key = (run["task"], run["seed"])
                self.lowest[key] = min(run["loss"], self.lowest.get(key, math.inf))

    def runs(self, task: str, choice: Choice, scale: str = "") -> list[Result]:
        return [self.results[name_of(task, choice, seed, scale)] for seed in range(self.seeds)]

    def of(self, task: str, choice: Choice, scale: str = "") -> list[float]:
        """Return the points by seed; a run that diverged has 0."""
        return [self._points(task, seed, run) for seed, run in enumerate(self.runs(task, choice, scale))]

    def mean(self, task: str, choice: Choice) -> float:
        return statistics.fmean(self.of(task, choice))

    def _points(self, task: str, seed: int, run: Result) -> float:
        if run["diverged"] is not None:
            return 0.0
        if TASKS[task].score == ACCURACY:
            return 100 * float(run["accuracy"])
        way = run["constant"] - self.lowest.get((task, seed), math.inf)
        return min(100.0, max(0.0, 100 * (run["constant"] - run["loss"]) / way)) if way > 0 else 0.0


def tried_on(task: str, method: str, tried: Sequence[Choice], scores: Scores) -> Tried:
    best = max(tried, key=lambda choice: scores.mean(task, choice))
    own, points = scores.runs(task, best), scores.of(task, best)
    every = [run for choice in tried for run in scores.runs(task, choice)]

    def total(runs: Iterable[Result], *names: str) -> int:
        return sum(run["totals"][name] for run in runs for name in names)

    known = [run["loss"] for run in own if run["diverged"] is None]
    return Tried(
        method,
        shown(best),
        len(tried) > 1 and best["lr"] in (min(c["lr"] for c in tried), max(c["lr"] for c in tried)),
        len(every),
        sum(run["diverged"] is not None for run in every),
        points,
        statistics.fmean(points),
        statistics.fmean(known) if len(known) == len(own) else None,
        total(every, "gradients"),
        total(every, "forwards"),
        total(every, "bytes_up", "bytes_down"),
        sum(run["seconds"] for run in every),
        total(own, "gradients"),
        total(own, "forwards"),
    )
