"""Write the report of a run or of a comparison as one HTML file in its folder."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedstride.app.report import charts, gains, story, theme
from fedstride.app.report.builder import PRINTED, build
from fedstride.app.report.chart import Chart, percent
from fedstride.app.report.charts import means
from fedstride.app.report.read import Comparison, Record, read
from fedstride.app.report.settings import differences
from fedstride.core.files import replace_file
from fedstride.training.history import is_private
from fedstride.training.stop import larger_is_better

NAME, DIAGNOSIS = "report.html", "diagnosis.html"
METRICS = 6  # number of the user's metrics among the headline figures
AXES = {
    "rounds": {"label": "Rounds", "title": "rounds", "format": {"tickformat": "", "ticksuffix": ""}},
    "bytes": {"label": "Bytes", "title": "bytes sent, up and down", "format": {"tickformat": "~s", "ticksuffix": "B"}},
    "gradients": {
        "label": "Gradients",
        "title": "sample gradients evaluated",
        "format": {"tickformat": "~s", "ticksuffix": ""},
    },
}


def write(folder: str | Path) -> Path:
    """Read a run or comparison folder, write report.html to it, and return its path."""
    folder = Path(folder)
    found = read(folder)
    words = _comparison(found, folder) if isinstance(found, Comparison) else words_of(found)
    links = {"Diagnosis": DIAGNOSIS} if (folder / DIAGNOSIS).is_file() else {}
    path = folder / NAME
    private = any(is_private(run.rows) for run in _runs(found))
    replace_file(path, page_of("report.html", **{"links": links, **words}), private)
    return path


def _runs(found: Record | Comparison) -> list[Record]:
    return [run for runs in found.groups.values() for run in runs] if isinstance(found, Comparison) else [found]


def page_of(template: str, shown: list[Chart], axes: dict[str, Any], **words: Any) -> str:
    """Return a page whose charts can be drawn over each of AXES; axes: their values by run."""
    blank: dict[str, Any] = {"numbers": [], "table": None, "gains": None, "legend": [], "constants": {}}
    blank |= {"settings": None, "links": {}, "config": "", "environment": {}}
    data = {"x": axes, "axes": AXES, "printed": {**PRINTED, "height": 240}}  # three charts to a printed page
    return build(template, shown, data=data, axes=AXES, **{**blank, **words})


def words_of(run: Record) -> dict[str, Any]:
    name = _setting(run.config, "algorithm", "name") or run.config.get("name")
    clients = len(run.clients.get("sizes") or [])
    people = _setting(run.config, "data", "clients")  # runs in Python have no task
    task = run.config.get("task") or _setting(run.config, "data", "source") or (f"{people} clients" if people else None)
    started = str(run.environment.get("started") or run.environment.get("written") or "")[:16].replace("T", " ")
    facts = [run.name, f"{clients:,} clients" if clients else None, started]
    return {
        "title": f"{name} on {task}" if name and task else name or run.name,
        "subtitle": [fact for fact in facts if fact and fact != task],
        "shown": [*charts.of_run(run), *gains.charts_of(run.personal)],
        "axes": {"0": run.axes()},
        "gains": gains.table_of(run.personal),
        "numbers": _numbers(run),
        "constants": {title: f"{value:.4g}" for title, value in charts.constants(run).items()},
        "story": story.of_run(run),
        "config": run.config_text,
        "environment": run.environment,
    }


def _setting(config: dict[str, Any], part: str, key: str) -> Any:
    values = config.get(part)
    return values.get(key) if isinstance(values, dict) else None


def _numbers(run: Record) -> list[tuple[str, str, str]]:
    """Return (name, value, note) for each headline figure."""
    accuracy, rounds = [v for v in run.column("test_accuracy") if v is not None], len(run.rows)
    test, train, seconds = run.last("test_loss"), run.last("train_loss"), run.total("seconds")
    people, lost, forwards = run.last("participants"), run.total("lost"), run.total("forwards")
    found = []
    if accuracy:
        found.append(("Test accuracy", percent(accuracy[-1]), f"best {percent(max(accuracy))}"))
    if test is not None:
        found.append(("Test loss", f"{test:.4g}", f"training {train:.4g}" if train is not None else ""))
    elif train is not None:
        found.append(("Training loss", f"{train:.4g}", ""))
    for key in charts.metrics_of([run])[:METRICS]:
        known = [v for v in run.column(key) if v is not None]
        best = "" if key in charts.OF_CLIENTS else f"best {(max if larger_is_better(key) else min)(known):.4g}"
        found.append((charts.title_of(key)[0], f"{known[-1]:.4g}", best))
    found.append(("Rounds", f"{rounds:,}", f"{people:,.0f} clients in the last" if people else ""))
    found.append(("Traffic", size(run.total("bytes_up", "bytes_down")), f"{size(run.total('bytes_up'))} of it up"))
    trials = f"and {short(forwards)} forward only" if forwards else "no forward-only ones"
    found.append(("Sample gradients", short(run.total("gradients")), trials))
    found.append(("Time", duration(seconds), f"{duration(seconds / rounds)} per round"))
    if lost:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in run.refused().most_common(3))
        found.append(("Lost clients", short(lost), reasons or "no reply"))
    if back := run.total("rollbacks"):
        found.append(("Server rollbacks", short(back), "replaced by a plain mean"))
    if (epsilon := run.last("epsilon")) is not None:
        found.append(("Privacy", f"ε = {epsilon:.3g}", "spent so far"))
    return found


def _comparison(comparison: Comparison, folder: Path) -> dict[str, Any]:
    groups = comparison.groups
    records = _runs(comparison)
    axes = {str(i): run.axes() for i, run in enumerate(records)}
    for i, runs in enumerate(groups.values()):
        each = [run.axes() for run in runs if run.rows]
        axes[f"mean {i}"] = {key: means([a[key] for a in each]) for key in AXES} if each else {}  # type: ignore[misc]
    seeds = len({run.seed for run in records})
    target = f"target {100 * comparison.target:g} %" if comparison.target is not None else None
    return {
        "title": f"{len(groups)} algorithms on {comparison.task}",
        "subtitle": [f"{seeds} seeds each" if seeds > 1 else "one seed", *([target] if target else [])],
        "shown": charts.of_comparison(comparison),
        "axes": axes,
        "table": _table(comparison, folder),
        "story": story.of_comparison(comparison),
        "legend": [{"name": n, "colour": theme.colour(i), "dash": theme.dash(i)} for i, n in enumerate(groups)],
        "settings": differences({name: runs[0] for name, runs in groups.items()}),
        "environment": records[-1].environment,
    }


def _table(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """Return the head and the rows of the table: mean and deviation over the seeds."""
    everyone = [run for runs in comparison.groups.values() for run in runs if run.rows]
    loss = "test_loss" if any(run.has("test_loss") for run in everyone) else "train_loss"
    best = story.best_of(comparison)
    goal, longest = comparison.target, max(len(run.rows) for run in everyone)
    rows: list[dict[str, Any]] = []
    for name, runs in comparison.groups.items():
        done = [run for run in runs if run.rows]
        cells = {
            "Test accuracy": _spread([run.last("test_accuracy") for run in done], 100, 1, " %"),
            charts.CURVES[loss][0]: _spread([run.last(loss) for run in done], 1, None, ""),
        }
        for key in charts.metrics_of(everyone):
            cells[charts.title_of(key)[0]] = _spread([run.last(key) for run in done], 1, None, "")
        if goal is not None:
            cells[f"Rounds to {100 * goal:g} %"] = _reached([rounds_to(run, goal) for run in runs])
        cells["Traffic"] = size(mean(run.total("bytes_up", "bytes_down") for run in done)) if done else "–"
        cells["Sample gradients"] = short(mean(run.total("gradients") for run in done)) if done else "–"
        cells["Forward passes"] = short(mean(run.total("forwards") for run in done)) if done else "–"
        early = sum(len(run.rows) < longest for run in runs)
        of = f"{early} of {len(runs)} " if len(runs) > 1 else ""
        pages = {run.seed: f"{run.name}/{NAME}" for run in runs if (folder / run.name / NAME).is_file()}
        note = f"{of}stopped early" if early else ""
        rows.append({"name": name, "cells": cells, "note": note, "best": name == best, "pages": pages})
    head = [key for key in rows[0]["cells"] if any(row["cells"][key] != "–" for row in rows)]
    several = any(len(runs) > 1 for runs in comparison.groups.values())
    caption = (
        "Mean and standard deviation over the seeds, at the end of the run." if several else "At the end of the run."
    )
    return {"head": head, "rows": rows, "caption": caption}


def rounds_to(run: Record, target: float) -> float | None:
    """Return the first round whose test accuracy reaches the target."""
    pairs = zip(run.axes()["rounds"], run.column("test_accuracy"), strict=True)
    return next((t for t, accuracy in pairs if accuracy is not None and accuracy >= target), None)


def _reached(rounds: list[float | None]) -> str:
    known = [t for t in rounds if t is not None]
    if not known:
        return "never"
    return f"{mean(known):.3g}" + ("" if len(known) == len(rounds) else f" ({len(known)} of {len(rounds)} seeds)")


def _spread(values: list[float | None], scale: float, decimals: int | None, unit: str) -> str:
    """Format mean ± deviation with the given number of decimals, or with three digits of the mean."""
    known = [scale * v for v in values if v is not None]
    if not known:
        return "–"
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(abs(mean(known)) or 1)))
    return f"{mean(known):.{decimals}f}" + (f" ± {stdev(known):.{decimals}f}" if len(known) > 1 else "") + unit


def short(count: float) -> str:
    """Format a count with a prefix: 1234567 becomes 1.23 M."""
    for factor, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= factor:
            return f"{count / factor:.3g}{prefix}"
    return f"{count:.3g}"


def size(count: float) -> str:
    return short(count) + ("B" if count >= 1000 else " B")


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
