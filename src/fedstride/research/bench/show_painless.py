"""Presentation of `fedstride bench painless`: rows of tables, Markdown, a picture, and an HTML page."""

from __future__ import annotations

import math
import statistics
from typing import Any

from fedstride.app.report.builder import build
from fedstride.research.bench.show import Rows, as_markdown
from fedstride.research.bench.svg import document, line, text
from fedstride.research.bench.tasks import GROUPS
from fedstride.research.bench.verdicts import BEST, THREE, Difference

Report = dict[str, Any]
TITLE = "What tuning costs, and what it buys"
HEAD = "auto without tuning, against tuned FedAvg"
NAMES = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedexp": "FedExP", BEST: "the best of the three"}
TUNING = "Tuned methods have one setting per task for all seeds, picked by test score, which favours them."
FIT = (
    "A fit is the way from the test loss of the best constant prediction to the lowest one of any run with this seed, in "
    "per cent."
)


def rivals(report: Report) -> list[str]:
    """Return those of the three baselines that were run, and the best of them."""
    return list(next(iter(report["ahead"].values())))


def by_task(report: Report) -> Rows:
    """Return the scores of the three tuned methods and of `auto`, and its lead with 95 % intervals over the seeds."""
    three = [name for name in THREE if name in rivals(report)]
    scores = [f"{NAMES[name]}, tuned" for name in three]
    ahead = [f"ahead of {NAMES[name]}" for name in rivals(report)]
    rows = [["task", "score", "best rate", *scores, "auto", *ahead, "price of tuning"]]
    for task in ordered(report):
        found, about = _by_method(report, task), report["tasks"][task]
        rows.append(
            [
                task,
                about["score"],
                f"{_rate(found['fedavg']['setting']):.3g}",
                *(f"{found[name]['score']:.1f}" for name in (*three, "auto")),
                *(_interval(report["ahead"][task][name]) for name in rivals(report)),
                f"{_price(found):.1f}",
            ]
        )
    return rows


def by_group(report: Report) -> Rows:
    """Compare `auto` with each rival over the tasks of a group; brackets count intervals that do not contain 0."""
    rows = [["group", "tasks", "ahead of tuned", "mean", "median", "worst", "worst on", "won", "lost"]]
    for group, some in report["groups"].items():
        for rival, s in some.items():
            rows.append([group, str(s["tasks"]), NAMES[rival], *_summed(s)])
    return rows


def by_method(report: Report) -> Rows:
    """Return, for each method over all tasks, its lead over tuned FedAvg and its tuning cost in runs of `auto`."""
    head = ["method", "settings", "at an edge", "diverged", "mean", "median", "worst", "worst on"]
    rows = [[*head, "gradients", "forwards", "bytes", "seconds"]]
    found = {task: _by_method(report, task) for task in report["tasks"]}
    for name, settings in report["settings"].items():
        ahead = {task: some[name]["score"] - some["fedavg"]["score"] for task, some in found.items()}
        worst = min(ahead, key=ahead.__getitem__)
        costs = [
            statistics.fmean(some[name][what] / max(some["auto"][of], 1e-9) for some in found.values())
            for what, of in (
                ("gradients", "gradients"),
                ("forwards", "gradients"),
                ("bytes", "bytes"),
                ("seconds", "seconds"),
            )
        ]
        rows.append(
            [
                name,
                str(settings),
                str(sum(some[name]["edge"] for some in found.values())),
                f"{sum(some[name]['diverged'] for some in found.values())} of {sum(some[name]['runs'] for some in found.values())}",
                *(f"{v:+.1f}" for v in (statistics.fmean(ahead.values()), statistics.median(ahead.values()))),
                f"{ahead[worst]:+.1f}",
                worst,
                *(f"{cost:.1f}" for cost in costs),
            ]
        )
    return rows


def scaled(report: Report) -> Rows:
    """Return the points that `auto` loses when inputs or losses are scaled."""
    if not report["scaled"]:
        return [["task"]]
    rows = [["points lost", *next(iter(report["scaled"].values()))]]
    return rows + [[task, *(_interval(d) for d in costs.values())] for task, costs in report["scaled"].items()]


