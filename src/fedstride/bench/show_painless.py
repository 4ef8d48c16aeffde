"""What tuning costs, for readers: rows of tables, Markdown, one picture, and a page around it."""

from __future__ import annotations

import html
import math
import statistics
from typing import Any

from plotly.io import to_html

from fedstride.bench.show import Rows, as_markdown
from fedstride.report import theme

Report = dict[str, Any]
TITLE = "What tuning costs, and what it buys"
CAPTION = "One dot for each task and method, a large one for the mean over the tasks."


def methods(report: Report) -> list[str]:
    return [row["method"] for row in next(iter(report["results"].values()))]


def by_task(report: Report) -> Rows:
    """FedAvg with its best rate against `auto`."""
    head = [
        "task",
        "best rate",
        "FedAvg, last",
        "averaged",
        "auto",
        "ahead of last",
        "of averaged",
        "rounds",
        "reached in",
    ]
    rows = [[*head, "price of tuning"]]
    for task, found in _found(report).items():
        tuned, auto = found["fedavg"], found["auto"]
        total = report["tasks"][task]["rounds"]
        rows.append(
            [
                task,
                f"{float(tuned['setting'].removeprefix('fedavg(lr=').rstrip(')')):.3g}",
                *(f"{v:.1f}" for v in (tuned["last"], tuned["accuracy"], auto["accuracy"])),
                f"{auto['accuracy'] - tuned['last']:+.1f}",
                f"{auto['accuracy'] - tuned['accuracy']:+.1f}",
                str(total),
                "-" if auto["rounds_to_target"] is None else str(auto["rounds_to_target"]),
                f"{tuned['gradients'] / auto['gradients']:.1f}",
            ]
        )
    return rows


def by_method(report: Report) -> Rows:
    """Each method over all tasks: points ahead of tuned FedAvg, averaged with averaged, and what finding its setting cost.

    Gradients and forward passes are in gradients of one run of `auto`.
    """
    rows = [
        [
            "method",
            "runs a task",
            "diverged",
            "mean",
            "worst",
            "worst on",
            "test loss",
            "gradients",
            "forwards",
            "bytes",
        ]
    ]
    found = _found(report)
    for name in methods(report):
        ahead = {task: some[name]["accuracy"] - some["fedavg"]["accuracy"] for task, some in found.items()}
        worst = min(ahead, key=ahead.__getitem__)
        rows.append(
            [
                name,
                f"{statistics.fmean(some[name]['runs'] for some in found.values()):.0f}",
                str(sum(some[name]["diverged"] for some in found.values())),
                f"{statistics.fmean(ahead.values()):+.1f}",
                f"{ahead[worst]:+.1f}",
                worst,
                _mean_loss([some[name]["loss"] for some in found.values()]),
                f"{_price(found, name, 'gradients'):.1f}",
                f"{statistics.fmean(some[name]['forwards'] / some['auto']['own_gradients'] for some in found.values()):.1f}",
                f"{_price(found, name, 'bytes'):.1f}",
            ]
        )
    return rows


def scaled(report: Report) -> Rows:
    rows = [["task", "inputs as they are", "x 0.05", "x 20"]]
    return rows + [[task, *(f"{v:.1f}" for v in values.values())] for task, values in report["scaled"].items()]


def claims(report: Report) -> Rows:
    rows = [["claim", "on", "measured", "target", ""]]
    for c in report["claims"]:
        bound = f"{c['relation']} {c['bound']:g}"
        rows.append([c["what"], c["task"], f"{c['measured']:.2f}", bound, "met" if c["kept"] else "missed"])
    return rows


def about(report: Report) -> str:
    grids = ", ".join(f"{name} {count}" for name, count in report["grids"].items())
    return f"{len(report['tasks'])} tasks, {report['seeds']} seed(s); settings tried: {grids}"


def markdown(report: Report) -> str:
    tables = (claims(report), by_task(report), by_method(report), scaled(report))
    return "\n\n".join([about(report), *(as_markdown(rows) for rows in tables if len(rows) > 1)])


