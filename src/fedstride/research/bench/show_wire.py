"""Presentation of `fedstride bench wire`: rows of tables, and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from fedstride.research.bench.show import Rows, as_markdown, claims
from fedstride.research.bench.wire import CNN_CLIENTS, DEPLOYED, DEVICES, FEW, NETWORK, NODES, added

Report = Mapping[str, Any]


def sizes(report: Report) -> Rows:
    """Return the seconds per round by the size of the model, with few clients."""
    rows = [["parameters", "local", "torchrun, 2 processes", "simulation: Flower alone", "with fedstride", "added"]]
    for side in _sides(report):
        timed = _find(report, "simulation", side, FEW)
        cells = [_seconds(_find(report, name, side, FEW), "seconds") for name in ("local", "torchrun")]
        last = f"{added(timed):+.2f}" if timed else "-"
        rows.append([f"{side**2:,}", *cells, _seconds(timed, "floor"), _seconds(timed, "seconds"), last])
    return rows


def deployed(report: Report) -> Rows:
    """Return the seconds per deployed round: with Flower's own SuperNode, and with that of `fedstride deploy`."""
    rows = [["parameters", "nodes"]]
    rows[0] += [
        "Flower's SuperNode: Flower alone",
        "with fedstride",
        "fedstride's SuperNode: Flower alone",
        "with fedstride",
    ]
    theirs, ours = (
        {(t["case"]["side"], t["case"]["clients"]): t for t in report["engines"].get(name, ())} for name in DEPLOYED
    )
    for side, nodes in sorted({*theirs, *ours}):
        pair = theirs.get((side, nodes)), ours.get((side, nodes))
        cells = [_seconds(timed, what) for timed in pair for what in ("floor", "seconds")]
        rows.append([f"{side**2:,}", str(nodes), *cells])
    return rows


def growth(report: Report) -> Rows:
    """Return the seconds per round by the number of clients."""
    rows = [["engine", "parameters", "clients", "s per round", "ms per client", "Flower alone, s", "memory, MiB"]]
    for name, results in _square(report).items():
        for timed in results:
            case, seconds = timed["case"], statistics.median(timed["seconds"])
            if len([t for t in results if t["case"]["side"] == case["side"]]) > 1:
                each, memory = f"{1e3 * seconds / case['clients']:.3g}", timed["peak"]
                floor = _seconds(timed, "floor") if timed["floor"] else ""
                shown = f"{memory / 2**20:,.0f}" if memory else ""
                rows.append(
                    [name, f"{case['side'] ** 2:,}", str(case["clients"]), f"{seconds:.3g}", each, floor, shown]
                )
    return rows


def sizes_of_messages(report: Report) -> Rows:
    """Return the bytes of a round: as counted by fedstride, and of the actual messages."""
    rows = [["engine", "parameters", "clients", "counted down", "of messages", "counted up", "of messages"]]
    for name, results in _square(report).items():
        for timed in results:
            case = timed["case"]
            if name != "local" and case["clients"] in (FEW, NODES, 1000):
                (down, up), (real_down, real_up) = timed["counted"], timed["real"]
                cells = (down, round(real_down), up, round(real_up))
                rows.append([name, f"{case['side'] ** 2:,}", str(case["clients"]), *(f"{n:,}" for n in cells)])
    return rows


def cnn(report: Report) -> Rows:
    rows = [[f"CNN of 582,026 parameters, {CNN_CLIENTS} clients", "s per round", "times faster"]]
    found = {name: timed[0] for name, timed in report["engines"].items() if name.startswith("cnn")}
    for name, timed in found.items():
        first = found.get("cnn, 1 process", timed)
        ratio = statistics.median(a / b for a, b in zip(first["seconds"], timed["seconds"], strict=True))
        rows.append([name.removeprefix("cnn, "), _seconds(timed, "seconds"), f"{ratio:.2f}"])
    return rows


def paper(report: Report) -> Rows:
    """Return the estimated load of the server in a round, by the size of the cohort."""
    lines: dict[str, Callable[[Report], str]] = {
        "traffic in each direction, GB": lambda p: f"{p['bytes_each_way'] / 1e9:.1f}",
        f"transfer time at {8 * NETWORK / 1e9:.0f} Gbit/s, s": lambda p: f"{p['network_seconds']:.1f}",
        "processing of the replies, core s": lambda p: f"{p['ingest_core_seconds']:.0f}",
        "memory of the sum, replies in the cohort's order, MB": lambda p: f"{p['sum_bytes_in_order'] / 1e6:,.0f}",
        "memory of the sum, replies in any order, MB": lambda p: f"{p['sum_bytes_as_they_come'] / 1e6:,.0f}",
        "memory of all replies, MB": lambda p: f"{p['sum_bytes_all_at_once'] / 1e6:,.0f}",
        f"heartbeats of {DEVICES:,} nodes, per second": lambda p: f"{p['heartbeats_per_second']:,.0f}",
        "list of online nodes, MB": lambda p: f"{p['node_list_bytes'] / 1e6:.0f}",
    }
    cohorts = report["paper"]
    rows = [["estimate for a round", *(f"cohort of {p['cohort']:,}" for p in cohorts)]]
    return rows + [[what, *(show(p) for p in cohorts)] for what, show in lines.items()] if cohorts else rows


TABLES = {
    "sizes": sizes,
    "deployed": deployed,
    "growth": growth,
    "messages": sizes_of_messages,
    "cnn": cnn,
    "claims": claims,
    "paper": paper,
}


def about(report: Report) -> str:
    m, server = report["machine"], report["server"]
    reply = f"; processing a reply of 1e6 parameters takes {1e3 * server['seconds_per_reply']:.1f} ms" if server else ""
    return (
        f"{m['cpu']}, {m['cores']} cores, load {report['load']:.1f} before the run; PyTorch {m['torch']}; "
        f"medians of {report['repeats']} alternating rounds{reply}."
    )


def notes(report: Report) -> list[str]:
    return [f"{name}: {note}" for name, note in report["notes"].items()]


def markdown(report: Report) -> str:
    tables = [as_markdown(rows) for make in TABLES.values() if len(rows := make(dict(report))) > 1]
    return "\n\n".join([about(report), *tables, *(f"- {note}" for note in notes(report))])


def _square(report: Report) -> dict[str, list[dict[str, Any]]]:
    return {name: timed for name, timed in report["engines"].items() if not name.startswith("cnn")}


def _sides(report: Report) -> list[int]:
    return list(dict.fromkeys(t["case"]["side"] for timed in _square(report).values() for t in timed))


def _find(report: Report, engine: str, side: int, clients: int) -> dict[str, Any] | None:
    known = report["engines"].get(engine, ())
    return next((t for t in known if (t["case"]["side"], t["case"]["clients"]) == (side, clients)), None)


def _seconds(timed: Mapping[str, Any] | None, what: str) -> str:
    return f"{statistics.median(timed[what]):.3g}" if timed else "-"
