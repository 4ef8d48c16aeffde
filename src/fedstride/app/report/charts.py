"""Charts of the report, as plotly figures in plain dictionaries; None for a chart without information.

A trace with a `meta` is a curve over the rounds. The page fills in its x values for the axis that the reader selects.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.read import Comparison, Record, Series, refused_in

Trace = dict[str, Any]
CURVES = {  # column: (title, description)
    "test_accuracy": ("Test accuracy", "Share of correct predictions on the test set."),
    "train_loss": ("Training loss", "Mean of the clients' losses at the start of a round."),
    "test_loss": ("Test loss", "Loss of the returned model on the test set."),
    "client_step": ("Client step size", "Mean over the cohort."),
    "server_step": ("Server step", "Step size along the mean update."),
    "trials": ("Line-search trials", "Per local step."),
    "drift": ("Drift", "Distance of the clients' updates from their mean."),
    "epsilon": ("Privacy spent", "Epsilon so far."),
}
ALONE = ("test_accuracy", "server_step", "trials", "drift", "epsilon")


@dataclass(frozen=True)
class Chart:
    """A figure with its texts; `about` is the alternative text for screen readers."""

    key: str
    title: str
    note: str
    about: str
    figure: dict[str, Any]
    wide: bool = False


def plain(text: object) -> str:
    """Escape text for plotly, whose labels interpret some HTML tags."""
    return html.escape(str(text))


def of_run(run: Record) -> list[Chart]:
    failed = run.total("failed")
    extra = {"trials": f" {failed:,.0f} searches found no step." if failed else ""}
    single = {key: _single(run, key, extra.get(key, "")) for key in ALONE}
    found = [single["test_accuracy"], _loss(run), _client_steps(run), single["server_step"], single["trials"]]
    more = (single["drift"], single["epsilon"], _left_out(run), left_behind(run.clients), partition(run.clients))
    return _paired([c for c in (*found, *more) if c])


def of_comparison(comparison: Comparison) -> list[Chart]:
    return _paired([c for key in CURVES if (c := _compared(comparison, key))])


def constants(run: Record) -> dict[str, float]:
    """Return the columns that are constant over the rounds and need no chart."""
    return {CURVES[key][0].lower(): run.column(key)[0] or 0 for key in CURVES if _constant(run.column(key))}


def _single(run: Record, key: str, extra: str = "") -> Chart | None:
    values = run.column(key)
    if not _tells(values):
        return None
    title, note = CURVES[key]
    return _curves(key, title, note + extra, [line(values, title)], values, f"{title} {_course(values)}.")


def _loss(run: Record) -> Chart | None:
    known = {"train_loss": "training", "test_loss": "test"}
    shown = {name: run.column(key) for key, name in known.items() if _tells(run.column(key))}
    if not shown:
        return None
    traces = [line(values, name, i) for i, (name, values) in enumerate(shown.items())]
    about = "; ".join(f"{name} loss {_course(values)}" for name, values in shown.items())
    values = [v for series in shown.values() for v in series]
    note = "Training: mean of the clients' losses at the start of a round."
    return _curves("loss", "Loss", note, traces, values, f"{about}.".capitalize(), showlegend=len(traces) > 1)


def _client_steps(run: Record) -> Chart | None:
    rows = [row.get("client_steps") for row in run.rows]
    if not all(isinstance(row, list) and len(row) == 5 and None not in row for row in rows):
        return _single(run, "client_step")
    low, q25, median, q75, high = (list(series) for series in zip(*rows, strict=True))
    if not _tells(low + high):
        return None
    names = ("all clients", "middle half")
    bands = [_band(low, high, names[0], 0), _band(q25, q75, names[1], 1)]
    traces = [*(trace for band in bands for trace in band), line(median, "median")]
    about = f"Client step sizes: the median {_course(median)}; all lie between {min(low):.3g} and {max(high):.3g}."
    note = "Spread over the clients of each round's cohort."
    return _curves("client_steps", "Client step size", note, traces, low + high, about, showlegend=True)


def _left_out(run: Record) -> Chart | None:
    """Chart the number of rejected answers per round, by reason."""
    reasons = run.refused()
    if not reasons:
        return None
    by_round = [refused_in(row) for row in run.rows]
    rounds: dict[str, Series] = {reason: [float(r[reason]) for r in by_round] for reason in reasons}
    traces = [line(values, reason, i) for i, (reason, values) in enumerate(rounds.items())]
    about = "Rejected answers: " + ", ".join(f"{reason} {count:,}" for reason, count in reasons.items()) + "."
    every = [v for values in rounds.values() for v in values]
    return _curves("refused", "Rejected answers", "By reason, in each round.", traces, every, about, showlegend=True)


def _compared(comparison: Comparison, key: str) -> Chart | None:
    traces: list[Trace] = []
    ends, every, number = [], [], 0
    for i, (name, runs) in enumerate(comparison.groups.items()):
        series = [run.column(key) for run in runs if run.has(key)]
        at = {"legendgroup": str(i), "showlegend": False}
        for run in runs:
            if run.has(key) and len(series) > 1:
                traces.append(line(run.column(key), name, i, number, width=1, opacity=0.35, hoverinfo="skip", **at))
            number += 1
        if series:
            mean = means(series)
            every += [v for values in series for v in values]
            traces.append(line(mean, name, i, f"mean {i}", width=2.5, legendgroup=at["legendgroup"]))
            ends.append(f"{name} {_course(mean)}")
    if not _tells(every):
        return None
    title, note = CURVES[key]
    lines = [_target(comparison.target)] if key == "test_accuracy" and comparison.target is not None else []
    about = f"{title}, mean over the seeds: {'; '.join(ends)}."
    return _curves(key, title, note, traces, every, about, shapes=lines)


def left_behind(clients: dict[str, Any]) -> Chart | None:
    """Chart the accuracy (or loss) of the returned model on each client, worst first."""
    key = "accuracy" if clients.get("accuracy") else "loss"
    values, sizes = clients.get(key) or [], clients.get("sizes") or []
    known = [c for c, value in enumerate(values) if value is not None]
    if not known:
        return None
    order = sorted(known, key=lambda c: values[c], reverse=key == "loss")
    tail = max(1, len(order) // 10)
    widest = max(sizes)
    traces = []
    for part, start, tint, name in ((order[:tail], 0, 1, "worst tenth"), (order[tail:], tail, 0, "the others")):
        marker = {
            "size": [5 + 9 * math.sqrt(sizes[c] / widest) for c in part],
            "color": theme.colour(tint),
            "opacity": 0.75,
        }
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [start + k + 1 for k in range(len(part))],
                "y": [values[c] for c in part],
                "customdata": [[c, sizes[c]] for c in part],
                "marker": {**marker, "line": {"width": 0}},
                "hovertemplate": f"client %{{customdata[0]}}, %{{customdata[1]}} samples: {key} %{{y:.3f}}<extra></extra>",
            }
        )
    show = percent if key == "accuracy" else "{:.3g}".format
    worst, middle = values[order[0]], values[order[len(order) // 2]]
    note = f"Each client's own data, worst first; area: samples. Worst {show(worst)}, median {show(middle)}."
    about = f"{key} of {len(order)} clients, sorted. Worst {show(worst)}, median {show(middle)}, best {show(values[order[-1]])}."
    y = {"tickformat": ".0%", "range": [min(worst, 0.5) - 0.04, 1.04]} if key == "accuracy" else {"rangemode": "tozero"}
    x = {"title": {"text": "clients, sorted"}, "rangemode": "tozero"}
    figure = {"data": traces, "layout": theme.layout(xaxis=x, yaxis=y, hovermode="closest")}
    return Chart("left_behind", f"Client {key}", note, about.capitalize(), figure, wide=True)


def partition(clients: dict[str, Any]) -> Chart | None:
    """Chart the samples by client and class (Delta-SGD fig. 8), with the clients' sizes on top if they differ."""
    labels, sizes = clients.get("labels"), clients.get("sizes")
    if not labels or not sizes:
        return None
    names = [plain(_clipped(name)) for name in clients["classes"]]
    every = math.ceil(len(names) / 20)
    numbers = list(range(len(labels)))
    counts = [[row[k] or None for row in labels] for k in range(len(names))]  # empty cells are transparent
    cells = {
        "type": "heatmap",
        "x": numbers,
        "y": list(range(len(names))),
        "z": counts,
        "zmin": 0,
        "colorscale": [[i / (len(theme.SCALE) - 1), light] for i, (light, _) in enumerate(theme.SCALE)],
        "colorbar": {
            "thickness": 8,
            "outlinewidth": 0,
            "len": 0.8,
            "y": 0,
            "yanchor": "bottom",
            "nticks": 4,
            "ticks": "",
        },
        "xgap": 1 if len(numbers) <= 60 else 0,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "client %{x}, class %{y}: %{z} samples<extra></extra>",
    }
    even = min(sizes) == max(sizes)
    hover = "client %{x}: %{y} samples<extra></extra>"
    bars = {
        "type": "bar",
        "x": numbers,
        "y": sizes,
        "yaxis": "y2",
        "hovertemplate": hover,
        "marker": {"color": theme.colour(0)},
    }
    ticks = {"tickmode": "array", "tickvals": list(range(0, len(names), every)), "ticktext": names[::every]}
    y: dict[str, Any] = {**ticks, "showgrid": False, "title": {"text": "class"}}
    shape: dict[str, Any] = {
        "xaxis": {"title": {"text": "client"}},
        "hovermode": "closest",
        "bargap": 0.15,
    }
    if not even:
        base = theme.layout()["yaxis"]
        shape["yaxis2"] = {**base, "domain": [0.84, 1], "nticks": 3, "rangemode": "tozero"}
        y["domain"] = [0, 0.8]
    height = min(640, 120 + 20 * max(6, len(names)))
    figure = {"data": [cells] if even else [cells, bars], "layout": theme.layout(height, yaxis=y, **shape)}
    spread = f"{sizes[0]:,} samples each" if even else f"between {min(sizes):,} and {max(sizes):,} samples"
    held = sum(sum(1 for n in row if n) for row in labels) / len(labels)
    note = f"{len(sizes):,} clients with {spread}, and {held:.3g} of {len(names)} classes on average."
    return Chart("partition", "Data partition", note, f"Samples by client and class. {note}", figure, wide=True)


