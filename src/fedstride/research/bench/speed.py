"""fedstride bench speed: compare the local engine with a hand-written loop and with other libraries.

An engine is timed only if its model equals that of the hand-written loop, on the same batches in float64.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstride.research.bench.engines import BY_HAND, FEDSTRIDE, EngineFailed, Program, RunningProgram, cpu_seconds
from fedstride.research.bench.workloads import GROWTH, PEERS, Workload

Say = Callable[[str], object]
TARGETS = dict(linear=30.0, softmax=4.5, mlp=3.0, cnn=1.8, lstm=1.3, transformer=1.5, resnet18=1.1)  # times by hand
OVER_PEERS = {"softmax": 3.0, "cnn": 1.7}  # times faster than the fastest other library
TRIAL = 0.35  # allowed cost of a trial of Armijo's search; a forward pass is a third of a step
MEMORY = 2 * 2**30  # bytes allowed with many clients
LINEAR = 1.25  # allowed time of a client in a large cohort, relative to a smaller one
PLAIN = "plain SGD"  # reference for Armijo's cost
MIXED = "bfloat16"  # fedstride in mixed precision


@dataclass
class ProgramTiming:
    """The measurements of one engine on one workload."""

    status: str = "ok"  # or wrong, failed, missing, unsupported
    note: str = ""
    difference: float | None = None  # from the model of the hand-written loop, relative to the distance trained
    bound: float | None = None
    checked_in: str | None = None
    seconds: list[float] = field(default_factory=list)  # per round, one value per repeat
    ratio: float | None = None  # median of the paired ratios seconds by hand / seconds
    peak_bytes: int | None = None
    share_of_peak: float | None = None  # of the machine's float32 matrix product, in FLOPs
    about: dict[str, Any] = field(default_factory=dict)

    def fail(self, status: str, note: str) -> None:
        self.status, self.note = status, note


@dataclass
class Surroundings:
    """The state of the machine while the engines were timed."""

    matmul_flops: float = 0.0  # best float32 rate with PyTorch's own threads, per second
    foreign_load: float = 0.0  # largest share of the cores that other programs used in a repeat

    def look(self, n: int = 1536) -> None:
        A = torch.ones(n, n)
        for _ in range(3):
            start = time.perf_counter()
            A @ A
            self.matmul_flops = max(self.matmul_flops, 2 * n**3 / (time.perf_counter() - start))

    @contextmanager
    def watch(self, workers: Collection[RunningProgram]) -> Iterator[None]:
        def used() -> tuple[float, float, dict[int, float]]:
            ours = {pid: t for w in workers for pid, t in w.cpu_seconds().items()}
            return time.perf_counter(), cpu_seconds() or 0.0, ours | {0: time.process_time()}

        start, all_before, before = used()
        yield
        end, all_after, after = used()
        ours = sum(t - before.get(pid, 0.0) for pid, t in after.items())  # without processes that have ended
        share = (all_after - all_before - ours) / (end - start) / (os.cpu_count() or 1)
        self.foreign_load = max(self.foreign_load, share)


Lanes = dict[str, tuple[Program, Workload]]


def compare(
    workload: Workload, chosen: Sequence[Program], repeats: int, say: Say, mixed: bool = False
) -> dict[str, Any]:
    """Compare several engines on one workload, with alternating repeats; `mixed` adds fedstride in bfloat16."""
    found = {e.name: ProgramTiming(bound=e.bound, checked_in=e.dtype) for e in chosen}
    for e in chosen:
        if e.peer and e.name not in workload.peers:
            found[e.name].fail("unsupported", "not supported by the benchmark")
        elif e.missing:
            found[e.name].fail("missing", "not installed: make bench-peers")
    around = Surroundings()
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _check(workload, [e for e in chosen if found[e.name].status == "ok"], found, folder, say)
        lanes = {e.name: (e, workload) for e in chosen if found[e.name].status == "ok"}
        if workload.algorithm == "fedsls" and FEDSTRIDE.name in lanes:
            lanes[PLAIN] = (replace(FEDSTRIDE, name=PLAIN), replace(workload, algorithm="fedavg"))
            found[PLAIN] = ProgramTiming()
        if mixed and FEDSTRIDE.name in lanes:
            lanes[MIXED] = (replace(FEDSTRIDE, name=MIXED), replace(workload, precision=MIXED))
            found[MIXED] = ProgramTiming()
        _time(lanes, found, repeats, folder, around, say)
    flops = workload.flops()
    floor = flops / around.matmul_flops
    for timed in found.values():
        if timed.status == "ok":
            timed.ratio = _paired(found[BY_HAND.name], timed)
            timed.share_of_peak = floor / statistics.median(timed.seconds)
    result = {"what": workload.what, "flops_per_round": flops, "floor_seconds": floor, **asdict(around)}
    return {**result, "engines": {name: asdict(timed) for name, timed in found.items()}}


def _check(workload: Workload, chosen: list[Program], found: dict[str, ProgramTiming], folder: Path, say: Say) -> None:
    """Run two rounds on each engine and compare the models; the first engine, by hand, is the reference."""
    work = workload.to_check()
    for dtype in {e.dtype for e in chosen}:
        replace(work, dtype=dtype).write(folder / dtype)
    with ExitStack() as stack:
        workers = [stack.enter_context(RunningProgram(e, folder / e.dtype)) for e in chosen]
        _await(workers)
        for engine, worker in zip(chosen, workers, strict=True):
            say(f"{workload.name}: checking {engine.name}")
            timed = found[engine.name]
            try:
                before, after = _trained(worker, work.rounds, folder / "model.npy")
            except EngineFailed as error:
                if engine is chosen[0]:
                    raise
                timed.fail("failed", str(error))
                continue
            if engine is chosen[0]:
                start, reference = before, after
            timed.difference = float(np.linalg.norm(after - reference) / np.linalg.norm(reference - start))
            if not timed.difference <= engine.bound:
                timed.fail(
                    "wrong",
                    f"differs by {timed.difference:.1e} from the hand-written loop; the limit is {engine.bound:.0e}",
                )


def _await(workers: Iterable[RunningProgram]) -> None:
    """Wait until all workers have started; failures are reported by their next request."""
    for worker in workers:
        with suppress(EngineFailed):
            worker.ask(do="hello")


def _trained(worker: RunningProgram, rounds: int, file: Path) -> list[Any]:
    """Return an engine's model before and after its rounds."""
    models = []
    for n in (0, rounds):
        if n:
            worker.ask(do="rounds", n=n)
        models.append(_model(worker, file))
    return models


