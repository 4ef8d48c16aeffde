"""The table of a comparison: one line per algorithm, with means over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstride.training.history import Row, own_columns

if TYPE_CHECKING:
    import pandas as pd  # like rich, slow to import
    from rich.table import Table

WIDE = 1000  # characters: one table
LEAST = 16  # characters for the names of algorithms
GAP = 3  # characters between columns
LOSSES = {"test_loss": "test loss", "train_loss": "training loss"}
Histories = Mapping[str, Sequence[Sequence[Row]]]  # by algorithm; one history per seed
OF_CLIENTS = {"test_worst_decile": "worst tenth", "test_spread": "spread"}  # of runs with one test set for each client


def tables_of(histories: Histories, target: float | None, width: int = WIDE) -> list[Table]:
    """Return the table for a terminal; if it is wider than the terminal, several with some of the columns each.

    Numbers are never cut. Long names of algorithms take several lines.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    names = list(histories)
    room = min(max(map(len, (*names, "algorithm"))), max(LEAST, width // 3))
    groups: list[dict[str, list[str]]] = []
    used = width
    for title, cells in _columns(histories, target).items():
        wide = GAP + max(map(len, (title, *cells)))
        if used + wide > width:
            groups.append({})
            used = room
        groups[-1][title] = cells
        used += wide
    tables = [Table(box=box.SIMPLE_HEAD, pad_edge=False) for _ in groups]
    for table, columns in zip(tables, groups, strict=True):
        table.add_column("algorithm", max_width=room, overflow="fold")
        for title in columns:
            table.add_column(escape(title), justify="right", no_wrap=True)
        for name, *cells in zip(names, *columns.values(), strict=True):
            table.add_row(*map(escape, (name, *cells)))
    return tables


def _columns(histories: Histories, target: float | None) -> dict[str, list[str]]:
    """Return titles and cells of the columns after the name of the algorithm."""
    metrics, loss = metrics_of(histories), _loss(histories)
    done = [[h for h in every if h] for every in histories.values()]
    scores = [[100 * v for v in _last(d, "test_accuracy")] for d in done]
    columns = {"accuracy": [_spread(v, " %") if d else "diverged" for v, d in zip(scores, done, strict=True)]}
    if target is not None:
        columns[f"to {100 * target:g} %"] = [_rounds([reached(h, target) for h in d]) if d else "" for d in done]
    columns[LOSSES[loss]] = [_spread(_last(d, loss), "", 3) for d in done]
    columns |= {OF_CLIENTS.get(m, m): [_spread(_last(d, m), "", 3) for d in done] for m in metrics}
    columns["MB"] = [f"{_mean_sum(d, 'bytes_up', 'bytes_down') / 1e6:.1f}" if d else "" for d in done]
    for key in ("gradients", "forwards"):
        columns[key] = [f"{_mean_sum(d, key):.0f}" if d else "" for d in done]
    return {title: cells for title, cells in columns.items() if any(cells)}


def _mean_sum(histories: Sequence[Sequence[Row]], *columns: str) -> float:
    return statistics.mean(float(sum(r[column] for r in h for column in columns)) for h in histories)


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
