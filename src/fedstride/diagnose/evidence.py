"""What a run tells: its history in figures, and the parts that made it."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from fedstride.algorithm import Algorithm
from fedstride.checkpoint import read_tensors
from fedstride.config import PARTS, resolve
from fedstride.diagnose import limits
from fedstride.errors import FedstrideError, InvalidInput
from fedstride.report.read import Comparison, Record, read
from fedstride.result import Run
from fedstride.server import AdagradServer, AdamServer, FedExPM, ServerMomentum, YogiServer


class Course(NamedTuple):
    """A line through the end of a curve: its level, how far it falls, and the deviation from it."""

    level: float
    fall: float
    noise: float

    @property
    def certain(self) -> float:
        """A fall that noise alone gives once in twenty times."""
        return 2 * self.noise * math.sqrt(12 / self.values)

    values: int


def course(values: Sequence[float]) -> Course:
    n, level = len(values), mean(values)
    at = [i - (n - 1) / 2 for i in range(n)]
    slope = sum(i * v for i, v in zip(at, values, strict=True)) / sum(i * i for i in at)
    noise = math.sqrt(sum((v - level - slope * i) ** 2 for i, v in zip(at, values, strict=True)) / (n - 2))
    return Course(level, -slope * n, noise, n)


def end(values: list[Any]) -> list[Any]:
    """The last third, but no less than a few."""
    return values[-max(limits.LATE, len(values) // 3) :]


def sixths(values: list[float]) -> list[float]:
    """Medians of six equal parts: a curve without its noise."""
    n = len(values)
    return [median(values[i * n // 6 : (i + 1) * n // 6]) for i in range(6)]


@dataclass(frozen=True)
class Evidence:
    """A run as the judges see it; what is not known is None."""

    record: Record
    algorithm: Algorithm | None = None
    planned: int | None = None  # rounds asked for

    @property
    def rounds(self) -> int:
        return len(self.record.rows)

    def known(self, name: str) -> list[float]:
        return [v for v in self.record.column(name) if v is not None]

    def late(self, name: str) -> list[float]:
        return [v for v in end(self.record.column(name)) if v is not None]

    def usual(self, name: str) -> float | None:
        """The median of the last rounds."""
        return median(found) if (found := self.late(name)) else None

    @cached_property
    def watched(self) -> str:
        """The loss to judge by: of the returned model, unless it was seldom evaluated."""
        return "test_loss" if len(self.known("test_loss")) >= limits.ROUNDS else "train_loss"

    @cached_property
    def loss(self) -> Course | None:
        values = self.known(self.watched)
        return course(end(values)) if len(values) >= limits.ROUNDS else None

    @cached_property
    def start(self) -> float:
        """The loss before the first step."""
        return next(iter(self.known("train_loss")), math.nan)

    @cached_property
    def fell(self) -> float:
        """As a share of the first loss."""
        return 1 - self.loss.level / self.start if self.loss and self.start > 0 else 0.0

    @cached_property
    def state(self) -> str:
        """short, diverged, rising, improving, slow, converged or plateau."""
        latest = [v for name in ("train_loss", "test_loss") if (v := self.record.last(name)) is not None]
        if self.broken or any(v > limits.DIVERGED * self.start for v in latest):
            return "diverged"
        if self.loss is None:
            return "short"
        if self._came_back("train_loss") and self._came_back(self.watched):
            return "rising"
        fall, level = self.loss.fall, self.loss.level
        settled = fall < max(self.loss.certain, limits.SETTLED * self.start)
        if not settled and fall > limits.GAINS * level:
            return "improving"
        if self.fell < limits.SLOW and not self.still:
            return "slow"
        return "converged" if self.still or level < limits.LOW * self.start else "plateau"

    @property
    def bad(self) -> bool:
        return self.state in ("diverged", "rising", "slow", "plateau")

    @cached_property
    def broken(self) -> int | None:
        """The first round with a loss that is no number."""
        for i, row in enumerate(self.record.rows):
            unjudged = row.get("test_loss") is None and row.get("test_accuracy") is not None
            if row.get("train_loss") is None or unjudged:
                return i + 1
        return None

    @cached_property
    def peak(self) -> float:
        """The largest loss on the way, times the first."""
        return max([*self.known("train_loss"), *self.known("test_loss")], default=math.nan) / (self.start or math.nan)

    def _came_back(self, name: str) -> bool:
        values = self.known(name)
        if len(values) < limits.ROUNDS:
            return False
        parts = sixths(values)
        return parts[-1] - min(parts) > max(limits.BACK * min(parts), 2 * limits.SETTLED * self.start)

    @cached_property
    def still(self) -> bool:
        """The iterates stand still: updates are a small part of what they were."""
        values = self.known("update")
        return len(values) >= limits.ROUNDS and median(end(values)) < limits.VANISHED * max(values[: limits.LATE])

    @cached_property
    def rough(self) -> bool:
        """The loss swings about its trend. Cohorts of other clients do that to the training loss at any step."""
        if self.loss is None or (self.watched == "train_loss" and not (self.turn or 0) < 0):
            return False
        return self.loss.noise > max(limits.ROUGH * self.loss.level, self.loss.fall / 2)

    @cached_property
    def turn(self) -> float | None:
        """Cosine of successive moves; None under a server with momentum, whose moves resemble each other anyway."""
        server = self.algorithm.server if self.algorithm is not None else None
        momentum = isinstance(server, ServerMomentum | AdamServer | YogiServer | FedExPM) or (
            isinstance(server, AdagradServer) and server.beta > 0
        )
        return None if momentum or len(self.late("turn")) < 3 else self.usual("turn")

    @cached_property
    def small(self) -> bool:
        """Hardly any progress, and steps that could be longer."""
        if self.state != "slow" or self.loss is None or self.peak > limits.BLOWN:
            return False
        smooth = self.loss.fall > 0 and self.loss.noise < limits.SMOOTH * self.loss.fall
        return smooth or (self.turn is not None and self.turn > limits.AHEAD)

    @cached_property
    def large(self) -> bool:
        """Steps that undo each other, or blew the loss up."""
        if self.state == "diverged" or (self.bad and self.peak > limits.BLOWN):
            return True
        swings = self.turn is not None and self.turn < limits.SWINGS
        return self.state in ("rising", "slow") and not self.small and (swings or self.rough)

    @cached_property
    def diversity(self) -> float | None:
        """S / |Dbar|^2, of the last rounds."""
        both = [
            1 + (d / u) ** 2 if u else math.inf
            for d, u in zip(end(self.record.column("drift")), end(self.record.column("update")), strict=True)
            if d is not None and u is not None
        ]
        return median(both) if both else None

    @cached_property
    def skew(self) -> float | None:
        """Mean distance (total variation) of the clients' labels from those of all."""
        rows = [row for row in self.record.clients.get("labels") or [] if sum(row)]
        if not rows:
            return None
        everyone = [sum(column) for column in zip(*rows, strict=True)]
        shares = [n / sum(everyone) for n in everyone]
        return mean(sum(abs(n / sum(row) - s) for n, s in zip(row, shares, strict=True)) / 2 for row in rows)

    def quartiles(self) -> list[list[float]]:
        """Of the clients' steps, in the last rounds."""
        rows = [row.get("client_steps") for row in end(self.record.rows)]
        return [row for row in rows if isinstance(row, list) and len(row) == 5 and None not in row]


