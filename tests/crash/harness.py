"""Kill, resume, compare."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fedstride.core.errors import InvalidInput
from fedstride.core.files import read_tensors
from fedstride.training.checkpoint import FILE, files
from tests.crash.child import ANY_TIME, AROUND, CHECKPOINT, EVENTS, FIELDS, PHASES, SLOT, Journal, Moment, live
from tests.crash.scenario import Scenario

TOO_LONG = 300  # seconds: a run that hangs
PROCESSES = multiprocessing.get_context("forkserver")
LOADED = ["tests.crash.child"]  # in every new process, from the start
PROCESSES.set_forkserver_preload(LOADED)

Choose = Callable[["Life", float], Moment | None]  # (rehearsal, share of the rounds to go) -> when to kill


@dataclass(frozen=True)
class Life:
    """What is known of a process after its end."""

    seconds: float
    bits: dict[str, bytes] | None  # None: it was killed
    error: str
    phase: str
    saved: int  # rounds in the newest checkpoint that it wrote to the end
    events: dict[str, int]


@dataclass
class Trial:
    """What came of a run that was killed now and then."""

    kills: list[tuple[str, str]] = field(default_factory=list)  # (moment, phase)
    compared: int = 0  # results
    different: int = 0  # bits
    failures: list[str] = field(default_factory=list)


@cache
def alone(scenario: Scenario) -> tuple[Life, Life]:
    """The run when nobody kills it: without checkpoints and in memory, and as it will be killed."""
    with TemporaryDirectory(prefix="fedstride-crash-") as name:
        home = Path(name)
        plain = replace(scenario, on_disk=False)
        return _life(plain, None, 1, None, home), _life(scenario, home / "run", 2, None, home)


def endure(
    scenario: Scenario, home: Path, random: Random, choose: Choose, prepare: Callable[[], None] | None = None
) -> Trial:
    """Kill the run at the chosen moments, each time going on with another number of workers; then let it end."""
    trial, folder, saved, workers = Trial(), home / "run", 0, 2
    reference, rehearsal = alone(scenario)
    if reference.bits is None or rehearsal.bits is None:
        trial.failures.append(f"not killed, and yet: {reference.error or rehearsal.error}")
        return trial
    _compare(trial, rehearsal.bits, reference.bits, "with checkpoints")
    while True:
        moment = choose(rehearsal, 1 - saved / scenario.rounds)
        workers = random.choice([w for w in (1, 2, 3) if w != workers])
        life = _life(scenario, folder, workers, moment, home, prepare)
        saved = max(saved, life.saved)
        if life.error:
            trial.failures.append(life.error)
            return trial
        trial.failures += _damage(folder, saved)
        if life.bits is not None:
            _compare(trial, life.bits, reference.bits, f"after {trial.kills}")
            trial.failures += _left(folder, scenario)
            return trial
        trial.kills.append((moment.kind, life.phase))


def at_random(random: Random, kills: int) -> Choose:
    """So many kills, half of them at any time, half of them in the course of a write."""
    left = iter(range(kills))

    def choose(rehearsal: Life, to_go: float) -> Moment | None:
        if next(left, None) is None:
            return None
        half = [event for event in (CHECKPOINT, SLOT) if rehearsal.events[event]]
        kind = random.choice([ANY_TIME, ANY_TIME, random.choice(AROUND), random.choice(half)])
        if kind == ANY_TIME:
            return Moment(kind, random.uniform(0, rehearsal.seconds))
        return Moment(kind, random.randint(1, max(1, int(rehearsal.events[kind] * to_go))))

    return choose


def _life(
    scenario: Scenario,
    folder: Path | None,
    workers: int,
    moment: Moment | None,
    home: Path,
    prepare: Callable[[], None] | None = None,
) -> Life:
    path = home / "journal"
    path.write_bytes(bytes(8 * len(FIELDS)))
    result, send = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=live, args=(scenario, folder, workers, moment, path, send, prepare))
    process.start()
    send.close()
    bits, error, start = None, "", time.perf_counter()
    try:
        ready = result.recv()
        start = time.perf_counter()
        patience = moment.number if moment is not None and moment.kind == ANY_TIME else TOO_LONG
        message = ready or (result.recv() if result.poll(patience) else None)
    except EOFError:  # it ended itself
        message = None
    seconds = time.perf_counter() - start
    if isinstance(message, dict):
        bits = message
    elif message is not None:
        error = message
    elif moment is None or seconds > TOO_LONG:
        error = f"ended, or hung, after {seconds:.0f} seconds without a result"
    if message is None:
        process.kill()
    process.join()
    if message is None and process.exitcode != -signal.SIGKILL:
        error = f"ended with {process.exitcode} and no result"
    journal = Journal(path)
    events = {event: journal[event] for event in EVENTS}
    return Life(seconds, bits, error, PHASES[journal["phase"]], journal["saved"], events)


def _compare(trial: Trial, found: dict[str, bytes], expected: dict[str, bytes], when: str) -> None:
    trial.compared += 1
    for name in sorted({*found, *expected}):
        one, other = found.get(name, b""), expected.get(name, b"")
        size = max(len(one), len(other))
        different = (int.from_bytes(one.ljust(size, b"\0")) ^ int.from_bytes(other.ljust(size, b"\0"))).bit_count()
        if different or len(one) != len(other):
            trial.failures.append(f"{different} bits of {name} differ {when}")
            trial.different += max(different, 1)


def _damage(folder: Path, saved: int) -> list[str]:
    """What is wrong with a folder right after a kill: every checkpoint is whole, and what was saved is not lost."""
    wrong = []
    for path in files(folder):
        try:
            read_tensors(path)
        except InvalidInput as error:
            wrong.append(f"after a kill: {error}")
    rounds = max((int(FILE.fullmatch(path.name)[1]) for path in files(folder)), default=0)
    return wrong if rounds >= saved else [*wrong, f"after a kill: {saved} rounds were saved, and {rounds} are there"]


def _left(folder: Path, scenario: Scenario) -> list[str]:
    """What is wrong with a folder after the end of a run."""
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    expected = {os.path.join("clients", name) for name in ("memory.bin", "statistics.bin")}
    strange = [name for name in found if name not in expected and not FILE.fullmatch(name)]
    kept = len(files(folder))
    wrong = [f"{kept} checkpoints are kept"] if kept > scenario.keep else []
    return wrong + [f"{name} was left behind" for name in strange]
