"""Exceptions and argument checks. Every error that fedstride raises on purpose is a FedstrideError."""

from __future__ import annotations

import difflib
import numbers
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstride.training.result import Run


LARGEST = 1.7e308  # largest float64; training/validate.py checks again for the model's own type


class FedstrideError(Exception):
    """Base class of all errors of this package.

    Example:
        >>> try:
        ...     algorithm = fs.Algorithm(step=fs.Constant(lr=-1.0))
        ... except fs.FedstrideError as error:
        ...     print(error)
        Constant: lr=-1.0 is invalid: expected a positive finite number.
    """


class FedstrideWarning(UserWarning):
    """A problem that was handled, but that the user should know about.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", fs.FedstrideWarning)  # stop at warnings
    """


def tell(message: str) -> None:
    """Issue a FedstrideWarning."""
    warnings.warn(message, FedstrideWarning, stacklevel=2)


class InvalidInput(FedstrideError, ValueError):
    """An invalid argument or data set; the message names it and explains how to fix it.

    Example:
        >>> try:
        ...     run = fs.train(nn.Linear(3, 1), "squares", clients, rounds=1)
        ... except fs.InvalidInput as error:
        ...     print(error)
        loss='squares' is unknown; ...
    """


class Corrupt(InvalidInput):
    """A damaged file or message, or one that was not written by fedstride.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, rounds=1)
        >>> folder = run.save("run")
        >>> (folder / "model.safetensors").write_bytes(b"damaged")
        7
        >>> try:
        ...     run = fs.load("run", nn.Linear(3, 1))
        ... except fs.Corrupt as error:
        ...     print(error)
        run/model.safetensors: ...
    """


class Refused(FedstrideError, ValueError):
    """An incompatible combination of parts; the message explains why.

    Example:
        >>> try:
        ...     algorithm = fs.Algorithm(step=fs.Adam(), drift=fs.Scaffold())
        ... except fs.Refused as error:
        ...     print(error)
        Scaffold with client Adam: ...
    """


class GivenUp(FedstrideError, RuntimeError):
    """A run that cannot continue.

    Args:
        message: the reason.
        run: the history and the last good model.
        round: the round that failed.
        clients: the clients concerned.

    Example:
        >>> try:
        ...     run = fs.train(nn.Linear(3, 1), "mse", clients, fs.recipes.fedavg(lr=1e6), rounds=20)
        ... except fs.GivenUp as error:
        ...     print(error.round, len(error.run.history))
        2 1
    """

    def __init__(self, message: str, run: Run, round: int, clients: list[int]) -> None:
        super().__init__(message)
        self.run, self.round, self.clients = run, round, clients


class Diverged(GivenUp):
    """The model became NaN or infinite, or exploded.

    Args:
        message: the reason.
        run: the history and the last good model.
        round: the round that failed.
        clients: the clients whose model diverged.

    Example:
        >>> try:
        ...     run = fs.train(nn.Linear(3, 1), "mse", clients, fs.recipes.fedavg(lr=1e6), rounds=20)
        ... except fs.Diverged as error:
        ...     print(error.round, error.clients)
        2 [0, 1, 2, 3]
    """


class TooFew(GivenUp):
    """Too few clients answered in all attempts of a round.

    Args:
        message: the reason.
        run: the history and the last good model.
        round: the round that failed.
        clients: the clients that did not answer.

    Example:
        >>> try:
        ...     run = fs.train(nn.Linear(3, 1), "mse", clients, rounds=2, engine=fs.faults.Faulty(dropout=1.0))
        ... except fs.TooFew as error:
        ...     print(error.round)
        1
    """


class Ended(FedstrideError, RuntimeError):
    """Raised in worker processes when the leading process has ended the run; the leader reports the reason."""


class Unsaved(FedstrideError, OSError):
    """A file that cannot be written. If this happens during training, `run` holds the completed rounds.

    Example:
        >>> try:
        ...     run = fs.train(nn.Linear(3, 1), "mse", clients, rounds=1, checkpoint="/dev/null/run")
        ... except fs.Unsaved as error:
        ...     print(error)
        /dev/null/run: ...
    """

    run: Run | None = None


def located(error: BaseException) -> str:
    """Return the type and the location of an exception, without its text, which may quote data."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {place.name}, {Path(place.filename).name} line {place.lineno}" for place in last)
    return f"{type(error).__name__}{where}; see the log of the node."


def printable(text: str) -> str:
    """Return a text with escape sequences instead of control characters, apart from new lines."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return 'did you mean ...?' for an unknown name, or the list of valid names."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name.lower(), valid, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"expected one of: {', '.join(valid)}."


def positive(part: object, **values: float | None) -> None:
    """Refuse values that are not positive and finite; None is allowed if it is the default."""
    _each(part, values, lambda v: 0 < v <= LARGEST, "a positive finite number")


def not_negative(part: object, **values: float | None) -> None:
    """Refuse negative or non-finite values; zero means 'off'."""
    _each(part, values, lambda v: 0 <= v <= LARGEST, "a finite number >= 0 (0 turns it off)")


def at_least_one(part: object, **values: float | None) -> None:
    """Refuse growth factors below 1."""
    _each(part, values, lambda v: 1 <= v <= LARGEST, "a finite number >= 1")


def finite(part: object, **values: float | None) -> None:
    """Refuse non-finite values."""
    _each(part, values, lambda v: abs(v) <= LARGEST, "a finite number")


def betas(part: object, values: tuple[float, float]) -> None:
    """Refuse values that are not a pair of decay factors."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise InvalidInput(f"{_owner(part)}: betas={values!r} is invalid: expected two numbers in [0, 1).")
    decay(f"{_owner(part)}.betas", first=values[0], second=values[1])


def fraction(part: object, **values: float | None) -> None:
    """Refuse values that are not strictly between 0 and 1."""
    _each(part, values, lambda v: 0 < v < 1, "a number strictly between 0 and 1")


def decay(part: object, **values: float | None) -> None:
    """Refuse values outside of [0, 1); zero means 'off'."""
    _each(part, values, lambda v: 0 <= v < 1, "a number in [0, 1) (0 turns it off)")


def yes_or_no(part: object, **values: bool) -> None:
    """Refuse values that are not True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{_owner(part)}: {name}={value!r} is invalid: expected True or False.")


def _owner(part: object) -> str:
    return part if isinstance(part, str) else type(part).__name__


def _each(part: object, values: dict[str, float | None], ok, expected: str) -> None:  # type: ignore[no-untyped-def]
    for name, value in values.items():
        if value is None and getattr(type(part), name, "no default") is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not ok(value):
            raise InvalidInput(f"{_owner(part)}: {name}={value!r} is invalid: expected {expected}.")
