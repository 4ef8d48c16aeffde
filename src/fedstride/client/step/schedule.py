"""Schedules of a constant rate over the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedstride.core.errors import InvalidInput, positive


class Schedule(Protocol):
    def __call__(self, round: int, rounds: int) -> float:
        """The factor of the rate in this round (0 is the first)."""
        ...


@dataclass(frozen=True)
class Exponential:
    """factor^round (003 app. D.3 takes 0.998)."""

    factor: float = 0.998

    def __post_init__(self) -> None:
        positive(self, factor=self.factor)

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor**round


@dataclass(frozen=True)
class Stepwise:
    """Times factor after each of the given fractions of the rounds (001: a tenth after 50 % and after 75 %)."""

    factor: float = 0.1
    at: tuple[float, ...] = (0.5, 0.75)

    def __post_init__(self) -> None:
        positive(self, factor=self.factor)
        if not isinstance(self.at, tuple | list) or not all(isinstance(a, int | float) and 0 < a < 1 for a in self.at):
            raise InvalidInput(f"Stepwise: at={self.at!r} is invalid: expected fractions between 0 and 1.")

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor ** sum(round >= a * rounds for a in self.at)


def rate(lr: float, schedule: Schedule | None, round: int, rounds: int) -> float:
    if schedule is None:
        return lr
    factor = schedule(round, rounds) if callable(schedule) else None
    if not isinstance(factor, int | float):
        raise InvalidInput(f"schedule={schedule!r} is invalid: expected a function (round, rounds) -> factor, or None.")
    return lr * factor
