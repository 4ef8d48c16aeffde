"""What happened in a run or a comparison, in a sentence or two."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

from fedstride.app.report.chart import percent
from fedstride.app.report.read import Comparison, Record
from fedstride.data.describe import counted

SCORES: dict[str, tuple[str, Callable[[float], str], int]] = {  # column: (name, format, 1 if larger is better)
    "test_accuracy": ("test accuracy", percent, 1),
    "test_loss": ("test loss", "{:.4g}".format, -1),
    "train_loss": ("training loss", "{:.4g}".format, -1),
}


def score_of(runs: list[Record]) -> str | None:
    """Return the column that runs are judged by; None if they have none."""
    return next((key for key in SCORES if any(run.has(key) for run in runs)), None)


def of_run(run: Record) -> str:
    key, rounds = score_of([run]), len(run.rows)
    planned = _planned(run.config)
    early = f" The run ended after {rounds:,} of {planned:,} rounds." if planned and rounds < planned else ""
    if key is None:
        return early.strip()
    name, show, sign = SCORES[key]
    known = [(t, v) for t, v in zip(run.axes()["rounds"], run.column(key), strict=True) if v is not None]
    (_, first), (end, last) = known[0], known[-1]
    if len(known) == 1:
        return f"{name.capitalize()} is {show(last)} after {counted(rounds, 'round')}.{early}"
    way = "stayed at" if show(first) == show(last) else f"{'rose' if last > first else 'fell'} from {show(first)} to"
    at, best = max(known, key=lambda pair: (sign * pair[1], pair[0]))
    peak = f"; the best was {show(best)} in round {at:,.0f}" if at != end and show(best) != show(last) else ""
    return f"{name.capitalize()} {way} {show(last)} in {counted(rounds, 'round')}{peak}.{early}"


def best_of(comparison: Comparison) -> str | None:
    """Return the algorithm with the best mean score at the end; None if there is nothing to choose."""
    ranked = _ranked(comparison)
    return ranked[0][0] if len(ranked) > 1 else None


def of_comparison(comparison: Comparison) -> str:
    ranked, key = _ranked(comparison), score_of([run for runs in comparison.groups.values() for run in runs])
    if key is None or len(ranked) < 2:
        return ""
    name, show, _ = SCORES[key]
    (best, ours), (next_best, theirs) = ranked[:2]
    gap = abs(mean(ours) - mean(theirs))
    ahead = f"{100 * gap:.1f} points" if key == "test_accuracy" else f"{gap:.3g}"
    side = "above" if key == "test_accuracy" else "below"
    text = f"{best} is best: {name} {show(mean(ours))} at the end, {ahead} {side} {next_best}."
    if len(ours) < 2 or len(theirs) < 2:
        return f"{text} With one seed, such a difference can be chance."
    noise = math.sqrt(stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs))
    return f"{text} The seeds differ as much, so this can be chance." if gap <= 2 * noise else text


def _ranked(comparison: Comparison) -> list[tuple[str, list[float]]]:
    """Return the final scores of the algorithms, best first."""
    key = score_of([run for runs in comparison.groups.values() for run in runs])
    if key is None:
        return []
    ends = {n: [v for run in runs if (v := run.last(key)) is not None] for n, runs in comparison.groups.items()}
    done = [(name, values) for name, values in ends.items() if values]
    return sorted(done, key=lambda pair: -SCORES[key][2] * mean(pair[1]))


def _planned(config: dict[str, Any]) -> int | None:
    training = config.get("training")
    rounds = training.get("rounds") if isinstance(training, dict) else None
    return rounds if isinstance(rounds, int) else None
