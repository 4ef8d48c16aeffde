"""Lead of `auto` over tuned methods in points: by task with an interval over the seeds, by group, and with targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fedstride.research.bench.tasks import GROUPS
from fedstride.research.interval import half_width
from fedstride.research.verify.law import KEEPS

THREE = ("fedavg", "fedavgm", "fedexp")  # the methods that `auto` is compared with, and the best of them
BEST = "best of three"
EVERY = "all tasks"

Difference = dict[str, Any]  # "mean", "half" (half width of the 95 % interval, None for one seed), "seeds"
Rows = dict[str, list[dict[str, Any]]]  # results of the methods, by task
Pick = Callable[..., str] | None  # min or max over names of tasks; None: the mean


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Return the paired difference of two methods over the seeds: its mean and 95 % interval."""
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {"mean": statistics.fmean(each), "half": half_width(each), "seeds": each}


def ahead(rows: Sequence[dict[str, Any]]) -> dict[str, Difference]:
    """Compare `auto` with each of the three methods that was run, and with the best of them if all were."""
    by = {row["method"]: row for row in rows}
    found = {name: paired(by["auto"]["scores"], by[name]["scores"]) for name in THREE if name in by}
    if len(found) == len(THREE):
        best = max(THREE, key=lambda name: by[name]["score"])
        found[BEST] = {**found[best], "method": best}
    return found


def summary(values: dict[str, Difference]) -> dict[str, Any]:
    """Summarise over tasks. A task is clearly won or lost if its interval does not contain 0."""
    means = {task: d["mean"] for task, d in values.items()}
    low = {task: d["mean"] - (d["half"] or 0) for task, d in values.items()}
    high = {task: d["mean"] + (d["half"] or 0) for task, d in values.items()}
    worst = min(means, key=means.__getitem__)
    return {
        "tasks": len(means),
        "mean": statistics.fmean(means.values()),
        "median": statistics.median(means.values()),
        "worst": means[worst],
        "worst_on": worst,
        "won": sum(v > 0 for v in means.values()),
        "lost": sum(v < 0 for v in means.values()),
        "won_clearly": sum(v > 0 for v in low.values()),
        "lost_clearly": sum(v < 0 for v in high.values()),
    }


def judge(tasks: dict[str, dict[str, Any]], rows: Rows, scaled: dict[str, dict[str, Difference]]) -> dict[str, Any]:
    """Derive the whole report from the results on each task and from the costs of scaled problems."""
    each = {task: ahead(some) for task, some in rows.items()}
    groups: dict[str, list[str]] = {
        words: [task for task, about in tasks.items() if about["group"] == group] for group, words in GROUPS.items()
    }
    groups = {words: some for words, some in groups.items() if some}
    if len(groups) > 1:
        groups[EVERY] = list(tasks)
    rivals = list(next(iter(each.values())))
    sums = {
        words: {rival: summary({task: each[task][rival] for task in some}) for rival in rivals}
        for words, some in groups.items()
    }
    claims = [claim for words, some in groups.items() for claim in _claims(words, some, each, rows)]
    return {
        "results": rows,
        "ahead": each,
        "groups": sums,
        "scaled": scaled,
        "claims": [*claims, *_scale_claims(scaled)],
    }


def _claims(
    group: str, tasks: Sequence[str], each: dict[str, dict[str, Difference]], rows: Rows
) -> list[dict[str, Any]]:
    """Return the targets and the results of `auto` in a group, on the worst task or on average."""
    by = {task: {row["method"]: row for row in rows[task]} for task in tasks}
    fedavg = {task: each[task]["fedavg"]["mean"] for task in tasks}
    best = {task: each[task][BEST]["mean"] for task in tasks if BEST in each[task]}

    def per_step(currency: str) -> dict[str, float]:  # FedAvg uses one gradient per step
        return {t: some["auto"][currency] / max(1, some["fedavg"]["own_gradients"]) for t, some in by.items()}

    stated: list[tuple[str, dict[str, float], Pick, str, float]] = [
        ("points ahead of tuned FedAvg, mean", fedavg, None, ">=", 2.0),
        ("points ahead of tuned FedAvg, worst task", fedavg, min, ">=", -0.5),
        ("points ahead of the best of tuned FedAvg, FedAvgM, FedExP, mean", best, None, ">=", 0.0),
        ("gradients per local step", per_step("gradients"), max, "<=", 1.1),
        ("forward passes per local step", per_step("forwards"), max, "<=", 0.3),
        ("runs that diverged", {t: float(some["auto"]["diverged"]) for t, some in by.items()}, max, "<=", 0.0),
    ]
    return [_claim(group, *one) for one in stated if one[1]]


def _scale_claims(scaled: dict[str, dict[str, Difference]]) -> list[dict[str, Any]]:
    """Return the costs of scaled inputs and losses, on average and beyond the noise of the seeds."""
    costs = {f"{task}, {scale}": d for task, some in scaled.items() for scale, d in some.items()}
    if not costs:
        return []
    group, means = "scaled problems", {at: d["mean"] for at, d in costs.items()}
    beyond = {at: d["mean"] - (d["half"] or 0) for at, d in costs.items()}
    return [
        _claim(group, "points that scaling costs, mean", means, None, "<=", 0.5),
        _claim(group, "points that scaling costs beyond seed noise, worst", beyond, max, "<=", 0.0),
    ]


def _claim(group: str, what: str, values: dict[str, float], pick: Pick, relation: str, bound: float) -> dict[str, Any]:
    on = "" if pick is None else pick(values, key=values.__getitem__)
    measured = statistics.fmean(values.values()) if pick is None else values[on]
    claim = {"group": group, "what": what, "task": on, "measured": measured, "relation": relation, "bound": bound}
    return {**claim, "kept": KEEPS[relation](measured, bound)}
