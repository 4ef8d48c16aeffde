"""Findings about the clients: heterogeneity, participation, and clients left behind."""

from __future__ import annotations

import math
from statistics import mean, median

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import Finding, number, share
from fedstride.app.report.client_charts import behind, names_of
from fedstride.data.describe import listed


def heterogeneity(e: Evidence) -> Finding | None:
    """Compare drift with progress, and the label distributions of the clients."""
    people = e.usual("participants") or 0
    if people < 2 or e.state == "diverged" or e.clamped:  # clients that do not move do not differ
        return None
    labels = (
        f" A client's label distribution differs by {share(e.skew)} from the overall one." if e.skew is not None else ""
    )
    if e.diversity is None:
        says = f"The history does not contain the norm of the mean update (column update).{labels}"
        return Finding("heterogeneity", "unknown", says)
    against, chance = math.sqrt(e.diversity - 1) if e.diversity < math.inf else math.inf, people - 1
    ratio = (e.diversity - 1) / chance
    says = (
        f"The clients' distance from their mean is {number(against)} times the length of the mean update (gradient diversity "
        f"{number(e.diversity)}); {number(math.sqrt(chance))} times would mean updates with nothing in common.{labels}"
    )
    corrected = e.algorithm is not None and e.algorithm.drift is not None
    advice = (
        *(() if corrected else ("a drift correction: --algorithm scaffold, or fedlin with all clients",)),
        *(() if e.single else ("fewer local steps: --set training.local_steps=1 or training.epochs=0.5",)),
        "more clients per round: --set training.cohort",
    )
    high = e.loss is not None and e.loss.level > limits.LOW * e.start
    if ratio > limits.CANCEL and high and e.state in ("plateau", "converged") and not (corrected or e.single):
        what = (
            "The updates cancel: with several local steps, the model stops between the clients' minima, "
            "not at the minimum of the mean."
        )
        return Finding("client drift", "watch" if e.single is None else "cause", f"{says} {what}", advice)
    skewed = e.skew is None or e.skew > limits.SKEW
    if ratio > limits.DISAGREE and skewed and e.state != "converged":
        alone = e.state in ("plateau", "slow", "rising") and not (e.small or e.large or corrected)
        if e.skew is None and e.rough:  # noisy batches do the same
            alone = False
            says = f"{says} Without clients.json, different data cannot be told from noisy batches."
        return Finding("heterogeneity", "cause" if alone else "watch", says, advice)
    return Finding("heterogeneity", "fine", says)


def participation(e: Evidence) -> list[Finding]:
    """Report few participants and lost clients."""
    found = []
    people, everyone = e.usual("participants"), len(e.record.clients.get("sizes") or [])
    if people is not None and people <= limits.FEW and everyone > limits.FEW and e.state != "diverged":
        says = f"{people:.0f} of {everyone} clients take part in a round, too few to represent the federation."
        severity = "cause" if e.bad and not e.small else "watch"
        found.append(Finding("few participants", severity, says, ("more per round: --set training.cohort=10",)))
    lost, there = e.record.total("lost"), e.record.total("participants")
    part = lost / (lost + there) if lost else 0.0
    if part > limits.LOST:
        why = ", ".join(f"{reason} {count:,}" for reason, count in e.record.refused().most_common(3))
        says = f"{lost:,.0f} of {lost + there:,.0f} clients were lost ({why or share(part)}); the mean is biased to the others."
        advice = ("more clients per round, so that enough of them answer: --set training.cohort",)
        found.append(Finding("lost clients", "watch", says, advice))
    return found


def left_behind(e: Evidence) -> Finding | None:
    """Compare the worst tenth of the clients with the median."""
    clients = e.record.clients
    key = "accuracy" if clients.get("accuracy") else "loss"
    each = [(v, name) for v, name in zip(clients.get(key) or [], names_of(clients), strict=False) if v is not None]
    each.sort(key=lambda pair: pair[0], reverse=key == "loss")
    values = [v for v, _ in each]
    if len(values) < 3 or e.state in ("slow", "diverged"):  # the model is bad for all clients
        return None
    tail = max(1, len(values) // 10)
    worst, middle = mean(values[:tail]), median(values)
    show = share if key == "accuracy" else number
    who = f" ({listed([name for _, name in each[:tail]], 3)})" if clients.get("names") else ""
    says = f"The worst tenth of the clients{who} has {key} {show(worst)}, the median {show(middle)}."
    far = middle - worst > limits.BEHIND if key == "accuracy" else worst > limits.BEHIND_LOSS * middle
    if not far or not behind(clients):
        return Finding("clients left behind", "fine", says)
    advice = (
        "more rounds or clients per round, so that each client takes part more often",
        "--set training.weights=uniform",
    )
    return Finding("clients left behind", "watch", says, advice)
