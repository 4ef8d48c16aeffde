"""An experiment of a paper: what it claims, what we measure, and whether the two agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstride.errors import InvalidInput, nearest
from fedstride.study import Cell, Result, Tell, complete

SCALES = ("small", "paper")
AGREES, IN_KIND, DIFFERS, NOT_RUN = "agrees", "in kind", "differs", "not run"


@dataclass(frozen=True)
class Claim:
    """One line of the table: the paper's figure, ours, and the verdict."""

    what: str
    paper: str
    ours: str
    verdict: str


@dataclass(frozen=True)
class Picture:
    """A plotly figure in plain dictionaries, with its words."""

    title: str
    note: str
    figure: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    claims: list[Claim]
    pictures: list[Picture]
    figures: dict[str, Any] = field(default_factory=dict)  # the numbers behind the claims, for the committed record


@dataclass(frozen=True)
class Lab:
    """What an experiment gets: its size, and a way to have cells computed that keeps what was computed."""

    scale: str  # "small" or "paper"
    seeds: int
    folder: Path
    tell: Tell = lambda done, total, name: None

    @property
    def small(self) -> bool:
        return self.scale == "small"

    def run(self, cells: Sequence[Cell]) -> dict[str, Result]:
        """Results by name; the names of a scale are its own."""
        return complete(cells, self.folder / "cells" / self.scale, self.tell)

    def judge(self, what: str, paper: str, ours: str, holds: bool) -> Claim:
        """At small scale an agreement is one in kind."""
        return Claim(what, paper, ours, (IN_KIND if self.small else AGREES) if holds else DIFFERS)


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    measure: Callable[[Lab], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, title: str) -> Callable[[Callable[[Lab], Outcome]], Callable[[Lab], Outcome]]:
    """Enter a function into the list under the paper's number and the name of the table or figure."""

    def enter(measure: Callable[[Lab], Outcome]) -> Callable[[Lab], Outcome]:
        EXPERIMENTS[name] = Experiment(name, title, measure)
        return measure

    return enter


def select(name: str) -> list[Experiment]:
    """One experiment by its name, those of a paper by its number, or `all`."""
    if name == "all":
        return list(EXPERIMENTS.values())
    found = [e for key, e in EXPERIMENTS.items() if key == name or key.startswith(f"{name}-")]
    if not found:
        raise InvalidInput(f"{name!r} is no experiment; {nearest(name, EXPERIMENTS)}")
    return found