def _model(worker: RunningProgram, file: Path) -> Any:
    """Return an engine's present model as one vector."""
    worker.ask(do="model", file=str(file))
    return np.load(file, allow_pickle=False)


def _time(
    lanes: Lanes, found: dict[str, ProgramTiming], repeats: int, folder: Path, around: Surroundings, say: Say
) -> None:
    workers: dict[str, RunningProgram] = {}
    with ExitStack() as stack:
        for name, (engine, workload) in lanes.items():
            place = folder / f"{workload.algorithm} {workload.precision}"
            if not place.exists():
                replace(workload, rounds=1 + repeats * workload.rounds).write(place)
            workers[name] = stack.enter_context(RunningProgram(engine, place))
        _await(workers.values())
        for repeat in range(-1, repeats):  # the first is a warm-up
            around.look()
            with around.watch(list(workers.values())) if repeat >= 0 else nullcontext():
                for name, worker in list(workers.items()):
                    rounds = lanes[name][1].rounds
                    say(f"{lanes[name][1].name}: {name}, repeat {repeat + 1} of {repeats}")
                    try:
                        seconds = worker.ask(do="rounds", n=rounds if repeat >= 0 else 1)["seconds"]
                        found[name].seconds += [statistics.mean(seconds)] if repeat >= 0 else []
                    except EngineFailed as error:
                        if name == BY_HAND.name:
                            raise
                        found[name].fail("failed", str(error))
                        del workers[name]
        if MIXED in workers and FEDSTRIDE.name in workers:
            model, single = (_model(workers[name], folder / "model.npy") for name in (MIXED, FEDSTRIDE.name))
            start = nn.utils.parameters_to_vector(lanes[MIXED][1].build().parameters()).detach().numpy()
            found[MIXED].difference = float(np.linalg.norm(model - single) / np.linalg.norm(single - start))
        for name, worker in workers.items():
            found[name].peak_bytes, found[name].about = worker.peak(), worker.ask(do="end")


