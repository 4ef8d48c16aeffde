"""Laws: statements of a paper that a run can refute, each with a measured figure and its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import Any, TypeVar

from fedstride.core.errors import FedstrideError

KEEPS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda measured, bound: measured <= bound,
    ">=": lambda measured, bound: measured >= bound,
    "<": lambda measured, bound: measured < bound,
    ">": lambda measured, bound: measured > bound,
    "==": lambda measured, bound: measured == bound,
}


@dataclass(frozen=True)
class Measurement:
    """One line of the table. NaN breaks every law."""

    law: str
    source: str
    measured: float
    relation: str
    bound: float

    @property
    def kept(self) -> bool:
        return KEEPS[self.relation](self.measured, self.bound)

    def json(self) -> dict[str, Any]:
        """Convert to a dict for JSON, with None for NaN."""
        return {**asdict(self), "measured": self.measured if isfinite(self.measured) else None, "kept": self.kept}


Measured = tuple[str, float, str, float]  # description, measured, relation, bound
Check = TypeVar("Check", bound=Callable[..., Iterator[Measured]])
LAWS: list[tuple[str, Callable[[], Iterator[Measured]]]] = []


def law(source: str) -> Callable[[Check], Check]:
    """Register a generator of (description, measured, relation, bound) in the list of laws."""

    def enter(check: Check) -> Check:
        LAWS.append((source, check))
        return check

    return enter


def select(only: str = "") -> list[tuple[str, Callable[[], Iterator[Measured]]]]:
    """Return the laws whose source, name or module contains the text, such as "FedLin" or "Thm 9"."""
    return [
        (source, check)
        for source, check in LAWS
        if only.lower() in f"{source} {check.__module__.rpartition('.')[2]}.{check.__name__}".lower()
    ]


def run(source: str, check: Callable[[], Iterator[Measured]]) -> Iterator[Measurement]:
    """Yield the measurements of one law; a run that fails breaks it."""
    try:
        for what, measured, relation, bound in check():
            yield Measurement(what, source, float(measured), relation, float(bound))
    except (FedstrideError, ArithmeticError) as error:
        yield Measurement(f"{check.__name__}: {error}", source, nan, "<=", 0)


def measurements(only: str = "") -> Iterator[Measurement]:
    """Yield the measurements of the selected laws, in the order of the papers."""
    for source, check in select(only):
        yield from run(source, check)
