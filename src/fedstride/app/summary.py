"""The table of a comparison: one line per algorithm, with means over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstride.training.history import Row, own_columns

if TYPE_CHECKING:
    import pandas as pd  # like rich, slow to import
    from rich.table import Table

Histories = Mapping[str, Sequence[Sequence[Row]]]  # by algorithm; one history per seed
OF_CLIENTS = {"test_worst_decile": "worst tenth", "test_spread": "spread"}  # of runs with one test set for each client


def table_of(histories: Histories, target: float | None) -> Table:
    """Return the table for a terminal."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    metrics, loss = metrics_of(histories), _loss(histories)
    reach = [] if target is None else [f"to {100 * target:g} %"]
    named = [OF_CLIENTS.get(metric, escape(metric)) for metric in metrics]
    for title in ("algorithm", "accuracy", *reach, "loss", *named, "MB", "gradients", "forwards"):
        table.add_column(title, justify="left" if title == "algorithm" else "right", no_wrap=True)
    for name, every in histories.items():
        done = [h for h in every if h]
        if not done:
            table.add_row(escape(name), "diverged")
            continue
        last = [h[-1] for h in done]
        table.add_row(
            escape(name),
            _spread([100 * r["test_accuracy"] for r in last if r["test_accuracy"] is not None], " %"),
            *([_rounds([reached(h, target) for h in done])] if target is not None else []),
            _spread(_last(done, loss), "", 3),
            *(_spread(_last(done, metric), "", 3) for metric in metrics),
            f"{statistics.mean(sum(r['bytes_up'] + r['bytes_down'] for r in h) for h in done) / 1e6:.1f}",
            *(f"{statistics.mean(sum(r[key] for r in h) for h in done):.0f}" for key in ("gradients", "forwards")),
        )
    return table


def frame_of(histories: Histories, target: float | None) -> pd.DataFrame:
    """Return the figures of the table, one row per algorithm: means over the seeds, and deviations of the scores."""
    import pandas as pd

    rows = []
    for name, every in histories.items():
        done = [h for h in every if h]
        row: dict[str, Any] = {"algorithm": name, "runs": len(done)}
        for column in ("test_accuracy", "test_loss", "train_loss", *metrics_of(histories)):
            values = _last(done, column)
            row[column] = statistics.mean(values) if values else None
            row[f"{column}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
        if target is not None:
            needed = [n for h in done if (n := reached(h, target)) is not None]
            row |= {"rounds_to_target": statistics.mean(needed) if needed else None, "reached": len(needed)}
        for column in ("bytes_up", "bytes_down", "gradients", "forwards", "seconds"):
            row[column] = statistics.mean(sum(r[column] for r in h) for h in done) if done else None
        rows.append(row)
    return pd.DataFrame(rows).set_index("algorithm").dropna(axis="columns", how="all")


def metrics_of(histories: Histories) -> list[str]:
    """Return the metrics of the user, and those of the clients' test sets."""
    rows = [h[-1] for every in histories.values() for h in every if h]
    return [name for name in own_columns(rows) if any(isinstance(row.get(name), int | float) for row in rows)]


def reached(history: Sequence[Row], target: float) -> int | None:
    """Return the first round whose test accuracy reaches the target."""
    return next((r["round"] for r in history if r["test_accuracy"] is not None and r["test_accuracy"] >= target), None)


def _loss(histories: Histories) -> str:
    """Return the test loss, or the training loss of runs without a test set."""
    tested = any(h[-1]["test_loss"] is not None for every in histories.values() for h in every if h)
    return "test_loss" if tested else "train_loss"


def _last(histories: Sequence[Sequence[Row]], column: str) -> list[float]:
    values = [h[-1].get(column) for h in histories]
    return [v for v in values if isinstance(v, int | float)]


def _rounds(counts: list[int | None]) -> str:
    known = [c for c in counts if c is not None]
    if not known:
        return "never"
    some = "" if len(known) == len(counts) else f" ({len(known)} of {len(counts)})"
    return f"{statistics.mean(known):.0f}{some}"


def _spread(values: list[float], unit: str, digits: int = 1) -> str:
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}{unit}"
