"""Write the diagnosis as one HTML page in the style of the report; suspicious ranges are shaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.read import of_folder
from fedstride.app.diagnose.verdict import Diagnosis, diagnosis
from fedstride.app.report import charts, theme
from fedstride.app.report.chart import Chart
from fedstride.app.report.charts import line
from fedstride.app.report.read import Series
from fedstride.app.report.write import NAME as REPORT
from fedstride.app.report.write import page_of, words_of
from fedstride.core.capabilities import setting
from fedstride.core.files import replace_file
from fedstride.training.history import is_private

NAME = "diagnosis.html"
SHADE = "rgba(213,94,0,0.10)"  # vermilion; works on light and dark pages


def write(folder: str | Path, found: Diagnosis | None = None) -> Path:
    """Write diagnosis.html to the folder of a run, and return its path."""
    folder = Path(folder)
    e = of_folder(folder)
    found = found or diagnosis(e)
    words = words_of(e.record)
    words["title"] = f"Diagnosis: {words['title']}"
    others = [f for f in found.findings if f is not found.outcome]
    more = {
        "shown": pictures(e),
        "outcome": found.outcome,
        "findings": others,
        "story": "",
        "links": {"Report": REPORT},
    }
    replace_file(folder / NAME, page_of("diagnosis.html", **{**words, **more}), is_private(e.record.rows))
    return folder / NAME


def pictures(e: Evidence) -> list[Chart]:
    """Return the report's charts that findings are based on, with shaded ranges, and two more."""
    drawn = {chart.key: chart for chart in charts.of_run(e.record)}
    shown = [
        _shaded(drawn.get("loss"), _loss(e), "Shaded: above the first loss."),
        _updates(e),
        _turn(e),
        _shaded(drawn.get("client_steps"), _cap(e), "Dotted: the cap."),
        _shaded(drawn.get("server_step"), _server(e), "Shaded: suspiciously long; dotted: the cap."),
        drawn.get("left_behind"),
        drawn.get("partition"),
    ]
    return _paired([chart for chart in shown if chart is not None])


def _updates(e: Evidence) -> Chart | None:
    if not e.known("update") or not e.known("drift"):
        return None
    update, drift = e.record.column("update"), e.record.column("drift")
    note = "Drift: distance of the clients from their mean. Update: length of the mean update."
    about = f"{note} At the end {_last(drift)} and {_last(update)}."
    return _curves("updates", "Drift and update", note, {"drift": drift, "update": update}, about, log=True)


def _turn(e: Evidence) -> Chart | None:
    values = e.record.column("turn")
    if not e.known("turn"):
        return None
    note = (
        "Cosine between successive moves of the model. Shaded above: longer steps would be faster; "
        "below: moves undo each other."
    )
    shapes = [_band(limits.STRAIGHT, 1.0), _band(-1.0, limits.SWINGS), _rule(0.0)]
    chart = _curves("turn", "Turn", note, {"turn": values}, f"{note} At the end {_last(values)}.", log=False)
    return _shaded(chart, shapes, "", {"range": [-1.05, 1.05]})


def _loss(e: Evidence) -> list[dict[str, Any]]:
    return [_band(e.start, e.start * e.peak)] if e.peak > 1 else []


def _cap(e: Evidence) -> list[dict[str, Any]]:
    cap = setting(e.step, "capped_by")
    return [_rule(cap)] if cap is not None else []


def _server(e: Evidence) -> list[dict[str, Any]]:
    top, most = setting(e.server, "capped_by"), max(e.known("server_step"), default=0.0)
    cap = [_rule(top)] if top is not None else []
    return cap + ([_band(limits.EXPLODES, most)] if most > limits.EXPLODES else [])


def _curves(key: str, title: str, note: str, series: dict[str, Series], about: str, log: bool) -> Chart:
    traces = [line(values, name, i) for i, (name, values) in enumerate(series.items())]
    positive = log and all(v is None or v > 0 for values in series.values() for v in values)
    y = {"type": "log", "tickformat": "~g", "nticks": 5} if positive else {}
    several = len(traces) > 1
    layout = theme.layout(yaxis=y, showlegend=several, margin={"t": 36 if several else 8})
    return Chart(key, title, note, about, {"data": traces, "layout": layout})


def _shaded(
    chart: Chart | None, shapes: list[dict[str, Any]], note: str, y: dict[str, Any] | None = None
) -> Chart | None:
    if chart is None:
        return None
    layout = theme.merged(chart.figure["layout"], {"shapes": shapes, "yaxis": y or {}})
    words = f"{chart.note} {note}" if shapes and note else chart.note
    return replace(chart, note=words, figure={**chart.figure, "layout": layout}, wide=False)


def _band(low: float, high: float) -> dict[str, Any]:
    across = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below", "line": {"width": 0}}
    return {**across, "y0": low, "y1": high, "fillcolor": SHADE}


def _rule(y: float) -> dict[str, Any]:
    style = {"color": theme.PAGE["muted"][0], "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": style, "layer": "below"}


def _paired(shown: list[Chart]) -> list[Chart]:
    """Place narrow charts in pairs; a single remaining one takes the whole width."""
    narrow = [chart for chart in shown if chart.key not in ("left_behind", "partition")]
    first = narrow[0] if len(narrow) % 2 else None
    return [replace(chart, wide=chart is first or chart not in narrow) for chart in shown]


def _last(values: Series) -> str:
    known = [v for v in values if v is not None]
    return f"{known[-1]:.3g}" if known else "unknown"
