"""Schedules of a step size over the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedstride.core.errors import InvalidInput, positive

EXPECTED = "expected a function (round, rounds) -> factor, or None"


class Schedule(Protocol):
    """A schedule: any function (round, rounds) -> factor."""

    def __call__(self, round: int, rounds: int) -> float:
        """Return the factor of the step size in this round, counted from 0."""
        ...


@dataclass(frozen=True)
class Exponential:
    """Exponential decay: factor^round. FedExP uses 0.998 (app. D.3).

    Args:
        factor: factor per round.

    Raises:
        InvalidInput: if factor is not positive.

    Example:
        >>> fs.Exponential(0.5)(round=2, rounds=10)
        0.25
    """

    factor: float = 0.998

    def __post_init__(self) -> None:
        positive(self, factor=self.factor)

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor**round


@dataclass(frozen=True)
class Stepwise:
    """Multiply by `factor` after each of the given fractions of the rounds. Delta-SGD uses the defaults.

    Args:
        factor: factor at each step.
        at: fractions of the rounds, strictly between 0 and 1.

    Raises:
        InvalidInput: if factor is not positive, or a fraction is out of range.

    Example:
        >>> schedule = fs.Stepwise(factor=0.5, at=(0.5, 0.75))
        >>> [schedule(round, rounds=4) for round in range(4)]
        [1.0, 1.0, 0.5, 0.25]
    """

    factor: float = 0.1
    at: tuple[float, ...] = (0.5, 0.75)

    def __post_init__(self) -> None:
        positive(self, factor=self.factor)
        if not isinstance(self.at, tuple | list) or not all(isinstance(a, int | float) and 0 < a < 1 for a in self.at):
            raise InvalidInput(f"Stepwise: at={self.at!r} is invalid: expected fractions between 0 and 1.")

    def __call__(self, round: int, rounds: int) -> float:
        return self.factor ** sum(round >= a * rounds for a in self.at)


def rate(lr: float, schedule: Schedule | None, round: int, rounds: int) -> float:
    """Return the step size of a round."""
    if schedule is None:
        return lr
    try:
        factor = schedule(round, rounds) if callable(schedule) else None
    except Exception as error:
        raise InvalidInput(
            f"schedule={schedule!r} fails for round {round} of {rounds} ({error!r}); {EXPECTED}."
        ) from error
    if not isinstance(factor, int | float):
        raise InvalidInput(f"schedule={schedule!r} is invalid: {EXPECTED}.")
    return lr * factor
