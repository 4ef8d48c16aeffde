"""The life of a process that trains: it writes down where it is, and dies where it is told to."""

from __future__ import annotations

import builtins
import io
import json
import mmap
import os
import signal
import stat
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import fedstride as fs
from fedstride.engine.local import LocalClients
from fedstride.training.checkpoint import FILE
from fedstride.training.resume import Recorder
from tests.crash.scenario import Scenario

ANY_TIME = "at any time"
CALLS = ((os, "fsync"), (os, "replace"), (Path, "unlink"))
AROUND = tuple(f"{when} {name}" for _, name in CALLS for when in ("before", "after"))
CHECKPOINT, SLOT = "half-way through a checkpoint", "half-way through a client's slot"
EVENTS = (*AROUND, CHECKPOINT, SLOT)
PHASES = ("setting up", "in local work", "in the write", "between rounds")
FIELDS = ("phase", "saved", *EVENTS)


@dataclass(frozen=True)
class Moment:
    """When to die: at the n-th event of a kind; ANY_TIME: after so many seconds, by another's hand."""

    kind: str
    number: float


class Journal:
    """A few numbers in a mapped file, which outlive their process: where it is, what it saved, what happened how often."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def __getitem__(self, field: str) -> int:
        return self.numbers[FIELDS.index(field)]

    def __setitem__(self, field: str, value: int) -> None:
        self.numbers[FIELDS.index(field)] = value


class Witness:
    """Sees every write of this process, and ends it at the moment."""

    def __init__(self, journal: Journal, moment: Moment | None) -> None:
        self.journal, self.moment = journal, moment
        self.unflushed: set[int] = set()  # files whose content, folders whose names would not survive a power cut

    def due(self, event: str) -> bool:
        self.journal[event] += 1
        return self.moment == Moment(event, self.journal[event])

    def around(self, owner: Any, name: str) -> None:
        real, look = getattr(owner, name), getattr(self, name)

        def call(*args: Any, **options: Any) -> Any:
            if self.due(f"before {name}"):
                die()
            look(*args)
            result = real(*args, **options)
            if name == "replace":
                self.named(Path(args[1]))
            if self.due(f"after {name}"):
                die()
            return result

        setattr(owner, name, call)

    def during(self, owner: Any, name: str, phase: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.journal["phase"] = PHASES.index(phase)
            result = real(*args, **options)
            self.journal["phase"] = PHASES.index("between rounds")
            return result

        setattr(owner, name, call)

    def open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            opened = real(file, mode, *args, **options)
            return Torn(opened, self) if set(mode) & set("wax+") and "b" in mode else opened

        return call

    def fsync(self, handle: int) -> None:
        self.unflushed.discard(os.fstat(handle).st_ino)

    def replace(self, old: Path, new: Path) -> None:
        assert not (self.unflushed and FILE.fullmatch(Path(new).name)), (
            f"{new} got its name before all it needs was flushed"
        )

    def named(self, path: Path) -> None:
        if found := FILE.fullmatch(path.name):
            self.unflushed.add(path.parent.stat().st_ino)
            self.journal["saved"] = int(found[1])

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        assert not path.exists() or path.parent.stat().st_ino not in self.unflushed, f"{path} went too early"


class Torn:
    """A file whose writes may stop half-way, with the process."""

    def __init__(self, file: Any, witness: Witness) -> None:
        self.file, self.witness = file, witness
        self.event = SLOT if str(file.name).endswith(".bin") else CHECKPOINT

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: Any) -> int:
        data = memoryview(data).cast("B")
        self.witness.unflushed.add(os.fstat(self.file.fileno()).st_ino)
        if self.witness.due(self.event):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            die()
        return self.file.write(data)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay_in(folder: Path) -> None:
    """Forbid this process, for good, to make or change files elsewhere."""
    changes = {"open": 0, "os.mkdir": 0, "os.remove": 0, "os.rename": 1, "os.truncate": 0}

    def check(event: str, args: tuple[Any, ...]) -> None:
        if event not in changes or isinstance(args[changes[event]], int):
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = Path(os.fsdecode(args[changes[event]])).absolute()
        if folder not in (path, *path.parents) and not (path.exists() and stat.S_ISCHR(path.stat().st_mode)):
            raise AssertionError(f"{event} outside of the run's folder: {path}")

    sys.dont_write_bytecode = True
    sys.addaudithook(check)


def bits(run: fs.Run) -> dict[str, bytes]:
    """All that a run gives, but the clock."""
    tensors = {"x": run.x, **run.model.state_dict(prefix="model.")}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in run.history]
    return {k: v.numpy().tobytes() for k, v in tensors.items()} | {"history": json.dumps(rows).encode()}


def live(
    scenario: Scenario,
    folder: Path | None,
    workers: int,
    moment: Moment | None,
    journal: Path,
    result: Connection,
    prepare: Callable[[], None] | None,
) -> None:
    """Train, and send the bits, or the error as text."""
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("error", fs.FedstrideWarning)  # a damaged checkpoint would be one
        if prepare is not None:
            prepare()
        if folder is not None:
            witness = Witness(Journal(journal), moment)
            for owner, name in CALLS:
                witness.around(owner, name)
            builtins.open = io.open = witness.open(open)
            witness.during(LocalClients, "exchange", "in local work")
            witness.during(Recorder, "save", "in the write")
            stay_in(folder)
        result.send(None)
        result.send(bits(scenario.train(folder, workers)))
    except BaseException:
        result.send(traceback.format_exc())