def of_run(run: Run) -> Evidence:
    rows = [{k: _finite(v) for k, v in row.items()} for row in run.history]
    return _enough(Evidence(Record("run", rows), run.algorithm))


def of_folder(folder: Path) -> Evidence:
    if not folder.is_dir():
        raise InvalidInput(f"diagnose: there is no folder {folder}; expected one that `fedstride run` wrote.")
    try:
        record = read(folder)
    except InvalidInput as error:
        raise InvalidInput(str(error).replace("report:", "diagnose:", 1)) from error
    if isinstance(record, Comparison):
        raise InvalidInput(f"diagnose: {folder} holds a comparison; expected one of the run folders in it.")
    return of_record(record, folder)


def of_record(record: Record, folder: Path) -> Evidence:
    config = resolve(file=folder / "config.toml") if (folder / "config.toml").is_file() else None
    if config is None:
        return _enough(Evidence(record, _saved(folder / "run.safetensors")))
    algorithm, readout = config.make_algorithm(), config.training.readout
    if readout is not None:
        algorithm = algorithm.__class__(**{**vars(algorithm), "readout": readout})
    return _enough(Evidence(record, algorithm, config.training.rounds))


def _enough(evidence: Evidence) -> Evidence:
    if not evidence.rounds:
        raise InvalidInput("diagnose: the history is empty; expected at least one finished round.")
    return evidence


def _saved(path: Path) -> Algorithm | None:
    """The algorithm that run.save() wrote down, if it is made of this package's parts."""
    if not path.is_file():
        return None
    text = str(read_tensors(path)[1].get("algorithm"))
    try:
        found = _built(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, FedstrideError):
        return None
    return found if isinstance(found, Algorithm) else None


def _built(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        make = {**PARTS, "Algorithm": Algorithm}[node.func.id]
        return make(**{str(k.arg): _built(k.value) for k in node.keywords})
    return ast.literal_eval(node)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
