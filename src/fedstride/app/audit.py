"""A hash-chained audit log in a run's folder: JSON lines, each with the SHA-256 of the line before.

The hash of a round's entry is also in its row of the history, and so in checkpoints: a log that was cut off is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import torch

import fedstride
from fedstride.core.errors import Corrupt, InvalidInput, Unsaved
from fedstride.core.files import open_private, read_tensors
from fedstride.training import checkpoint
from fedstride.training.rounds import Event

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FILE, COLUMN = "audit.jsonl", "audit"
START = 64 * "0"  # what the first entry has for the hash of the one before
BLOCK = 2**16  # bytes that are read at once, backwards
OUTPUTS = ("model.safetensors", "history.jsonl")  # files whose hashes are in the last entry
Facts = dict[str, Any]


class Audit:
    """Append entries on the start, every round and the end of a run to audit.jsonl, each with the hash of the one before.

    A round's entry says who was asked and who was lost, for which reason, and has a hash of the model. Resumed runs continue
    the chain. `fedstride audit verify FOLDER` checks it.

    Args:
        folder: the folder of the run, best that of its checkpoints: they hold hashes of the chain, too.
        about: facts for the first entry, such as settings.
        who: a function of a client's number that returns facts about it, such as its node and key.

    Raises:
        InvalidInput: if the log in the folder is broken.
        Unsaved: if it cannot be written.

    Example:
        >>> audit = fs.loggers.Audit("runs/first")
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, checkpoint="runs/first", callbacks=[audit])
        >>> audit.close(run.ended)
        >>> len(open("runs/first/audit.jsonl").readlines())
        4
    """

    def __init__(
        self, folder: str | Path, about: Mapping[str, Any] | None = None, who: Callable[[int], Facts] | None = None
    ) -> None:
        self.path, self.who = Path(folder) / FILE, who
        if self.path.exists() and (broken := verify(Path(folder)).broken) is not None:
            raise InvalidInput(f"audit: {broken} Restore the file from a backup, or choose another folder.")
        versions = {"fedstride": fedstride.__version__, "torch": torch.__version__, "python": platform.python_version()}
        code = {"fedstride": code_hash(Path(fedstride.__file__).parent)}
        given = dict(about or {})
        self.add("started", **{**given, "versions": versions, "code": {**code, **given.get("code", {})}})

    def __call__(self, event: Event) -> None:
        if event.round == 0:
            return
        exchanges = [
            {"kind": one.kind, "answered": [c for c in one.clients if c not in one.lost], "lost": _texts(one.lost)}
            for one in event.exchanges
        ]
        facts: Facts = {"round": event.round, "exchanges": exchanges, "model": tensor_hash(event.x)}
        if self.who is not None:
            facts["clients"] = {
                str(c): self.who(c) for c in sorted({c for one in event.exchanges for c in one.clients})
            }
        event.metrics[COLUMN] = self.add("round", **facts)

    def add(self, event: str, **facts: Any) -> str:
        """Append an entry, and return its hash. It is on the disk when this returns."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+", opener=open_private) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                last, torn = _last_line(file)
                if torn:  # by a power cut: this entry was never complete
                    file.truncate(file.seek(0, os.SEEK_END) - torn)
                    facts["removed_bytes_of_an_incomplete_entry"] = torn
                number = 1 + json.loads(last)["entry"] if last else 1
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                entry = {
                    "entry": number,
                    "time": now,
                    "event": event,
                    **facts,
                    "previous": _hash(last) if last else START,
                }
                line = json.dumps(entry).encode() + b"\n"
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                return _hash(line)
        except OSError as error:
            raise Unsaved(f"{self.path}: cannot be written ({error.strerror or error}). Free some space.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise Corrupt(f"{self.path}: its last entry is damaged ({error!r}).") from error

    def close(self, ended: str = "finished") -> None:
        """Append the last entry, with hashes of the files that the run has written.

        Args:
            ended: how the run ended, such as run.ended.
        """
        found = {name: self.path.parent / name for name in OUTPUTS}
        self.add("ended", how=ended, files={name: file_hash(path) for name, path in found.items() if path.is_file()})


@dataclass(frozen=True)
class Verdict:
    """The result of verify(): the first thing that is wrong, None if nothing is."""

    broken: str | None
    entries: int
    rounds: int
    head: str  # hash of the last entry


def verify(folder: Path, head: str | None = None) -> Verdict:
    """Check the log of a run: every link of the chain, then what history, checkpoints and files say about it.

    Args:
        folder: the folder of the run.
        head: a hash that was noted elsewhere, which must be in the chain.
    """
    chain = Chain()
    broken = _followed(chain, folder / FILE) or _against_history(folder, chain) or _against_files(folder, chain.last)
    if broken is None and head is not None and head not in chain.hashes:
        broken = f"no entry has the hash {head}: the log was rewritten, or cut off, after it was noted."
    return Verdict(broken, len(chain.hashes), chain.round, chain.head)


@dataclass
class Chain:
    """The entries of a log, as far as they have been read."""

    hashes: dict[str, int] = field(default_factory=dict)  # of all entries, with their numbers
    head: str = START
    round: int = 0
    restarted: bool = False  # whether the next round may be one that was there before
    last: Facts = field(default_factory=dict)

    def follow(self, line: bytes) -> str | None:
        """Add a line, or return what is wrong with it."""
        number = len(self.hashes) + 1
        if not line.endswith(b"\n"):
            return "is incomplete"
        try:
            entry = json.loads(line)
            event, found, previous = entry["event"], entry["entry"], entry["previous"]
            round = int(entry["round"]) if event == "round" else 0
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return "is not readable"
        if found != number:
            return f"has the number {found!r:.20}: entries are missing, or not in order"
        if previous != self.head:
            return f"does not follow entry {number - 1}: one of the two was changed" if number > 1 else "was changed"
        if event == "round" and round != self.round + 1 and not (self.restarted and 1 <= round <= self.round):
            return f"is round {round}, after round {self.round}"
        self.head, self.last = _hash(line), entry
        self.hashes[self.head] = number
        self.restarted = event == "started" or (self.restarted and event != "round")
        self.round = round or self.round
        return None


def _followed(chain: Chain, path: Path) -> str | None:
    """Read a log; return the first entry that is broken, and why."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror or error})."
    if lines and not lines[-1].endswith(b"\n") and len(lines) > 1:
        lines.pop()  # a crash: the next entry will take its place
    for number, line in enumerate(lines, 1):
        if (why := chain.follow(line)) is not None:
            return f"{path}: entry {number} {why}."
    return None if lines else f"{path}: is empty."


def _against_history(folder: Path, chain: Chain) -> str | None:
    """Compare with the hashes in the newest checkpoint and in the saved history."""
    for source, rows in _histories(folder):
        for round, noted in ((row.get("round", 0), row[COLUMN]) for row in rows if COLUMN in row):
            if not isinstance(round, int) or not isinstance(noted, str):
                return f"{folder / FILE}: {source} has a row without a valid round and hash."
            if noted in chain.hashes:
                continue
            if round > chain.round:
                return (
                    f"{folder / FILE}: ends with entry {len(chain.hashes)}, before round {round}, which {source} has: the end of "
                    "the log was cut off."
                )
            return f"{folder / FILE}: the entry of round {round} is not the one that {source} has noted."
    return None


def _histories(folder: Path) -> Iterator[tuple[str, list[Facts]]]:
    for path in checkpoint.files(folder)[:1]:
        try:
            yield path.name, checkpoint.history(path, read_tensors(path)[0])
        except (Corrupt, InvalidInput):
            continue  # a damaged checkpoint says nothing
    try:
        rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        yield "history.jsonl", [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, RecursionError):
        return


def _against_files(folder: Path, last: Facts) -> str | None:
    files = last.get("files", {}) if last.get("event") == "ended" else {}  # a run that goes on will change them
    if not isinstance(files, dict) or not files.keys() <= set(OUTPUTS):
        return f"{folder / FILE}: its last entry names files that a run does not write."
    for name, expected in files.items():
        if not (folder / name).is_file():
            return f"{folder / name}: is missing; the last entry of the log has its hash."
        if file_hash(folder / name) != expected:
            return f"{folder / name}: was changed after the run ended."
    return None


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, as sha256sum does."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_hash(folder: Path) -> str:
    """Return the SHA-256 of the Python files below a folder, with their names."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return total.hexdigest()


def text_hash(value: object) -> str:
    """Return the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def tensor_hash(x: torch.Tensor) -> str:
    """Return the SHA-256 of the bytes of a vector."""
    return hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _texts(lost: Mapping[int, str]) -> dict[str, str]:
    return {str(client): why for client, why in sorted(lost.items())}


def _last_line(file: BinaryIO) -> tuple[bytes, int]:
    """Return the last complete line, and the number of bytes after it."""
    place, tail = file.seek(0, os.SEEK_END), b""
    while place > 0 and tail.count(b"\n") < 2:
        step = min(BLOCK, place)
        place -= step
        file.seek(place)
        tail = file.read(step) + tail
    whole, newline, torn = tail.rpartition(b"\n")
    return (whole.rpartition(b"\n")[2] + newline if newline else b""), len(torn)
