"""Charts of the clients: the scores of the returned model on their data, and the partition of the data."""

from __future__ import annotations

import math
from statistics import NormalDist, median
from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.chart import Chart, clipped, percent

NAMED = 20  # largest number of clients whose names are written along the axis
CHANCE = 0.01  # of naming a client that is only unlucky
GAP, TIMES = 0.1, 3.0  # below the median accuracy, or times the median loss: less is not worth naming


def behind(clients: dict[str, Any]) -> list[int]:
    """Return the clients that the model serves worse than the median by more than chance explains, worst first."""
    key = "accuracy" if clients.get("accuracy") else "loss"
    values = clients.get(key) or []
    order = sorted((c for c, v in enumerate(values) if v is not None), key=lambda c: values[c], reverse=key == "loss")
    if len(order) < 3:
        return []
    middle = median(values[c] for c in order)
    if key == "loss":
        return [c for c in order if values[c] > TIMES * middle]
    surprise = NormalDist().inv_cdf(1 - CHANCE / len(order))  # one of many is often unlucky

    def unlucky(c: int) -> float:
        samples = max(1, clients["sizes"][c])
        return surprise * math.sqrt((middle * (1 - middle) + 0.25 / samples) / samples)

    return [c for c in order if middle - values[c] > max(GAP, unlucky(c))]


def left_behind(clients: dict[str, Any]) -> Chart | None:
    """Chart the accuracy (or loss) of the returned model on each client, worst first."""
    key = "accuracy" if clients.get("accuracy") else "loss"
    values, sizes = clients.get(key) or [], clients.get("sizes") or []
    known = [c for c, value in enumerate(values) if value is not None]
    if not known:
        return None
    order = sorted(known, key=lambda c: values[c], reverse=key == "loss")
    late = behind(clients)
    widest, names = max(sizes), names_of(clients)
    traces = []
    for who, tint, name in ((late, 1, "left behind"), ([c for c in order if c not in late], 0, "the others")):
        part = [c for c in order if c in who]
        if not part:
            continue
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
                "x": [order.index(c) + 1 for c in part],
                "y": [values[c] for c in part],
                "customdata": [[names[c], sizes[c]] for c in part],
                "marker": {**marker, "line": {"width": 0}},
                "hovertemplate": f"client %{{customdata[0]}}, %{{customdata[1]}} samples: {key} %{{y:.3f}}<extra></extra>",
            }
        )
    show = percent if key == "accuracy" else "{:.3g}".format
    worst, middle = values[order[0]], median(values[c] for c in order)
    named = f" ({names[order[0]]})" if clients.get("names") else ""
    last = "No client is behind by more than chance explains."
    if late:
        last = f"Left behind by more than chance explains: {len(late)} of {len(order)}."
    note = (
        f"Each client's own data, worst first; area: samples. Worst {show(worst)}{named}, median {show(middle)}. {last}"
    )
    about = f"{key} of {len(order)} clients, sorted. Worst {show(worst)}{named}, median {show(middle)}, best {show(values[order[-1]])}."
    y = {"tickformat": ".0%", "range": [min(worst, 0.5) - 0.04, 1.04]} if key == "accuracy" else {"rangemode": "tozero"}
    ranked = _axis([names[c] for c in order], 1, "clients, sorted", bool(clients.get("names")))
    x = {**ranked, "rangemode": "tozero"}
    figure = {"data": traces, "layout": theme.layout(xaxis=x, yaxis=y, hovermode="closest", showlegend=bool(late))}
    return Chart("left_behind", f"Client {key}", note, about.capitalize(), figure, wide=True)


def partition(clients: dict[str, Any]) -> Chart | None:
    """Chart the samples by client and class (Delta-SGD fig. 8), with the clients' sizes on top if they differ."""
    labels, sizes = clients.get("labels"), clients.get("sizes")
    if not labels or not sizes:
        return None
    names = [clipped(name) for name in clients["classes"]]
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
        "xaxis": _axis(names_of(clients), 0, "client", bool(clients.get("names"))),
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


def names_of(clients: dict[str, Any]) -> list[str]:
    """Return the names of the clients, or their numbers."""
    return [str(name) for name in clients.get("names") or range(len(clients.get("sizes") or []))]


def _axis(names: list[str], start: int, title: str, known: bool) -> dict[str, Any]:
    """Return an axis with one place per client; hovering over a place shows the name even if the axis does not."""
    if not known:
        return {"title": {"text": title}}
    ticks = {"tickmode": "array", "tickvals": list(range(start, start + len(names)))}
    shown = len(names) <= NAMED
    return {**ticks, "ticktext": [clipped(n) for n in names], "showticklabels": shown, "title": {"text": title}}
