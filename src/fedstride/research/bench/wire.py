"""fedstride bench wire: overhead of a round on each engine, in seconds and in bytes on the wire.

Clients take one step on one sample. On Flower, rounds alternate with those of a minimal app that returns the same arrays.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedstride.algorithm.text import algorithm_of
from fedstride.core.files import replace_file
from fedstride.engine import Engine, Local, Torchrun
from fedstride.engine.torchrun import launched, number
from fedstride.engine.torchrun.process_group import LEADER, Link
from fedstride.research.bench.cases import LOSS, CaseTiming, Square
from fedstride.research.bench.engines import EngineFailed
from fedstride.research.bench.launch import JOB, PATIENCE, Launched, missing
from fedstride.research.bench.speed import Say, machine
from fedstride.training.rounds import Event
from fedstride.training.train import train
from fedstride.wire import WeightedMean

MODULE = "fedstride.research.bench.wire"
SMALL, MIDDLE, LARGE = 100, 1000, 5000  # sides of a square layer: 1e4, 1e6 and 2.5e7 parameters
FEW = 2  # clients of the table of all engines
NODES = 3  # nodes of the deployments
DEPLOYED = {"deployment": False, "supernode": True}  # Flower's SuperNode, fedstride's: whether the app's process lasts
CNN_CLIENTS = 10
ADDED = 1.0  # allowed overhead over a round of Flower in seconds: simulated with 1e6 parameters, deployed with 2.5e7
ROUND = 1.0  # allowed seconds of a deployed round with 1e4 and 1e6 parameters
TWICE = 1.7  # target speed-up of two processes
DEVICES, COHORTS, PARAMETERS = 1_000_000, (1_000, 10_000), MIDDLE**2
HEARTBEAT = 30.0  # seconds between heartbeats of a Flower node
NETWORK = 10e9 / 8  # bytes per second and direction


# Code that runs in the processes of a lane.


class ByteCount:
    """Count the bytes that this process sends to others (see engine/torchrun/process_group.py)."""

    def __init__(self) -> None:
        self.said = self.traded = 0
        do, moved = Link._do, self

        def counted(link: Link, operation: Callable[..., Any], *given: Any) -> None:
            if operation is dist.broadcast:
                moved.said += given[0].nbytes * (link.world - 1) if link.rank == LEADER else 0
            else:
                moved.traded += (len(given[1]) - given[3][link.rank]) * given[1].element_size()
            do(link, operation, *given)

        Link._do = counted  # type: ignore[method-assign, assignment]


def lane(place: Path) -> None:
    """Run all cases of a job, one round at each turn of this lane."""
    job = json.loads((place / JOB).read_text())
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(
        resource.RLIMIT_DATA, (whole // 4, whole // 4)
    )  # fail instead of exhausting the machine's memory
    local, rounds, moved, turn = Local(workers=job["workers"]), job["repeats"] + 1, ByteCount(), -1
    engine: Engine = Torchrun(local) if launched() else local
    torch.set_num_threads(1)
    for i, case in enumerate(Square(**c) for c in job["cases"]):
        found = CaseTiming(vars(case))
        moved.said = moved.traded = 0
        start = 0.0

        def watch(event: Event, found: CaseTiming = found) -> None:
            nonlocal start, turn
            seconds = time.perf_counter() - start
            if event.round:
                found.seconds += [seconds] if event.round > 1 else []
                found.counted = [event.metrics["bytes_down"], event.metrics["bytes_up"]]
                found.real = [moved.said / event.round, moved.traded / event.round]
                replace_file(place / f"done-{turn}", b"")
            if event.round < rounds:
                turn += 1
                while not (place / f"turn-{turn}").exists():
                    time.sleep(0.002)
            start = time.perf_counter()

        given = case.arguments(rounds)
        given["algorithm"] = algorithm_of(given["algorithm"])
        clients = [case.samples(c) for c in range(case.clients)]
        train(case.model(), LOSS, clients, engine=engine, callbacks=[watch], **given)
        found.peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if engine.leads:
            replace_file(place / f"{i}.json", json.dumps(vars(found)).encode())
        else:
            replace_file(place / f"{i}.rank{number('RANK')}.json", json.dumps(moved.traded / rounds).encode())


# Code of the command.


@dataclass(frozen=True)
class Sizes:
    """The cases to measure."""

    sides: tuple[int, ...] = (SMALL, MIDDLE, LARGE)
    many: tuple[int, ...] = (2, 10, 100, 1000)  # clients, on local and torchrun
    nodes: tuple[int, ...] = (2, 4, 8)  # clients, in a Flower simulation
    repeats: int = 5

    def cases(self, numbers: Sequence[int]) -> list[Square]:
        """Return the cases in the order of their memory; the largest model has few clients."""
        return [Square(s, n) for s in self.sides for n in (numbers if s < LARGE else numbers[:1])]


def measure(engines: Sequence[str], sizes: Sizes, say: Say) -> dict[str, Any]:
    """Measure the engines: any of local, torchrun, simulation, deployment and cnn."""
    load, found, notes = os.getloadavg()[0], dict[str, list[dict[str, Any]]](), dict[str, str]()

    def attempt(name: str, work: Callable[[], dict[str, list[dict[str, Any]]]], *needs: str) -> None:
        if needs and (note := missing(*needs)):
            notes[name] = note
            return
        try:
            found.update(work())
        except EngineFailed as error:
            notes[name] = str(error)

    here = [name for name in ("local", "torchrun") if name in engines]
    if here:
        cases = sizes.cases(sizes.many)
        attempt(
            ", ".join(here), lambda: in_turns({n: (2 if n == "torchrun" else 0, None) for n in here}, cases, sizes, say)
        )
    if "simulation" in engines:
        cases = sizes.cases(sizes.nodes)
        attempt("simulation", lambda: in_flower("simulation", cases, max(sizes.nodes), sizes, say), "flwr", "ray")
    if "deployment" in engines:
        for name in DEPLOYED:
            attempt(name, partial(in_flower, name, sizes.cases((NODES,)), NODES, sizes, say), "flwr")
    if "cnn" in engines:
        lanes = {"cnn, 1 process": (1, 1), "cnn, 2 processes": (2, 1), "cnn, 2 threads": (0, 2)}
        attempt("cnn", lambda: in_turns(lanes, [Square(0, CNN_CLIENTS)], sizes, say))
    report = {"machine": machine(), "load": load, "repeats": sizes.repeats, "engines": found, "notes": notes}
    report["server"] = server(say) if not missing("flwr") else {}
    return {**report, "claims": claims(report), "paper": on_paper(report)}


def in_turns(
    lanes: Mapping[str, tuple[int, int | None]], cases: Sequence[Square], sizes: Sizes, say: Say
) -> dict[str, list[dict[str, Any]]]:
    """Run lanes (processes of torchrun or 0 without it, threads per process) with alternating rounds."""
    job: dict[str, Any] = {"cases": [vars(c) for c in cases], "repeats": sizes.repeats}
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with Launched(folder) as at:
            for name, (processes, workers) in lanes.items():
                own = {**job, "workers": workers}
                at.torchrun(name, MODULE, own, processes) if processes else at.python(name, MODULE, own)
            for turn in range(len(cases) * (sizes.repeats + 1)):
                case, repeat = cases[turn // (sizes.repeats + 1)], turn % (sizes.repeats + 1)
                say(f"{', '.join(lanes)}: {case.side**2:,} parameters, {case.clients} clients, round {repeat}")
                for name in lanes:
                    (folder / name / f"turn-{turn}").touch()
                    _until_done(at, name, folder / name / f"done-{turn}")
            for name in lanes:
                at.wait(name)
        return {name: _results(folder / name, len(cases)) for name in lanes}


def _until_done(at: Launched, name: str, path: Path) -> None:
    end = time.monotonic() + 4 * PATIENCE
    while not path.exists():
        if at.check(name) == 0 and not path.exists():
            raise EngineFailed(f"{name} ended too early")
        if time.monotonic() > end:
            raise EngineFailed(f"{name}: a round took more than {4 * PATIENCE:g} s")
        time.sleep(0.002)


def _results(place: Path, cases: int) -> list[dict[str, Any]]:
    results = []
    for i in range(cases):
        result = json.loads((place / f"{i}.json").read_text())
        if result["real"]:
            result["real"][1] += sum(json.loads(p.read_text()) for p in place.glob(f"{i}.rank*.json"))
        results.append(result)
    return results


def in_flower(
    engine: str, cases: Sequence[Square], nodes: int, sizes: Sizes, say: Say
) -> dict[str, list[dict[str, Any]]]:
    job = {"do": "wire", "cases": [vars(c) for c in cases], "repeats": sizes.repeats}
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        expected = [folder / engine / f"{i}.json" for i in range(len(cases))]
        with Launched(folder) as at:
            if engine == "simulation":
                at.simulation(engine, job, nodes)
            else:
                at.deployment(engine, job, nodes, lasting=DEPLOYED[engine])
            at.wait(engine, say, expected, "cases")
        return {engine: _results(folder / engine, len(cases))}


def server(say: Say) -> dict[str, Any]:
    """Measure the server's cost per client of a Flower round, and the largest number of open nodes of the sum's tree."""
    from fedstride.engine.flower.replies import TOGETHER
    from fedstride.research.bench.federated import ingest

    def shuffled(m: int) -> Iterator[int]:
        return fetched(random.Random(0).sample(range(m), m), TOGETHER)

    say("server: processing replies")
    seconds, size = ingest(PARAMETERS)
    return {
        "parameters": PARAMETERS,
        "seconds_per_reply": seconds,
        "bytes_per_reply": size,
        "open_in_order": {str(m): open_nodes(range(m)) for m in COHORTS},
        "open_as_they_come": {str(m): open_nodes(shuffled(m)) for m in COHORTS},
    }


def fetched(arrivals: Sequence[int], together: int) -> Iterator[int]:
    """Yield the order in which replies are fetched, if the server polls only for the first `together` missing ones."""
    missing, here = list(range(len(arrivals))), set[int]()
    for position in arrivals:
        here.add(position)
        while found := [p for p in missing[:together] if p in here]:
            yield from found
            missing = [p for p in missing[:together] if p not in here] + missing[together:]


def open_nodes(order: Iterable[int]) -> int:
    """Return the largest number of vectors that the sum of a cohort holds, if clients answer in this order."""
    total, most = WeightedMean(), 0
    for position in order:
        total.add(position, 1.0, {"update": torch.ones(1)})
        most = max(most, len(total.nodes))
    return most


def added(timed: Mapping[str, Any]) -> float:
    """Return the median of the paired differences from a minimal app's round, in seconds."""
    return float(statistics.median(a - b for a, b in zip(timed["seconds"], timed["floor"], strict=True)))