def line(y: Series, name: str, i: int = 0, at: int | str = 0, width: float = 2, **more: Any) -> Trace:
    style = {"color": theme.colour(i), "width": width, "dash": theme.dash(i)}
    mode = "lines" if len(y) > 2 else "lines+markers"
    return {"type": "scatter", "mode": mode, "name": plain(name), "y": six(y), "meta": str(at), "line": style, **more}


def means(series: Sequence[Series]) -> Series:
    """Return the mean over the series in each round, up to the shortest series."""
    return [None if None in values else sum(values) / len(values) for values in zip(*series)]  # noqa: B905 (up to the shortest)


def six(values: Series) -> Series:
    """Round to six digits: more than a chart can show, at half the file size."""
    return [v if v is None else float(f"{v:.6g}") for v in values]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _band(low: Series, high: Series, name: str, tint: int) -> list[Trace]:
    edge = {"showlegend": False, "hoverinfo": "skip", "mode": "lines"}
    return [
        {**line(low, name, width=0), **edge},
        {**line(high, name, width=0), **edge, "fill": "tonexty", "fillcolor": theme.BANDS[tint][0], "showlegend": True},
    ]


def _curves(key: str, title: str, note: str, traces: list[Trace], values: Series, about: str, **more: Any) -> Chart:
    known = [v for v in values if v is not None]
    wide = key == "test_accuracy"
    y: dict[str, Any] = {"tickformat": ".0%"} if wide else {}
    if not wide and min(known) > 0 and max(known) > 20 * min(known):
        y = {"type": "log", "dtick": 1 if max(known) > 100 * min(known) else "D2", "tickformat": "~g"}
    if more.get("showlegend"):
        more["margin"] = {"t": 36}
    return Chart(
        key, title, note, about, {"data": traces, "layout": theme.layout(340 if wide else 280, yaxis=y, **more)}, wide
    )


def _clipped(name: str, length: int = 16) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _target(value: float) -> dict[str, Any]:
    style = {"color": theme.PAGE["muted"][0], "width": 1, "dash": "dot"}
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": style,
        "layer": "below",
    }


def _paired(shown: list[Chart]) -> list[Chart]:
    """Place narrow charts in pairs; a single remaining one takes the whole width."""
    narrow = [c for c in shown if not c.wide]
    single = narrow[-1] if len(narrow) % 2 else None
    return [replace(c, wide=True) if c is single else c for c in shown]


def _constant(values: Series) -> bool:
    return len(values) > 1 and None not in values and len(set(values)) == 1


def _tells(values: Series) -> bool:
    return any(v is not None for v in values) and not _constant(values)


def _course(values: Series) -> str:
    known = [v for v in values if v is not None]
    return f"goes from {known[0]:.3g} to {known[-1]:.3g}" if known else "has no values"
