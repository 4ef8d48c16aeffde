"""Evidence: statistics of a run's history, and the parts of its algorithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, median
from typing import Any, NamedTuple, TypeVar

from fedstride.algorithm import Algorithm
from fedstride.app.diagnose import limits
from fedstride.app.diagnose.facts import ConstantPrediction, constant_of
from fedstride.app.report.read import Record
from fedstride.client.step import Step
from fedstride.core.capabilities import declared
from fedstride.server import Server

T = TypeVar("T")


class Course(NamedTuple):
    """A linear fit to the end of a curve: its level, its fall, and the residual deviation."""

    level: float
    fall: float
    noise: float
    values: int

    @property
    def certain(self) -> float:
        """The fall that noise alone exceeds once in twenty times."""
        return 2 * self.noise * math.sqrt(12 / self.values)


def course(values: Sequence[float]) -> Course:
    n, level = len(values), mean(values)
    at = [i - (n - 1) / 2 for i in range(n)]
    slope = sum(i * v for i, v in zip(at, values, strict=True)) / sum(i * i for i in at)
    noise = math.sqrt(sum((v - level - slope * i) ** 2 for i, v in zip(at, values, strict=True)) / (n - 2))
    return Course(level, -slope * n, noise, n)


def end(values: list[T]) -> list[T]:
    """Return the last third, but at least limits.LATE values."""
    return values[-max(limits.LATE, len(values) // 3) :]


def sixths(values: list[float]) -> list[float]:
    """Return the means of six equal parts: the curve without its noise."""
    n = len(values)
    return [mean(values[i * n // 6 : (i + 1) * n // 6]) for i in range(6)]


@dataclass(frozen=True)
class Evidence:
    """The evidence about a run; unknown values are None."""

    record: Record
    algorithm: Algorithm | None = None
    planned: int | None = None  # configured number of rounds
    single: bool | None = None  # whether clients take one step per round
    facts: dict[str, Any] = field(default_factory=dict)  # facts about the data: see facts.py

    @property
    def step(self) -> Step | None:
        return self.algorithm.step if self.algorithm is not None else None

    @property
    def server(self) -> Server | None:
        return self.algorithm.server if self.algorithm is not None else None

    @property
    def averaged(self) -> bool:
        """Whether the returned model is an average of the iterates."""
        return self.algorithm is not None and self.algorithm.readout == "average"

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
        """The loss to use: of the returned model, unless it was rarely evaluated."""
        return "test_loss" if len(self.known("test_loss")) >= limits.ROUNDS else "train_loss"

    @cached_property
    def loss(self) -> Course | None:
        values = self.known(self.watched)
        return course(end(values)) if len(values) >= limits.ROUNDS else None

    @cached_property
    def start(self) -> float:
        """The loss before the first step: of the first cohort, or of the test set after one round if that is higher."""
        first = next(iter(self.known("train_loss")), math.nan)
        tested = next(iter(self.known("test_loss")), 0.0)
        return max(first, tested) if tested < limits.BLOWN * first else first

    @cached_property
    def fell(self) -> float:
        """The fall of the loss, as a share of the first loss."""
        return 1 - self.loss.level / self.start if self.loss and self.start > 0 else 0.0

    @cached_property
    def state(self) -> str:
        """short, diverged, rising, improving, slow, converged or plateau."""
        latest = [v for name in ("train_loss", "test_loss") if (v := self.record.last(name)) is not None]
        if self.broken or any(v > limits.DIVERGED * abs(self.start) for v in latest):
            return "diverged"
        if self.loss is None:
            return "short"
        if self.came_back("train_loss") and self.came_back(self.watched):
            return "rising"
        fall, level = self.loss.fall, self.loss.level
        settled = fall < max(self.loss.certain, limits.SETTLED * self.start)
        if not settled and fall > limits.GAINS * level:
            return "improving"
        if self.fell < limits.SLOW and not self.still:
            return "slow"
        ended = (self.still or level < limits.LOW * self.start) and not self._stopped_short
        return "converged" if ended else "plateau"

    @property
    def bad(self) -> bool:
        return self.state in ("diverged", "rising", "slow", "plateau")

    @cached_property
    def constant(self) -> ConstantPrediction:
        """Test scores of the best prediction that ignores the inputs."""
        return constant_of(self.facts)

    @cached_property
    def accurate(self) -> bool | None:
        """Whether the test accuracy is clearly above that of the most frequent class; None if unknown."""
        accuracy, least = self.usual("test_accuracy"), self.constant.beaten_from
        return None if accuracy is None or least is None else accuracy > least

    @cached_property
    def gain(self) -> float | None:
        """Relative gain of the test loss over that of the best constant prediction; None if unknown."""
        loss, constant = self.usual("test_loss"), self.constant.loss
        return None if loss is None or constant is None else 1 - loss / constant

    @cached_property
    def predictive(self) -> bool | None:
        """Whether the test loss is clearly below that of the best constant prediction; None if unknown."""
        return None if self.gain is None else self.gain > max(limits.LEARNED, self.constant.chance)

    @cached_property
    def unlearned(self) -> bool:
        """Whether no score is clearly better than a constant prediction's or, if those are unknown, all curves are flat."""
        if self.state in ("diverged", "short"):
            return False
        return self._no_better

    @property
    def _stopped_short(self) -> bool:
        """Whether the run stopped making progress before it converged."""
        return self._no_better or self.same_accuracy or self.clamped

    @cached_property
    def _no_better(self) -> bool:
        if self.accurate is None and self.gain is not None:  # regression: a small gain may be the best possible
            return self.gain <= self.constant.chance
        if self.accurate is not None:
            return not (self.accurate or self.predictive)
        return self.flat or (self.same_accuracy and self.fell < limits.SLOW)

    @cached_property
    def same_accuracy(self) -> bool:
        """Whether the test accuracy never changed and is below 1, and the constant prediction's scores are unknown."""
        values = self.known("test_accuracy")
        unknown = self.accurate is None and self.gain is None
        return unknown and len(values) >= limits.ROUNDS and len(set(values)) == 1 and values[0] < 1

    @cached_property
    def flat(self) -> bool:
        """Whether no loss changed by more than its noise since the first rounds."""
        curves = [v for name in ("train_loss", "test_loss") if len(v := self.known(name)) >= limits.ROUNDS]
        return bool(curves) and all(map(_is_flat, curves))

    @cached_property
    def clamped(self) -> bool:
        """Whether Polyak's step is zero for most clients in most of the last rounds although the loss is not."""
        step, steps = self.step, [row[2] for row in self.quartiles()] or self.late("client_step")
        losses = self.late("train_loss")
        polyak = step is None or declared(step, "least_loss") is not None
        if not polyak or len(steps) < limits.LATE or not losses:
            return False
        longest = max(self.known("client_step"), default=0.0)
        if sum(s <= limits.CLAMPED * longest for s in steps) <= limits.MOSTLY * len(steps):
            return False
        if median(losses) < self.least_loss:
            return True
        return step is not None and median(losses) > max(limits.LOW * self.start, self.least_loss)

    @property
    def least_loss(self) -> float:
        """The minimum that Polyak's step assumes."""
        return float(declared(self.step, "least_loss") or 0.0)

    @cached_property
    def broken(self) -> int | None:
        """The first round with a non-finite loss."""
        for i, row in enumerate(self.record.rows):
            unjudged = row.get("test_loss") is None and row.get("test_accuracy") is not None
            if row.get("train_loss") is None or unjudged:
                return i + 1
        return None

    @cached_property
    def peak(self) -> float:
        """The largest loss of all rounds, relative to the first."""
        return max([*self.known("train_loss"), *self.known("test_loss")], default=math.nan) / (self.start or math.nan)

    def came_back(self, name: str) -> bool:
        """Whether a loss has risen since its best, by more than its noise."""
        values = self.known(name)
        if len(values) < limits.ROUNDS:
            return False
        parts = sixths(values)
        noise = course(end(values)).noise
        return parts[-1] - min(parts) > max(limits.BACK * min(parts), 2 * limits.SETTLED * self.start, noise)

    @cached_property
    def still(self) -> bool:
        """Whether the iterates stopped moving, although steps did not become shorter and the loss did not explode."""
        rows = zip(self.record.column("update"), self.record.column("client_step"), strict=True)
        slopes = [update / step for update, step in rows if update is not None and step]
        if len(slopes) < limits.ROUNDS or self.peak > limits.BLOWN or self.fell < 0:
            return False
        return median(end(slopes)) < limits.VANISHED * max(slopes[: limits.LATE])

    @cached_property
    def unseen(self) -> bool:
        """Whether the returned model averages the iterates but only the loss of the iterates is known."""
        return self.averaged and self.watched == "train_loss"

    @cached_property
    def rough(self) -> bool:
        """Whether the loss oscillates about its trend. Changing cohorts make the training loss do so for any step."""
        if self.loss is None or (self.watched == "train_loss" and not (self.turn or 0) < 0):
            return False
        return self.loss.noise > max(limits.ROUGH * abs(self.loss.level), self.loss.fall / 2)

    @cached_property
    def turn(self) -> float | None:
        """Cosine of successive moves; None for a server with momentum, whose moves are always similar."""
        return None if declared(self.server, "has_momentum") or len(self.late("turn")) < 3 else self.usual("turn")

    @cached_property
    def small(self) -> bool:
        """Whether there is hardly any progress and steps could be longer."""
        if self.state != "slow" or self.loss is None or self.peak > limits.BLOWN:
            return False
        smooth = self.loss.fall > 0 and self.loss.noise < limits.SMOOTH * self.loss.fall
        return smooth or (self.turn is not None and self.turn > limits.AHEAD)

    @cached_property
    def short_by(self) -> float:
        """Factor by which to lengthen small steps, assuming that progress is proportional to the step."""
        if self.loss is None or self.loss.fall <= max(self.loss.certain, 0):
            return 10.0
        return min(1000.0, max(3.0, 2 * limits.SLOW * self.loss.level / (3 * self.loss.fall)))

    @cached_property
    def large(self) -> bool:
        """Whether steps undo each other or made the loss explode."""
        if self.state == "diverged" or (self.bad and self.peak > limits.BLOWN):
            return True
        swings = self.turn is not None and self.turn < limits.SWINGS
        return self.state in ("rising", "slow") and not (self.small or self.unseen) and (swings or self.rough)

    @cached_property
    def diversity(self) -> float | None:
        """Median of S / |Dbar|^2 in the last rounds."""
        rows = zip(end(self.record.column("drift")), end(self.record.column("update")), strict=True)
        both = [1 + (d / u) ** 2 if u else math.inf for d, u in rows if d is not None and u is not None]
        return median(both) if both else None

    @cached_property
    def skew(self) -> float | None:
        """Mean total variation distance of the clients' label distributions from the overall one."""
        rows = [row for row in self.record.clients.get("labels") or [] if sum(row)]
        if not rows:
            return None
        everyone = [sum(column) for column in zip(*rows, strict=True)]
        shares = [n / sum(everyone) for n in everyone]
        return float(mean(sum(abs(n / sum(row) - s) for n, s in zip(row, shares, strict=True)) / 2 for row in rows))

    def quartiles(self) -> list[list[float]]:
        """Quartiles of the clients' steps in the last rounds."""
        rows = [row.get("client_steps") for row in end(self.record.rows)]
        return [row for row in rows if isinstance(row, list) and len(row) == 5 and all(map(_is_step, row))]


def _is_flat(values: list[float]) -> bool:
    late, first = course(end(values)), mean(values[: limits.LATE])
    noise = limits.SURE * late.noise * math.sqrt(1 / limits.LATE + 1 / late.values)
    return abs(first - late.level) <= max(noise, limits.FLAT * abs(first))


def _is_step(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
