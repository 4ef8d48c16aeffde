"""Checkpoint files: when they are due, writing, pruning, reading; safetensors with JSON facts, never pickle.

A file is written under a temporary name and then renamed, so that a crash never leaves half of one.
"""

from __future__ import annotations

import errno
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedstride.core.errors import Corrupt, InvalidInput, Unsaved, positive, tell
from fedstride.core.files import NEW, write_tensors
from fedstride.training.history import COLUMNS, Row
from fedstride.training.history import unpack as unpack_history

try:
    import fcntl
except ImportError:  # not on Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]

FILE = re.compile(r"checkpoint-(\d{6,})\.safetensors")
T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoints:
    """Folder and frequency of checkpoints; a run is also saved after its last round.

    Args:
        folder: folder of the checkpoints; a run resumes from the newest intact one.
        every: rounds between checkpoints. None: no limit. The earlier of `every` and `seconds` counts.
        seconds: seconds between checkpoints. None: no limit.
        keep: number of files to keep; if the newest is damaged, the one before it is used.

    Raises:
        InvalidInput: if a value is out of range, or if `folder` is a file.

    Example:
        >>> when = fs.Checkpoints("checkpoints", every=10, seconds=60.0)
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, checkpoint=when)
    """

    folder: str | Path
    every: int | None = 1
    seconds: float | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise InvalidInput(f"checkpoint={self.folder!r} is invalid: expected a folder, or None.")
        for name, value in (("every", self.every), ("keep", self.keep)):
            allowed = value is None and name == "every"
            if not allowed and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"Checkpoints: {name}={value!r} is invalid: expected a whole number >= 1.")
        positive(self, seconds=self.seconds)
        if os.path.exists(self.path) and not os.path.isdir(self.path):  # also False for invalid file names
            raise InvalidInput(f"checkpoint={str(self.folder)!r} is a file; expected a folder.")

    @property
    def path(self) -> Path:
        """The folder as a Path."""
        return Path(self.folder)


@dataclass
class Clock:
    """Decides when the next save is due, by a monotonic clock, because the time of day may jump."""

    when: Checkpoints
    round: int  # last saved round
    last: float = field(default_factory=time.monotonic)

    def due(self, round: int) -> bool:
        """Whether a round is to be saved."""
        rounds = math.inf if self.when.every is None else self.when.every
        seconds = math.inf if self.when.seconds is None else self.when.seconds
        return round - self.round >= rounds or time.monotonic() - self.last >= seconds

    def saved(self, round: int) -> None:
        """Note that a round was saved just now."""
        self.round, self.last = round, time.monotonic()


def files(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    there = folder.glob("checkpoint-*")
    found = [(int(m[1]), p) for p in there if (m := FILE.fullmatch(p.name)) and not p.is_dir()]
    return [p for _, p in sorted(found, reverse=True)]


def write(
    when: Checkpoints, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], private: bool = False
) -> None:
    """Write a checkpoint, private if it holds a secret, and delete those beyond when.keep."""
    write_tensors(when.path / f"checkpoint-{round:06}.safetensors", tensors, meta, private)
    prune(when)


def prune(when: Checkpoints) -> None:
    """Delete checkpoints beyond when.keep, oldest first."""
    for old in files(when.path)[when.keep :]:
        old.unlink(missing_ok=True)


def history(source: object, tensors: Mapping[str, Tensor]) -> list[Row]:
    """Return the rows of a checkpoint's history; source: its file, for error messages."""
    log = tensors.get("history")
    if log is None or log.dtype != torch.uint8:
        raise Corrupt(f"{source}: it does not contain a history.")
    try:
        rows = list(unpack_history(bytes(log.cpu().numpy())))
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Corrupt(f"{source}: its history is not readable ({str(error) or type(error).__name__}).") from error
    if not rows or not all(_is_row(row, i + 1) for i, row in enumerate(rows)):
        raise Corrupt(f"{source}: its history was not written by fedstride.")
    return rows


def _is_row(row: Any, round: int) -> bool:
    if not isinstance(row, dict) or not COLUMNS.keys() <= row.keys() or row["round"] != round:
        return False
    numbers = [row[name] for name in COLUMNS if name not in ("client_steps", "refused")]
    steps, refused = row["client_steps"] or [], row["refused"]
    if not isinstance(steps, list) or not isinstance(refused, dict) or not isinstance(row["rollbacks"], int):
        return False
    return all(isinstance(v, int | float | None) for v in (*numbers, *steps, *refused.values()))


def newest(folder: Path, use: Callable[[Path], T]) -> T | None:
    """Return use(path) for the newest intact checkpoint, None if there are none; warn about damaged ones."""
    found = files(folder)
    damaged: list[tuple[Path, Corrupt]] = []
    for path in found:
        try:
            used = use(path)
        except Corrupt as error:
            damaged.append((path, error))
            continue
        for bad, why in damaged:
            os.replace(bad, bad.with_name(bad.name + ".corrupt"))
            tell(f"{why} It was renamed to {bad.name}.corrupt; the run continues from {path.name}, the one before.")
        return used
    if damaged:
        raise InvalidInput(
            f"checkpoint: no usable checkpoint in {folder}, {len(damaged)} damaged. The newest: {damaged[0][1]} Restore one "
            "from a backup, or use another folder."
        )
    return None


def in_use(folder: Path) -> bool:
    """Whether a run is writing into a folder."""
    if fcntl is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(handle)
    return False


_mine: dict[Path, int] = {}  # folders that this process has locked, and by which thread


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one run at a time. The system releases the lock when the process ends, however it ends."""
    place, thread = folder.resolve(), threading.get_ident()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unsaved(f"{folder}: cannot be created ({error.strerror or error}); use another folder.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unsaved(f"{folder}: is not writable; change its permissions, or use another folder.")
    if fcntl is None or _mine.get(place) == thread:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise InvalidInput(
                    f"{folder}: another run is writing to this folder; wait until it has finished, or use another folder."
                ) from error  # anything else: a file system without locks
        _mine[place] = thread
        for left in folder.glob(f"*{NEW}"):
            left.unlink(missing_ok=True)
        yield
    finally:
        _mine.pop(place, None)
        os.close(handle)