def growth(say: Say) -> dict[str, list[dict[str, Any]]]:
    """Measure seconds per round and peak memory of fedstride as one quantity grows, with a process for each point."""
    found: dict[str, list[dict[str, Any]]] = {}
    for what, points in GROWTH.items():
        for n, workload in points.items():
            say(f"growth: {n:,} {what}")
            with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
                point = _point(
                    n, replace(workload, rounds=1 + 5 * workload.rounds), workload.rounds, Path(name) / "work"
                )
            found.setdefault(what, []).append(point)
    return found


def _point(n: int, workload: Workload, rounds: int, folder: Path) -> dict[str, Any]:
    workload.write(folder)
    try:
        with RunningProgram(FEDSTRIDE, folder) as worker:
            worker.ask(do="rounds", n=1)
            seconds = [statistics.mean(worker.ask(do="rounds", n=rounds)["seconds"]) for _ in range(5)]
            return {"n": n, "seconds": statistics.median(seconds), "peak_bytes": worker.peak(), **worker.ask(do="end")}
    except EngineFailed as error:
        return {"n": n, "seconds": None, "peak_bytes": None, "note": str(error)}


def claims(workloads: dict[str, Any], grown: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the targets with the measured values."""
    found = []

    def claim(what: str, measured: float, relation: str, bound: float) -> None:
        kept = measured >= bound if relation == ">=" else measured <= bound
        found.append({"what": what, "measured": measured, "relation": relation, "bound": bound, "kept": kept})

    for name, result in workloads.items():
        timed = {n: ProgramTiming(**t) for n, t in result["engines"].items() if t["status"] == "ok"}
        ours = timed.get(FEDSTRIDE.name)
        if ours is None:
            continue
        if name in TARGETS and ours.ratio is not None:
            claim(f"{name}: times faster than by hand", ours.ratio, ">=", TARGETS[name])
        peers = {peer: ratio for peer in PEERS if peer in timed and (ratio := timed[peer].ratio) is not None}
        if name in OVER_PEERS and peers:
            best = max(peers, key=peers.__getitem__)
            text = f"{name}: times faster than {best}, the fastest other library"
            claim(text, _paired(timed[best], ours), ">=", OVER_PEERS[name])
        if PLAIN in timed:
            trials = ours.about["trials"]
            text = f"Armijo's search, {trials:.2f} trials a step: cost of a step relative to plain SGD"
            claim(text, 1 / _paired(timed[PLAIN], ours), "<=", 1 + TRIAL * trials)
    for what, points in grown.items():
        *_, before, last = [None, None, *(point for point in points if point["seconds"])]
        if last and last["peak_bytes"] and "in all" in what:
            claim(f"{last['n']:,} {what}: peak memory in GiB", last["peak_bytes"] / 2**30, "<=", MEMORY / 2**30)
        if last and before and what.startswith("clients in a round"):
            text = f"{last['n']:,} {what}: time of a client relative to {before['n']:,}"
            claim(text, last["seconds"] / before["seconds"] * before["n"] / last["n"], "<=", LINEAR)
    return found


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _paired(slow: ProgramTiming, fast: ProgramTiming) -> float:
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))