def claims(report: Report) -> Rows:
    rows = [["claim", "group", "on", "measured", "target", ""]]
    for c in report["claims"]:
        bound, verdict = f"{c['relation']} {c['bound']:g}", "met" if c["kept"] else "missed"
        rows.append([c["what"], c["group"], c["task"], f"{c['measured']:.2f}", bound, verdict])
    return rows


def tables(report: Report) -> list[Rows]:
    every = (claims(report), by_group(report), by_task(report), by_method(report), scaled(report))
    return [rows for rows in every if len(rows) > 1]


def about(report: Report) -> str:
    settings = ", ".join(f"{name} {count}" for name, count in report["settings"].items() if count > 1)
    return f"{len(report['tasks'])} tasks, {report['seeds']} seed(s), averaged read-out; settings tried: {settings}. {TUNING}"


def markdown(report: Report) -> str:
    return "\n\n".join([f"{about(report)} {FIT}", *map(as_markdown, tables(report))])


def variants(report: Report) -> Rows:
    """Return the lead of each variant over `auto` in an ablation, over the tasks."""
    rows = [["variant of auto", "mean", "median", "worst", "worst on", "won", "lost"]]
    return rows + [[name, *_summed(s)] for name, s in report["variants"].items()]


def variants_by_task(report: Report) -> Rows:
    """Return the score of `auto` and the lead of each variant with 95 % intervals, by task of an ablation."""
    rows = [["task", "auto", *report["variants"]]]
    for task, scores in report["scores"].items():
        ahead = [_interval(report["ahead"][name][task]) for name in report["variants"]]
        rows.append([task, f"{scores['auto']:.1f}", *ahead])
    return rows


def ordered(report: Report) -> list[str]:
    """Return the tasks by group, and within a group by decreasing lead over tuned FedAvg."""
    groups = list(GROUPS)
    return sorted(
        report["tasks"],
        key=lambda t: (groups.index(report["tasks"][t]["group"]), -report["ahead"][t]["fedavg"]["mean"]),
    )


# The picture

LEFT, WIDTH, RIGHT, ROW = 320, 420, 100, 24  # pixels: names, scale, cost; height of a row
TOP = 142  # pixels above the first group
LIMITS = (-20.0, 30.0)  # points; values outside are drawn as an arrow with a number


def svg(report: Report) -> str:
    """Draw one row per task: the lead of `auto` over tuned FedAvg with its interval, and over the best of the three."""
    low, high = _range(report)

    def at(points: float) -> float:
        return LEFT + WIDTH * (min(max(points, low), high) - low) / (high - low)

    y, rows, group, several = TOP, [], "", len(report["groups"]) > 1
    for task in ordered(report):
        ahead, row = report["ahead"][task], report["tasks"][task]
        if row["group"] != group:
            group = row["group"]
            y += 18 if several else 0
            rows += [text(0, y + 4, GROUPS[group].capitalize(), kind="bold")] if several else []
            y += 24 if several else 0
        rows.append(text(LEFT - 16, y + 4, row["what"], anchor="end"))
        rows += _mark(ahead["fedavg"], y, at, (low, high), "s0")
        if BEST in ahead:
            rows += _mark(ahead[BEST], y, at, (low, high), "s1")
        cost = f"{_price(_by_method(report, task)):.1f}"
        rows.append(text(LEFT + WIDTH + RIGHT - 10, y + 4, cost, "muted", "end"))
        y += ROW
    bottom = y - ROW / 2 + 4
    shapes = [*_head(report), *_scale(low, high, at, bottom), *rows]
    return document(LEFT + WIDTH + RIGHT, bottom + 52, f"{HEAD}. {_lead(report)}", shapes)


def _head(report: Report) -> list[str]:
    """Return the title, the sentence below it, and the legend."""
    found = [text(0, 22, HEAD, kind="head"), text(0, 48, _lead(report), "muted")]
    found += ['<circle class="s0" cx="6" cy="74" r="5"/>', text(18, 78, "against tuned FedAvg, with its 95 % interval")]
    if BEST in rivals(report):
        found.append('<circle class="s1 line ring" cx="366" cy="74" r="4.5"/>')
        found.append(text(378, 78, "against the best of tuned FedAvg, FedAvgM and FedExP"))
    cost = LEFT + WIDTH + RIGHT - 10
    return [
        *found,
        text(cost, 104, "runs of auto", "muted", "end", "small"),
        text(cost, 119, "to tune FedAvg", "muted", "end", "small"),
    ]