def figure(report: Report) -> dict[str, Any]:
    """Points ahead of tuned FedAvg over the price in gradients, all tuning included."""
    found = _found(report)
    traces: list[dict[str, Any]] = []
    for i, name in enumerate(methods(report)):
        price = [max(some[name]["gradients"] / some["auto"]["own_gradients"], LEAST) for some in found.values()]
        ahead = [some[name]["accuracy"] - some["fedavg"]["accuracy"] for some in found.values()]
        marks = {"color": theme.colour(i), "symbol": SYMBOLS[i // len(theme.SERIES)]}
        common = {"type": "scatter", "mode": "markers", "name": html.escape(name), "legendgroup": name}
        hover = "%{text}<br>%{y:+.1f} points for %{x:.1f} times the gradients"
        small = {"size": 6, "opacity": 0.45, **marks}
        traces.append(
            {
                **common,
                "x": price,
                "y": ahead,
                "text": list(found),
                "marker": small,
                "hovertemplate": hover,
                "showlegend": False,
            }
        )
        mean = {"size": 15, **marks}
        x, y = math.exp(statistics.fmean(map(math.log, price))), statistics.fmean(ahead)
        traces.append(
            {**common, "x": [x], "y": [y], "text": ["mean over the tasks"], "marker": mean, "hovertemplate": hover}
        )
    low = min(0.0, *(max(-12.0, v) for trace in traces for v in trace["y"]))
    x_axis = {"type": "log", "title": {"text": "gradients, all tuning runs included, in runs of auto"}, "dtick": "D2"}
    y_axis = {
        "title": {"text": "points ahead of tuned FedAvg"},
        "zeroline": True,
        "range": [low - 1, max(v for t in traces for v in t["y"]) + 1],
    }
    return {
        "data": traces,
        "layout": theme.layout(520, xaxis=x_axis, yaxis=y_axis, showlegend=True, hovermode="closest"),
    }


LEAST = 0.01  # of a run, for the logarithm: a run may diverge before it cost anything
SYMBOLS = ["circle", "diamond", "square"]  # when the colours are used up


def page(report: Report) -> str:
    """One file that needs nothing else."""
    chart = to_html(figure(report), full_html=False, include_plotlyjs=True, config={"displayModeBar": False})
    style = "font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem"
    tables = "".join(_html(rows) for rows in (claims(report), by_task(report), by_method(report), scaled(report)))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>fedstride: {TITLE}</title>'
        f"<style>td, th {{ padding: 2px 10px; text-align: right }} td:first-child, th:first-child {{ text-align: left }}</style>"
        f'<body style="{style}"><h1>{TITLE}</h1><p>{html.escape(about(report))}. {CAPTION}</p>{chart}{tables}</body></html>\n'
    )


def svg(report: Report) -> str:
    """The same picture for documents: the means with their names, the tasks as small dots."""
    left, top, width, height = 60, 20, 640, 340
    traces = figure(report)["data"]
    low, high = figure(report)["layout"]["yaxis"]["range"]
    most = max(v for t in traces for v in t["x"])
    muted, ink, rule, paper = (theme.PAGE[name][0] for name in ("muted", "ink", "rule", "paper"))

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(max(x, 0.8) / 0.8) / math.log(most * 1.3 / 0.8)
        return left + width * across, top + height * (high - max(y, low)) / (high - low)

    shapes = []
    for y in range(math.ceil(low), math.floor(high) + 1):
        if y % 2 == 0:
            _, line = at(1, y)
            shapes.append(
                f'<line x1="{left}" x2="{left + width}" y1="{line:.1f}" y2="{line:.1f}" stroke="{muted if y == 0 else rule}"/>'
            )
            shapes.append(f'<text x="{left - 6}" y="{line + 4:.1f}" text-anchor="end" fill="{muted}">{y:+d}</text>')
    for x in (1, 2, 5, 10, 20, 50):
        if x <= most * 1.3:
            shapes.append(
                f'<text x="{at(x, low)[0]:.1f}" y="{top + height + 16}" text-anchor="middle" fill="{muted}">{x}</text>'
            )
    for t in traces:
        size = t["marker"]["size"]
        for x, y in zip(t["x"], t["y"], strict=True):
            across, down = at(x, y)
            opacity = t["marker"].get("opacity", 1)
            shapes.append(
                f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{size / 2.5:.1f}" fill="{t["marker"]["color"]}" opacity="{opacity}"/>'
            )
            if size > 10:
                shapes.append(f'<text x="{across + 9:.1f}" y="{down + 4:.1f}" fill="{ink}">{t["name"]}</text>')
    down = top + height + 36
    words = f'<text x="{left}" y="{down}" fill="{muted}">Across: gradients, all tuning included, in runs of auto. Up: points ahead of tuned FedAvg.</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 110} {down + 14}" font-family="sans-serif" font-size="12">'
    return f'{head}<rect width="100%" height="100%" fill="{paper}"/>{"".join(shapes)}{words}</svg>\n'


def _found(report: Report) -> dict[str, dict[str, Any]]:
    return {task: {row["method"]: row for row in rows} for task, rows in report["results"].items()}


def _mean_loss(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{statistics.fmean(known):.3f}" if len(known) == len(values) else "diverged"


def _price(found: dict[str, dict[str, Any]], name: str, what: str) -> float:
    """All runs of a method against one of `auto`, mean over the tasks."""
    return statistics.fmean(some[name][what] / some["auto"][what] * some["auto"]["runs"] for some in found.values())


def _html(rows: Rows) -> str:
    lines = [
        "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    ]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table><br>"
