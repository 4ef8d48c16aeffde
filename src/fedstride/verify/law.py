"""A law: a statement of a paper that a run can break, with the figure measured and the bound it must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

KEEPS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda measured, bound: measured <= bound,
    ">=": lambda measured, bound: measured >= bound,
    "<": lambda measured, bound: measured < bound,
    ">": lambda measured, bound: measured > bound,
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
        return {**asdict(self), "kept": self.kept}


Measured = tuple[str, float, str, float]  # what, measured, relation, bound
LAWS: list[tuple[str, Callable[[], Iterator[Measured]]]] = []


def law(source: str) -> Callable[[Callable[[], Iterator[Measured]]], Callable[[], Iterator[Measured]]]:
    """Enter a generator of (what, measured, relation, bound) into the list of laws."""

    def enter(check: Callable[[], Iterator[Measured]]) -> Callable[[], Iterator[Measured]]:
        LAWS.append((source, check))
        return check

    return enter


def findings() -> Iterator[Finding]:
    """Every law, in the order of the papers."""
    for source, check in LAWS:
        for what, measured, relation, bound in check():
            yield Finding(what, source, float(measured), relation, float(bound))
