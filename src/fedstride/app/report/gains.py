"""Does federation help each client? The chart and the table of fs.personal_report()."""

from __future__ import annotations

from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.chart import Chart, percent

SCORES = {"alone": "alone", "shared": "shared model", "personalised": "personalised"}


def charts_of(found: dict[str, Any]) -> list[Chart]:
    """Chart the three scores of each client, sorted by gain; nothing without data."""
    if not found:
        return []
    rows, metric, accuracy = _sorted(found), found["metric"], found["metric"] == "accuracy"
    traces = []
    for i, (key, name) in enumerate(SCORES.items()):
        style = {"size": 8, "color": theme.colour(i), "opacity": 0.85, "line": {"width": 0}}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [k + 1 for k in range(len(rows))],
                "y": [float(f"{row[key]:.6g}") for row in rows],
                "customdata": [str(row["client"]) for row in rows],
                "marker": style,
                "hovertemplate": f"client %{{customdata}}, {name}: %{{y:.3f}}<extra></extra>",
            }
        )
    y = {"tickformat": ".0%"} if accuracy else {"rangemode": "tozero"}
    x = {"title": {"text": "clients, those that gain most first"}, "rangemode": "tozero"}
    shape: dict[str, Any] = {"xaxis": x, "yaxis": y, "hovermode": "closest", "showlegend": True, "margin": {"t": 36}}
    about = f"{metric} of {len(rows)} clients alone, with the shared model, and personalised. {note_of(found)}"
    figure = {"data": traces, "layout": theme.layout(**shape)}
    return [Chart("gains", "Gain by federation", note_of(found), about.capitalize(), figure, wide=True)]


def table_of(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return head and rows of the table, None without data."""
    if not found:
        return None
    show = percent if found["metric"] == "accuracy" else "{:.4g}".format
    head = ["Client", *(name.capitalize() for name in SCORES.values()), "Gain"]
    rows = [[row["client"], *(show(row[key]) for key in (*SCORES, "gain"))] for row in _sorted(found)]
    return {"head": head, "rows": rows, "note": note_of(found)}


def note_of(found: dict[str, Any]) -> str:
    """Return a note with the number of clients that gain, and the means."""
    rows = found["rows"]
    show = percent if found["metric"] == "accuracy" else "{:.4g}".format
    means = {key: sum(row[key] for row in rows) / len(rows) for key in SCORES}
    told = ", ".join(f"{name} {show(means[key])}" for key, name in SCORES.items())
    gaining = sum(row["gain"] > 0 for row in rows)
    return f"{gaining} of {len(rows)} clients gain from the federation. Mean {found['metric']}: {told}."


def _sorted(found: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(found["rows"], key=lambda row: -row["gain"])
