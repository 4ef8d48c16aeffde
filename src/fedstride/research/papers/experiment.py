"""Experiments of the papers: the paper's claims, our measurements, and whether they agree."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.charts import line
from fedstride.app.sweep import Cell, Result, Tell, complete
from fedstride.core.errors import FedstrideWarning, InvalidInput, nearest

NUMBERS = {"000": "fedsls", "001": "delta-sgd", "003": "fedexp", "004": "fedlin"}  # names before 0.2 began with these
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
    """A figure in plotly's format, with its texts. The page supplies defaults for the layout."""

    title: str
    note: str
    figure: dict[str, Any]


Points = tuple[Sequence[float], Sequence[float | None]]  # x, y


def curves(
    title: str,
    note: str,
    series: Mapping[str, Points],
    x: str = "rounds",
    y: str = "",
    log: bool = False,
    **layout: Any,
) -> Picture:
    """Draw one line per name; `log` makes the vertical axis logarithmic."""
    traces = [line(list(ys), name, i, x=list(xs)) for i, (name, (xs, ys)) in enumerate(series.items())]
    axis = _log_axis([v for _, ys in series.values() for v in ys if v is not None and 0 < v < math.inf]) if log else {}
    shape = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, **axis}}
    return Picture(title, note, {"data": traces, "layout": theme.merged(shape, layout)})


def heat_map(
    x: Sequence[str],
    y: Sequence[str],
    z: Sequence[Sequence[float]],
    text: Sequence[Sequence[str]],
    hover: str,
    **more: Any,
) -> dict[str, Any]:
    """Return a trace: a table whose cells are coloured by z and labelled with text."""
    return {
        "type": "heatmap",
        **{"x": list(x), "y": list(y), "z": z, "text": text, "texttemplate": "%{text}"},
        "colorscale": [[i / (len(theme.SCALE) - 1), light] for i, (light, _) in enumerate(theme.SCALE)],
        "colorbar": {"thickness": 8, "outlinewidth": 0, "ticks": "", "nticks": 5},
        **{"xgap": 1, "ygap": 1, "hovertemplate": f"{hover}<extra></extra>"},
        **more,
    }


def _log_axis(values: list[float]) -> dict[str, Any]:
    """Return an axis with about eight ticks: powers of ten, and also 2 and 5 between them if there are few."""
    decades = math.log10(max(values) / min(values)) if values else 0
    ticks = (
        {"dtick": math.ceil(decades / 8), "tickformat": "~e"} if decades > 2 else {"dtick": "D2", "tickformat": "~g"}
    )
    return {"type": "log", **ticks}


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment."""

    claims: list[Claim]
    pictures: list[Picture]
    figures: dict[str, Any] = field(default_factory=dict)  # the numbers behind the claims, for the committed record
    settings: dict[str, Any] = field(default_factory=dict)  # name: value, for the page


@dataclass(frozen=True)
class Lab:
    """The environment of an experiment: its scale, and a cache of computed cells."""

    scale: str  # "small" or "paper"
    seeds: int
    folder: Path
    tell: Tell = lambda done, total, name: None
    used: set[Path] = field(default_factory=set)  # files of the requested cells

    @property
    def small(self) -> bool:
        return self.scale == "small"

    def run(self, cells: Sequence[Cell], workers: int | None = None) -> dict[str, Result]:
        """Return the results by name; each scale has its own names. Use one worker, this process, for short cells."""
        folder = self.folder / "cells" / self.scale
        for cell in cells:
            _rename_old_file(cell, folder)
        self.used.update(cell.file(folder) for cell in cells)
        return complete(cells, folder, self.tell, workers)

    @property
    def hours(self) -> float:
        """Computing time of all requested cells, including earlier runs."""
        seconds: list[float] = [json.loads(file.read_text())["seconds"] for file in sorted(self.used)]
        return sum(seconds) / 3600

    def judge(self, what: str, paper: str, ours: str, holds: bool, full: bool | None = None) -> Claim:
        """Return the claim with its verdict; by default, agreement is full at the paper's scale and in kind at the small."""
        agreement = AGREES if (not self.small if full is None else full) else IN_KIND
        return Claim(what, paper, ours, agreement if holds else DIFFERS)


def _rename_old_file(cell: Cell, folder: Path) -> None:
    """Give a result that was saved under the number of its paper its present name."""
    for number, paper in NUMBERS.items():
        if cell.name.startswith((f"{paper}-", f"{paper} ")):
            old = replace(cell, name=number + cell.name.removeprefix(paper)).file(folder)
            if old.exists():
                old.replace(cell.file(folder))


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper; its name starts with the paper's, as in fedexp-synthetic."""

    name: str
    title: str
    measure: Callable[[Lab], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, title: str) -> Callable[[Callable[[Lab], Outcome]], Callable[[Lab], Outcome]]:
    """Register a function as an experiment, under the names of the paper and of the table or figure."""

    def enter(measure: Callable[[Lab], Outcome]) -> Callable[[Lab], Outcome]:
        EXPERIMENTS[name] = Experiment(name, title, measure)
        return measure

    return enter


def current(name: str) -> str:
    """Return the present name of an experiment: fedexp-synthetic for 003-synthetic."""
    paper, dash, rest = name.partition("-")
    return NUMBERS.get(paper, paper) + dash + rest


def select(name: str) -> list[Experiment]:
    """Return one experiment by its name, those of a paper by the paper's name, or `all`."""
    if (new := current(name)) != name:
        warnings.warn(f"{name} is now {new}; the old name goes in the next release.", FedstrideWarning, stacklevel=2)
        name = new
    known = [EXPERIMENTS[key] for key in sorted(EXPERIMENTS)]
    found = [e for e in known if name in ("all", e.name) or e.name.startswith(f"{name}-")]
    if not found:
        raise InvalidInput(f"{name!r} is not an experiment; {nearest(name, EXPERIMENTS)}")
    return found
