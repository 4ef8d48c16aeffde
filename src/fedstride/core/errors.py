"""What can go wrong, by kind: every error that fedstride raises on purpose is a FedstrideError."""

from __future__ import annotations

import difflib
import numbers
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstride.training.result import Run


LARGEST = 1.7e308  # of float64; check.fits asks again for the model's own type


class FedstrideError(Exception):
    """Base of all errors of this package."""


class FedstrideWarning(UserWarning):
    """Something went wrong and was dealt with; the user should know."""


def tell(message: str) -> None:
    warnings.warn(message, FedstrideWarning, stacklevel=2)


class InvalidInput(FedstrideError, ValueError):
    """An argument or a data set that cannot be used; the message names it and says how to fix it."""


class Corrupt(InvalidInput):
    """A file or a message that is damaged, or not fedstride's."""


class Refused(FedstrideError, ValueError):
    """Parts that make no sense together; the message says why."""


class GivenUp(FedstrideError, RuntimeError):
    """A run that cannot go on. `run` holds the history and the last good model, `round` the round that failed."""

    def __init__(self, message: str, run: Run, round: int, clients: list[int]) -> None:
        super().__init__(message)
        self.run, self.round, self.clients = run, round, clients


class Diverged(GivenUp):
    """The model became non-finite, or exploded; `clients` are those whose model did."""


class TooFew(GivenUp):
    """A round that not enough clients took part in, however often it was tried; `clients` are those who were lost."""


class Ended(FedstrideError, RuntimeError):
    """In a process that followed another: that one ended the run, and says why itself."""


class Unsaved(FedstrideError, OSError):
    """A file that cannot be written. `run` holds what was trained so far, if it happened in training."""

    run: Run | None = None


def nearest(name: str, valid: Iterable[str]) -> str:
    """'did you mean ...?' for an unknown name, or the list of the valid ones."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name.lower(), valid, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected one of: {', '.join(valid)}."


def positive(part: object, **values: float | None) -> None:
    """Refuse rates that are not positive and finite; None means 'not set', where that is the part's own default."""
    _each(part, values, lambda v: 0 < v <= LARGEST, "a positive finite number")


def not_negative(part: object, **values: float | None) -> None:
    """Refuse negative or non-finite values; zero means 'off'."""
    _each(part, values, lambda v: 0 <= v <= LARGEST, "a finite number >= 0 (0 turns it off)")


def at_least_one(part: object, **values: float | None) -> None:
    """Refuse factors that would shrink what they should let grow."""
    _each(part, values, lambda v: 1 <= v <= LARGEST, "a finite number >= 1")


def finite(part: object, **values: float | None) -> None:
    _each(part, values, lambda v: abs(v) <= LARGEST, "a finite number")


def betas(part: object, values: tuple[float, float]) -> None:
    """Refuse what is no pair of decay factors."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise InvalidInput(f"{_owner(part)}: betas={values!r} is invalid: expected two numbers in [0, 1).")
    decay(f"{_owner(part)}.betas", first=values[0], second=values[1])


def fraction(part: object, **values: float | None) -> None:
    """Refuse what is not strictly between 0 and 1."""
    _each(part, values, lambda v: 0 < v < 1, "a number strictly between 0 and 1")


def decay(part: object, **values: float | None) -> None:
    """Refuse what is not in [0, 1); zero means 'off'."""
    _each(part, values, lambda v: 0 <= v < 1, "a number in [0, 1) (0 turns it off)")


def _owner(part: object) -> str:
    return part if isinstance(part, str) else type(part).__name__


def _each(part: object, values: dict[str, float | None], ok, expected: str) -> None:  # type: ignore[no-untyped-def]
    for name, value in values.items():
        if value is None and getattr(type(part), name, "no default") is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not ok(value):
            raise InvalidInput(f"{_owner(part)}: {name}={value!r} is invalid: expected {expected}.")
