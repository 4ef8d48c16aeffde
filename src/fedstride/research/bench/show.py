"""Presentation of `fedstride bench speed`: rows of a table, Markdown, a page with charts, and a picture."""

from __future__ import annotations

import math
from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.builder import build
from fedstride.app.report.chart import Chart
from fedstride.research.bench.engines import BY_HAND, FEDSTRIDE
from fedstride.research.bench.speed import MIXED, PLAIN, TARGETS
from fedstride.research.bench.svg import document, line, text

Report = dict[str, Any]
BUSY = 0.05  # load by other programs above which figures are unreliable, because waiting threads slow down most
Rows = list[list[str]]
SPEED_UP = "speed-up over the hand-written loop"


def rivals(report: Report) -> list[str]:
    """Return the engines that are compared with the hand-written loop, in the requested order."""
    every = dict.fromkeys(n for result in report["workloads"].values() for n in result["engines"])
    return [n for n in every if n not in (BY_HAND.name, PLAIN)]


def table(report: Report) -> Rows:
    """Return the table, header first: speed-ups over the hand-written loop, and supporting figures."""
    engines = rivals(report)
    head = ["work", "by hand, s/round", *engines, "target", "of matmul peak", "memory, MiB", "difference"]
    rows = [head]
    for name, result in report["workloads"].items():
        hand, ours = result["engines"][BY_HAND.name], result["engines"].get(FEDSTRIDE.name, {})
        seconds = f"{_median(hand['seconds']):.3g}" if hand["seconds"] else "-"
        pair = [t for t in (hand, ours) if t]
        rows.append(
            [
                name,
                seconds,
                *(_cell(result["engines"].get(e)) for e in engines),
                f"{TARGETS[name]:g}" if name in TARGETS else "",
                " / ".join(_percent(t["share_of_peak"]) for t in pair),
                " / ".join(_mebibytes(t["peak_bytes"]) for t in pair),
                " / ".join(_difference(t) for t in (ours, result["engines"].get(MIXED)) if t is not None),
            ]
        )
    return rows


def growth(report: Report) -> Rows:
    rows = [["what grows", "how many", "ms a round", "times the first", "peak memory, MiB"]]
    for what, points in report["growth"].items():
        first = points[0]["seconds"]
        for p in points:
            known = p["seconds"] is not None
            times = f"{p['seconds'] / first:.3g}" if known and first else "-"
            milliseconds = f"{1e3 * p['seconds']:.1f}" if known else "failed"
            rows.append([what, f"{p['n']:,}", milliseconds, times, _mebibytes(p["peak_bytes"])])
    return rows


def claims(report: Report) -> Rows:
    rows = [["claim", "measured", "target", ""]]
    for c in report["claims"]:
        bound = f"{c['relation']} {c['bound']:.3g}"
        rows.append([c["what"], f"{c['measured']:.3g}", bound, "met" if c["kept"] else "missed"])
    return rows


def notes(report: Report) -> list[str]:
    """Return one line for every missing or unreliable figure."""
    found: dict[str, None] = {}
    for name, result in report["workloads"].items():
        if result["foreign_load"] > BUSY:
            found[
                f"{name}: other programs used up to {result['foreign_load']:.0%} of the cores; repeat on an idle machine"
            ] = None
        for engine, t in result["engines"].items():
            if t["status"] not in ("ok", "unsupported"):
                key = f"{engine}: {t['note']}" if t["status"] == "missing" else f"{name}, {engine}: {t['note']}"
                found[key] = None
    for what, points in report["growth"].items():
        found |= {f"{p['n']:,} {what}: {p['note']}": None for p in points if "note" in p}
    return list(found)


def about(report: Report) -> str:
    m = report["machine"]
    rate = max((r["matmul_flops"] for r in report["workloads"].values()), default=0) / 1e9
    measured = f", {rate:.0f} GFLOP/s in float32 matrix products" if rate else ""
    return f"{m['cpu']}, {m['cores']} cores{measured}; PyTorch {m['torch']}, {m['threads']} threads; {report['repeats']} repeats"


def markdown(report: Report) -> str:
    parts = [about(report)] + [
        as_markdown(rows) for rows in (table(report), claims(report), growth(report)) if len(rows) > 1
    ]
    return "\n\n".join([*parts, *(f"- {note}" for note in notes(report))])


def page(report: Report) -> str:
    """Return a self-contained HTML page."""
    bars = [_bars(report)] if report["workloads"] else []
    lines = [_growth(what, points) for what, points in report["growth"].items()]
    return build("speed.html", [*bars, *lines], title="Speed", about=about(report))


