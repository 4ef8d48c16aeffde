"""Charts of the report, as figures in plotly's format, of which page/chart.js draws a part; None for a chart without information.

A trace with a `meta` is a curve over the rounds. The page fills in its x values for the axis that the reader selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedstride.app.report import theme
from fedstride.app.report.chart import Chart
from fedstride.app.report.client_charts import left_behind, partition
from fedstride.app.report.read import Comparison, Record, Series, refused_in
from fedstride.training.history import own_columns

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
OF_CLIENTS = {  # columns of runs with one test set for each client
    "test_worst_decile": ("Worst tenth of the clients", "Mean test score of the tenth of the clients with the worst."),
    "test_spread": ("Spread of the clients", "Standard deviation of the clients' test scores."),
}


def of_run(run: Record) -> list[Chart]:
    failed = run.total("failed")
    extra = {"trials": f" {failed:,.0f} searches found no step." if failed else ""}
    single = {key: _single(run, key, extra.get(key, "")) for key in ALONE}
    own = [_single(run, key) for key in metrics_of([run])]
    found = [single["test_accuracy"], _loss(run), *own, _client_steps(run), single["server_step"], single["trials"]]
    more = (single["drift"], single["epsilon"], _left_out(run), left_behind(run.clients), partition(run.clients))
    return _paired([c for c in (*found, *more) if c])


def of_comparison(comparison: Comparison) -> list[Chart]:
    own = metrics_of(run for runs in comparison.groups.values() for run in runs)
    return _paired([c for key in (*CURVES, *own) if (c := _compared(comparison, key))])


def metrics_of(runs: Iterable[Record]) -> list[str]:
    """Return the columns with the user's metrics, and with those of the clients' test sets."""
    return list(dict.fromkeys(name for run in runs for name in own_columns(run.rows) if run.has(name)))


def title_of(key: str) -> tuple[str, str]:
    """Return the title and the description of a column."""
    return CURVES.get(key) or OF_CLIENTS.get(key) or (key, "")


def constants(run: Record) -> dict[str, float]:
    """Return the columns that are constant over the rounds and need no chart."""
    usual = {CURVES[key][0].lower(): key for key in CURVES}
    every = usual | {title_of(key)[0]: key for key in metrics_of([run])}
    return {title: run.column(key)[0] or 0 for title, key in every.items() if _constant(run.column(key))}


def _single(run: Record, key: str, extra: str = "") -> Chart | None:
    values = run.column(key)
    if not _tells(values):
        return None
    title, note = title_of(key)
    traces = [line(values, title), *_best(key, values)]
    return _curves(_key(key), title, note + extra, traces, values, f"{title} {_course(values)}.")


def _best(key: str, values: Series) -> list[Trace]:
    """Return a dot at the best round of the test accuracy."""
    if key != "test_accuracy":
        return []
    best = max(v for v in values if v is not None)
    at = max(i for i, v in enumerate(values) if v == best)
    dot: Series = [v if i == at else None for i, v in enumerate(values)]
    return [{**line(dot, "best", 1), "mode": "markers", "marker": {"size": 9, "color": theme.colour(1)}}]


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
    title, note = title_of(key)
    lines = [_target(comparison.target)] if key == "test_accuracy" and comparison.target is not None else []
    about = f"{title}, mean over the seeds: {'; '.join(ends)}."
    return _curves(_key(key), title, note, traces, every, about, shapes=lines)


def line(y: Series, name: str, i: int = 0, at: int | str = 0, width: float = 2, **more: Any) -> Trace:
    style = {"color": theme.colour(i), "width": width, "dash": theme.dash(i)}
    mode = "lines" if len(y) > 2 else "lines+markers"
    return {"type": "scatter", "mode": mode, "name": name, "y": six(y), "meta": str(at), "line": style, **more}


def means(series: Sequence[Series]) -> Series:
    """Return the mean over the series in each round, up to the shortest series."""
    return [None if None in values else sum(values) / len(values) for values in zip(*series)]  # noqa: B905 (up to the shortest)


def six(values: Series) -> Series:
    """Round to six digits: more than a chart can show, at half the file size."""
    return [v if v is None else float(f"{v:.6g}") for v in values]


def _band(low: Series, high: Series, name: str, tint: int) -> list[Trace]:
    edge = {"showlegend": False, "hoverinfo": "skip", "mode": "lines"}
    return [
        {**line(low, name, width=0), **edge},
        {**line(high, name, width=0), **edge, "fill": "tonexty", "fillcolor": theme.BANDS[tint][0], "showlegend": True},
    ]


def _key(column: str) -> str:
    """Return the key of a column's chart; a metric of the user may be called like another chart."""
    return column if column in CURVES else f"metric-{column}"


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