def _lead(report: Report) -> str:
    ahead = [report["ahead"][task]["fedavg"]["mean"] for task in report["tasks"]]
    won = sum(points > 0 for points in ahead)
    return f"auto is ahead on {won} of {len(ahead)} tasks, by {statistics.fmean(ahead):.1f} points on average; it has nothing to tune."


def _scale(low: float, high: float, at: Any, bottom: float) -> list[str]:
    every = 1 if high - low <= 8 else 2 if high - low <= 16 else 5
    ticks = [v for v in range(math.ceil(low), math.floor(high) + 1) if v % every == 0]
    found = [
        text(at(0) - 10, 119, "tuned is better", "muted", "end", "small"),
        text(at(0) + 10, 119, "auto is better", "muted", kind="small"),
    ]
    for v in ticks:
        found.append(line(f"M{at(v):.1f} {TOP - 14}V{bottom:.1f}", "muted zero" if v == 0 else "rule"))
        found.append(text(at(v), bottom + 20, f"{v:+d}".replace("-", "−") if v else "0", "muted", "middle", "small"))
    return [*found, text(LEFT + WIDTH / 2, bottom + 42, "points of test score ahead", "muted", "middle", "small")]


def _range(report: Report) -> tuple[float, float]:
    """Return the range of the scale: all means and intervals, within the limits."""
    shown = [d for ahead in report["ahead"].values() for name, d in ahead.items() if name in ("fedavg", BEST)]
    low = min(d["mean"] - (d["half"] or 0) for d in shown)
    high = max(d["mean"] + (d["half"] or 0) for d in shown)
    return math.floor(max(LIMITS[0], min(low, -1.0))), math.ceil(min(LIMITS[1], max(high, 3.0)))


def _mark(d: Difference, y: float, at: Any, limits: tuple[float, float], kind: str) -> list[str]:
    """Draw a dot with its interval, or an arrow with a number if it is off the scale."""
    mean, half = d["mean"], d["half"] or 0.0
    if limits[0] <= mean <= limits[1]:
        if kind == "s1":
            return [f'<circle class="s1 line ring" cx="{at(mean):.1f}" cy="{y}" r="4.5"/>']
        interval = [line(f"M{at(mean - half):.1f} {y}H{at(mean + half):.1f}", f"{kind} range")] if half else []
        return [*interval, f'<circle class="{kind}" cx="{at(mean):.1f}" cy="{y}" r="5"/>']
    way = 1 if mean > limits[1] else -1
    tip, inside = at(mean), 40 if kind == "s1" else 0  # two arrows of a row are drawn side by side
    start = tip - way * (9 + inside)
    arrow = f'<path class="{kind}" d="M{start:.1f} {y - 5}L{start + way * 9:.1f} {y}L{start:.1f} {y + 5}Z"/>'
    return [
        arrow,
        text(start - way * 4, y + 4, f"{mean:+.0f}".replace("-", "−"), kind, "end" if way > 0 else "start", "bold"),
    ]


def page(report: Report) -> str:
    """Return a self-contained HTML page."""
    words: dict[str, Any] = {"about": about(report), "fit": FIT, "picture": svg(report), "tables": tables(report)}
    return build("painless.html", title=TITLE, **words)


def _by_method(report: Report, task: str) -> dict[str, Any]:
    return {row["method"]: row for row in report["results"][task]}


def _price(found: dict[str, Any]) -> float:
    """Return the gradients of all runs of FedAvg divided by those of `auto`."""
    return float(found["fedavg"]["gradients"] / max(1, found["auto"]["gradients"]))


def _rate(setting: str) -> float:
    return float(setting.removeprefix("fedavg(lr=").rstrip(")"))


def _interval(d: Difference) -> str:
    return f"{d['mean']:+.1f}" if d["half"] is None else f"{d['mean']:+.1f} ± {d['half']:.1f}"


def _summed(s: dict[str, Any]) -> list[str]:
    points = [f"{s[name]:+.1f}" for name in ("mean", "median", "worst")]
    return [*points, s["worst_on"], f"{s['won']} ({s['won_clearly']})", f"{s['lost']} ({s['lost_clearly']})"]
