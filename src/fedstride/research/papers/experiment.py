"""Experiments of the papers: the paper's claims, our measurements, and whether they agree."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedstride.app.report import theme
from fedstride.app.report.charts import line
from fedstride.app.sweep import Cell, Result, Tell, begun, complete, saved
from fedstride.core.errors import FedstrideWarning, InvalidInput, nearest
from fedstride.research.interval import half_width

T = TypeVar("T")

NUMBERS = {"000": "fedsls", "001": "delta-sgd", "003": "fedexp", "004": "fedlin"}  # names before 0.2 began with these
SCALES = ("small", "medium", "paper")
AGREES, IN_KIND, DIFFERS, NOT_RUN = "agrees", "in kind", "differs", "not run"
UNDECIDED = "undecided"  # fails on average, but within the seeds' interval; or one seed, which has no interval
NO_INFORMATION = "no information"  # all methods are below twice chance
RATED = ("SGD", "SGDM", "Adam", "Adagrad")  # optimisers of Delta-SGD's tables that need a rate
CHANCE = 10.0  # per cent, for ten classes


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

    scale: str  # one of SCALES
    seeds: int
    folder: Path
    tell: Tell = lambda done, total, name: None
    tasks: tuple[str, ...] = ()  # of an experiment on several tasks; all if empty
    rates: dict[str, float] = field(default_factory=dict)  # by optimiser, instead of those found by a search
    augment: bool = False  # whether images of CIFAR-10 are cropped and flipped at random in training
    residual: bool = False  # whether a narrow ResNet-18 replaces ResNet-18 at medium scale, instead of a CNN
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

    def saved(self, cells: Sequence[Cell]) -> dict[str, Result]:
        """Return the results of earlier runs by name, without running what is missing."""
        folder = self.folder / "cells" / self.scale
        found = saved(cells, folder)
        self.used.update(cell.file(folder) for cell in cells if cell.name in found)
        return found

    def begun(self, cells: Sequence[Cell]) -> dict[str, list[Result]]:
        """Return the rounds so far of cells that were interrupted, by name."""
        return begun(cells, self.folder / "cells" / self.scale)

    def __post_init__(self) -> None:
        if self.residual and self.scale != "medium":
            raise InvalidInput(f"--residual with --scale {self.scale}: expected --scale medium, the scale it is for.")

    def command(self, name: str) -> str:
        """Return the command that runs this experiment."""
        tasks = f" --tasks {','.join(self.tasks)}" if self.tasks else ""
        rates = f" --rates {','.join(f'{key}={lr:g}' for key, lr in self.rates.items())}" if self.rates else ""
        more = (" --augment" if self.augment else "") + (" --residual" if self.residual else "")
        return f"fedstride reproduce {name} --scale {self.scale} --seeds {self.seeds}{tasks}{rates}{more}"

    @property
    def hours(self) -> float:
        """Computing time of all requested cells, including earlier runs."""
        seconds: list[float] = [json.loads(file.read_text())["seconds"] for file in sorted(self.used)]
        return sum(seconds) / 3600

    def judge(self, what: str, paper: str, ours: str, holds: bool, full: bool | None = None) -> Claim:
        """Return the claim with its verdict; by default, agreement is full at the paper's scale and in kind below it."""
        agreement = AGREES if (self.scale == "paper" if full is None else full) else IN_KIND
        return Claim(what, paper, ours, agreement if holds else DIFFERS)

    def weigh(
        self,
        what: str,
        paper: str,
        ours: str,
        margin: Callable[[T], float],
        mean: T,
        each: Sequence[T],
        *,
        best: Sequence[float] = (),
        chance: float = CHANCE,
        strict: bool = True,
    ) -> Claim:
        """Judge a claim over seeds: it holds if the margin at the mean is positive (or 0, unless `strict`).

        A claim that does not hold differs if the 95 % interval of the margins of the seeds, whose runs are paired, is
        below 0; otherwise it is undecided. If one of the `best` accuracies is below twice chance, there is no
        information.

        Args:
            what: the claim.
            paper: the paper's figures.
            ours: our figures.
            margin: distance to the bound of the claim, negative on the wrong side.
            mean: the results, averaged over the seeds.
            each: the results of each seed.
            best: best accuracy of each compared group, in per cent.
            chance: accuracy of guessing, in per cent.
            strict: whether a margin of 0 fails.
        """
        margins = [_bounded(margin(one)) for one in each]
        half = half_width(margins)
        if half is not None:
            middle = statistics.fmean(margins)
            ours += f"; margin {middle:.3g}, interval {middle - half:.3g} to {middle + half:.3g} ({len(margins)} seeds)"
        value = _bounded(margin(mean))
        if any(b < 2 * chance for b in best):
            return Claim(what, paper, ours, NO_INFORMATION)
        if value > 0 or (value == 0 and not strict):
            return self.judge(what, paper, ours, True)
        outside = half is not None and statistics.fmean(margins) + half < 0
        return Claim(what, paper, ours, DIFFERS if outside else UNDECIDED)


def _bounded(margin: float) -> float:
    """Return a finite margin: runs that diverged have an infinite loss, and two of them are equal."""
    return 0.0 if math.isnan(margin) else max(-1e6, min(1e6, margin))


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
    tasks: tuple[str, ...] = ()  # tasks that can be selected
    rated: bool = False  # whether --rates can replace its search


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, title: str, tasks: tuple[str, ...] = (), rated: bool = False
) -> Callable[[Callable[[Lab], Outcome]], Callable[[Lab], Outcome]]:
    """Register a function as an experiment, under the names of the paper and of the table or figure."""

    def enter(measure: Callable[[Lab], Outcome]) -> Callable[[Lab], Outcome]:
        EXPERIMENTS[name] = Experiment(name, title, measure, tasks, rated)
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


def check_tasks(tasks: str | None, rates: str | None, chosen: Sequence[Experiment]) -> tuple[str, ...]:
    """Return the tasks of --tasks; refuse --tasks and --rates for experiments that cannot use them."""
    wanted = tuple(task.strip() for task in tasks.split(",")) if tasks is not None else ()
    for one in chosen:
        for option, given, known in (("tasks", tasks, one.tasks), ("rates", rates, one.rated)):
            if given is not None and not known:
                able = ", ".join(e.name for e in EXPERIMENTS.values() if (e.rated if option == "rates" else e.tasks))
                raise InvalidInput(f"{one.name} does not accept --{option}; expected one of {able}.")
        for task in wanted:
            if task not in one.tasks:
                raise InvalidInput(f"--tasks {task!r} is not a task of {one.name}; {nearest(task, one.tasks)}")
    return wanted


def given_rates(text: str | None) -> dict[str, float]:
    """Read --rates: one positive rate for each optimiser that has one."""
    if text is None:
        return {}
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        rates = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        rates = {}
    if set(rates) != set(RATED) or not all(0 < lr < math.inf for lr in rates.values()):
        expected = ",".join(f"{name}=0.01" for name in RATED)
        raise InvalidInput(
            f"--rates {text!r} is invalid: expected a positive rate for each optimiser, as in {expected}."
        )
    return rates