def claims(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the targets with the measured values."""
    found, engines = list[dict[str, Any]](), report["engines"]

    def claim(what: str, measured: float, bound: float) -> None:
        found.append({"what": what, "measured": measured, "relation": "<=", "bound": bound, "kept": measured <= bound})

    for timed in engines.get("simulation", ()):
        if timed["case"] == vars(Square(MIDDLE, FEW)):
            what = f"simulation: seconds that fedstride adds to a round of Flower, 1e6 parameters, {FEW} clients"
            claim(what, added(timed), ADDED)
    theirs = {
        timed["case"]["side"]: timed for timed in engines.get("deployment", ()) if timed["case"]["clients"] == NODES
    }
    for ours in engines.get("supernode", ()):
        side, seconds = ours["case"]["side"], statistics.median(ours["seconds"])
        if side < LARGE:
            claim(f"deployment: seconds of a round, {side**2:.0e} parameters, {NODES} nodes", seconds, ROUND)
        elif side in theirs:
            what = f"deployment: seconds added to a round of Flower with its own SuperNode, 2.5e7 parameters, {NODES} nodes"
            claim(what, seconds - statistics.median(theirs[side]["floor"]), ADDED)
    one, two = (engines.get(f"cnn, {n}") for n in ("1 process", "2 processes"))
    if one and two:
        ratio = statistics.median(a / b for a, b in zip(one[0]["seconds"], two[0]["seconds"], strict=True))
        what = f"torchrun: times faster with 2 processes than with 1, CNN, {CNN_CLIENTS} clients"
        found.append({"what": what, "measured": ratio, "relation": ">=", "bound": TWICE, "kept": ratio >= TWICE})
    return found


def on_paper(report: Mapping[str, Any]) -> list[dict[str, float]]:
    """Estimate a round of a million devices with 1e6 parameters in float32 from the measurements; nothing is run."""
    known = report["server"]
    if not known:
        return []
    vector, size = 4 * PARAMETERS, known["bytes_per_reply"]
    return [
        {
            "cohort": m,
            "bytes_each_way": m * size,
            "network_seconds": m * size / NETWORK,
            "ingest_core_seconds": m * known["seconds_per_reply"],
            "sum_bytes_in_order": known["open_in_order"][str(m)] * vector,
            "sum_bytes_as_they_come": known["open_as_they_come"][str(m)] * vector,
            "sum_bytes_all_at_once": m * vector,
            "heartbeats_per_second": DEVICES / HEARTBEAT,
            "node_list_bytes": 8 * DEVICES,
        }
        for m in COHORTS
    ]


if __name__ == "__main__":
    lane(Path(sys.argv[1]))
