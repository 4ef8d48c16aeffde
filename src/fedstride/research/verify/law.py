"""A law: a statement of a paper that a run can break, with the figure measured and the bound it must keep."""

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
class Finding:
    """One line of the table. A NaN keeps no law."""

    law: str
    source: str
    measured: float
    relation: str
    bound: float

    @property
    def kept(self) -> bool:
        return KEEPS[self.relation](self.measured, self.bound)

    def json(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return {**asdict(self), "measured": self.measured if isfinite(self.measured) else None, "kept": self.kept}


Measured = tuple[str, float, str, float]  # what, measured, relation, bound
Check = TypeVar("Check", bound=Callable[..., Iterator[Measured]])
LAWS: list[tuple[str, Callable[[], Iterator[Measured]]]] = []


def law(source: str) -> Callable[[Check], Check]:
    """Enter a generator of (what, measured, relation, bound) into the list of laws."""

    def enter(check: Check) -> Check:
        LAWS.append((source, check))
        return check

    return enter


def select(only: str = "") -> list[tuple[str, Callable[[], Iterator[Measured]]]]:
    """The laws whose source, name or module contains the text, such as "004", "Thm 9" or "fedlin"."""
    return [
        (source, check)
        for source, check in LAWS
        if only.lower() in f"{source} {check.__module__.rpartition('.')[2]}.{check.__name__}".lower()
    ]


def run(source: str, check: Callable[[], Iterator[Measured]]) -> Iterator[Finding]:
    """The findings of one law; a run that fails breaks it."""
    try:
        for what, measured, relation, bound in check():
            yield Finding(what, source, float(measured), relation, float(bound))
    except (FedstrideError, ArithmeticError) as error:
        yield Finding(f"{check.__name__}: {error}", source, nan, "<=", 0)


def findings(only: str = "") -> Iterator[Finding]:
    """Every law, in the order of the papers."""
    for source, check in select(only):
        yield from run(source, check)