def _bars(report: Report) -> Chart:
    results = report["workloads"]
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": engine,
            "y": list(results),
            "base": 1,  # the hand-written loop; x is the length of a bar
            "x": [(t := r["engines"].get(engine)) and t["ratio"] and t["ratio"] - 1 for r in results.values()],
            "customdata": [(t := r["engines"].get(engine)) and t["ratio"] for r in results.values()],
            "hovertemplate": "%{customdata:.3g}",
            "marker": {"color": theme.colour(i)},
        }
        for i, engine in enumerate(rivals(report))
    ]
    x = {"type": "log", "title": {"text": SPEED_UP}, "showgrid": True}
    y = {"autorange": "reversed", "nticks": len(results), "showgrid": False}
    layout = theme.layout(120 + 60 * len(results), xaxis=x, yaxis=y, showlegend=True, hovermode="y unified")
    return Chart("speed", "Speed", "", f"Bars: {SPEED_UP}.", {"data": bars, "layout": layout}, wide=True)


def _growth(what: str, points: list[dict[str, Any]]) -> Chart:
    curves = {
        "milliseconds a round": [p["seconds"] and 1e3 * p["seconds"] for p in points],
        "peak memory, MiB": [p["peak_bytes"] and p["peak_bytes"] / 2**20 for p in points],
    }
    lines = [
        {"type": "scatter", "name": name, "x": [p["n"] for p in points], "y": v, "line": {"color": theme.colour(i)}}
        for i, (name, v) in enumerate(curves.items())
    ]
    axes = {"xaxis": {"type": "log", "title": {"text": what}, "dtick": 1}, "yaxis": {"type": "log", "dtick": 1}}
    figure = {"data": lines, "layout": theme.layout(320, showlegend=True, **axes)}
    return Chart(
        what.replace(" ", "-"), f"Growth with {what}", "", f"Lines: {' and '.join(curves)}.", figure, wide=True
    )


LEFT, WIDTH, TOP, BAR = 110, 620, 110, 15  # pixels: names, scale, what is above the bars, height of a bar


def svg(report: Report) -> str:
    """Return a bar chart on a logarithmic axis for documents; bars start at the hand-written loop."""
    engines = rivals(report)
    bars = {
        name: [(i, t["ratio"]) for i, e in enumerate(engines) if (t := r["engines"].get(e)) and t["ratio"]]
        for name, r in report["workloads"].items()
    }
    ratios = [ratio for group in bars.values() for _, ratio in group] + [1.0]
    low, high = min(0.5, *ratios) / 1.4, max(2.0, *ratios) * 1.1

    def at(ratio: float) -> float:
        return LEFT + WIDTH * math.log(ratio / low) / math.log(high / low)

    y, shapes = TOP, []
    for name, group in bars.items():
        shapes.append(text(LEFT - 14, y + BAR * len(group) / 2 + 4, name, anchor="end", kind="bold"))
        for i, ratio in group:
            start, end = sorted((at(1), at(ratio)))
            shapes.append(
                f'<rect class="s{i}" x="{start:.1f}" y="{y}" width="{max(end - start, 1.5):.1f}" height="{BAR - 3}" rx="2"/>'
            )
            outside = (end + 6, "start") if ratio >= 1 else (start - 6, "end")
            shapes.append(text(outside[0], y + BAR - 5, f"{ratio:.3g}", "muted", outside[1], "small"))
            y += BAR
        y += 14
    ticks = [v for k in range(-4, 5) for v in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if low <= v <= high]
    scale = [line(f"M{at(v):.1f} {TOP - 10}V{y}", "muted zero" if v == 1 else "rule") for v in ticks]
    scale += [text(at(v), y + 18, f"{v:g}", "muted", "middle", "small") for v in ticks]
    head = [text(0, 22, "Rounds per second, relative to a loop written by hand", kind="head")]
    head.append(text(0, 48, f"{about(report)}. Above 1 is faster.", "muted", kind="small"))
    left = 0.0
    for i, engine in enumerate(engines):
        head += [f'<rect class="s{i}" x="{left}" y="66" width="12" height="12" rx="2"/>', text(left + 18, 77, engine)]
        left += 44 + 8 * len(engine)
    return document(LEFT + WIDTH + 60, y + 30, f"Bars: {SPEED_UP}.", [*head, *scale, *shapes])


def _cell(timed: dict[str, Any] | None) -> str:
    if timed is None or timed["status"] == "unsupported":
        return "-"
    return (
        f"{timed['ratio']:.2f}" if timed["status"] == "ok" else {"wrong": "WRONG"}.get(timed["status"], timed["status"])
    )


def _difference(timed: dict[str, Any]) -> str:
    return "-" if timed.get("difference") is None else f"{timed['difference']:.0e}"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.0f}"


def as_markdown(rows: Rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
