"""Stores of client memory, which lasts from round to round: in RAM, or in a file if it is too large."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import torch
from torch import Tensor

from fedstride.core.errors import Corrupt, InvalidInput, Unsaved
from fedstride.core.files import open_private
from fedstride.core.rows import State, Vec

LIMIT = 2**30  # bytes of all clients together that are kept in RAM
NONE = -1  # slot of a client without memory of its own
CLIENTS = "clients"  # name of their numbers in a checkpoint


def store(
    fresh: Callable[[Vec], State], like: Vec, clients: int, folder: Path | None, name: str, keep: int = 1
) -> Store | FileStore:
    """Return a store for the memory of a number of clients.

    Args:
        fresh: returns the memory of a client before its first round.
        like: an argument of `fresh`; the result gives the size of a client's memory.
        clients: number of clients.
        folder: where to put a file, if one is needed, beside the checkpoints that refer to it. None: a temporary file.
        name: name of the file.
        keep: number of checkpoints that are kept.
    """
    example = fresh(like)
    if clients * sum(v.nbytes for v in example.values()) <= LIMIT:
        return Store(fresh, example, clients)
    return FileStore(fresh, example, clients, folder, name, keep)


class Store:
    """The memory of clients that took part; that of others is fresh. Changes are staged, then committed or discarded.

    Staged memory is visible to rows(), because a round may have several exchanges. Names that fresh() does not return
    last for one round only.
    """

    def __init__(self, fresh: Callable[[Vec], State], example: State, clients: int) -> None:
        self.fresh, self.example, self.clients = fresh, example, clients
        self.kept: dict[int, State] = {}
        self.staged: dict[int, State] = {}

    def rows(self, clients: Sequence[int], x: Vec) -> State:
        """Return the memory of some clients, one row each; fresh(x) for those that never took part."""
        return _stacked([self.staged.get(c, self.kept.get(c)) or self.fresh(x) for c in clients])

    def stage(self, clients: Sequence[int], rows: State) -> None:
        for i, client in enumerate(clients):
            self.staged[client] = {name: v[i].clone() for name, v in rows.items()}

    def has(self, client: int) -> bool:
        """Whether a client has memory of its own."""
        return bool(self.staged.get(client, self.kept.get(client)))

    def of(self, client: int) -> State:
        """Return a client's lasting memory, staged or committed; {} before its first round."""
        found = self.staged.get(client, self.kept.get(client, {}))
        return {name: v for name, v in found.items() if name in self.example}

    def commit(self) -> None:
        for client, state in self.staged.items():
            lasting = {name: v for name, v in state.items() if name in self.example}
            if lasting:
                self.kept[client] = lasting
            else:
                self.kept.pop(client, None)
        self.staged.clear()

    def discard(self) -> None:
        self.staged.clear()

    def state(self) -> dict[str, Tensor]:
        """Return the clients' numbers and their memory, one row each: safetensors limits the number of names."""
        if not self.kept:
            return {}
        clients = sorted(self.kept)
        return {CLIENTS: torch.tensor(clients, device="cpu"), **_stacked([self.kept[c] for c in clients])}

    def restore(self, state: dict[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        kept: dict[int, State] = {}
        for key, v in (_by_client(state) if CLIENTS in state else state).items():  # older ones name each client
            client, _, name = key.partition("/")
            known = client.isdecimal() and int(client) < self.clients and name in self.example
            if not known or (v.shape, v.dtype) != (self.example[name].shape, self.example[name].dtype):
                raise Corrupt(f"checkpoint: client memory {key!r} does not belong to this run.")
            kept.setdefault(int(client), {})[name] = place(v)
        if any(s.keys() != self.example.keys() for s in kept.values()):
            raise Corrupt(f"checkpoint: the memory of some clients is incomplete; expected {list(self.example)}.")
        self.kept = kept
        self.staged.clear()

    def close(self) -> None:
        """Do nothing: there is no file to close."""


class FileStore:
    """A Store in a file, with one slot per client that took part.

    New memory is written to a free slot, and slots that a kept checkpoint refers to are not free, so a crash never
    damages a checkpoint. Memory that lasts for one round stays in RAM.
    """

    def __init__(
        self,
        fresh: Callable[[Vec], State],
        example: State,
        clients: int,
        folder: Path | None,
        name: str,
        keep: int = 1,
    ) -> None:
        self.fresh, self.keep = fresh, keep
        self.temporary: TemporaryDirectory[str] | None = None
        if folder is None:
            self.temporary = TemporaryDirectory(prefix="fedstride-")
            folder = Path(self.temporary.name)
        self.file = SlotFile(folder / f"{name}.bin", example)
        self.slots = torch.full((clients,), NONE, dtype=torch.int32, device="cpu")
        self.sums = torch.zeros(clients, dtype=torch.int64, device="cpu")  # checksums of the slots' contents
        self.staged: dict[int, tuple[int, int]] = {}
        self.free: list[int] = []
        self.replaced: list[int] = []  # slots replaced since the last checkpoint
        self.held: list[list[int]] = []  # slots replaced before it, back to the oldest kept checkpoint
        self.end = 0  # number of slots, in use or free
        self.others = Store(lambda x: {}, {}, clients)

    def rows(self, clients: Sequence[int], x: Vec) -> State:
        slots = [self.staged[c][0] if c in self.staged else int(self.slots[c]) for c in clients]
        mine = _stacked([self.fresh(x) if s == NONE else self.file.read(s, x.device) for s in slots])
        return {**mine, **self.others.rows(clients, x)}

    def stage(self, clients: Sequence[int], rows: State) -> None:
        layout = self.file.layout
        mine = {name: rows[name] for name in layout if name in rows}
        found = {name: (v.shape[1:], v.dtype) for name, v in mine.items()}
        if mine and found != layout:
            raise InvalidInput(f"memory: a client returned {found}; expected the initial layout, {layout}.")
        self.others.stage(clients, {name: v for name, v in rows.items() if name not in layout})
        for i, client in enumerate(clients):
            self._release(client)
            self.staged[client] = self._put([v[i] for v in mine.values()]) if mine else (NONE, 0)

    def has(self, client: int) -> bool:
        slot, _ = self.staged.get(client, (int(self.slots[client]), 0))
        return slot != NONE or self.others.has(client)

    def of(self, client: int) -> State:
        slot, total = self.staged.get(client, (int(self.slots[client]), int(self.sums[client])))
        if slot == NONE:
            return {}
        if self.file.checksum(slot) != total:
            raise Corrupt(
                f"{self.file.path}: the memory of client {client} is damaged, or was overwritten by another run."
            )
        return self.file.read(slot, torch.device("cpu"))

    def commit(self) -> None:
        for client, (slot, total) in self.staged.items():
            if (old := int(self.slots[client])) != NONE:
                (self.free if self.temporary else self.replaced).append(old)
            self.slots[client], self.sums[client] = slot, total
        self.staged.clear()
        self.others.commit()

    def discard(self) -> None:
        for client in list(self.staged):
            self._release(client)
        self.others.discard()

    def state(self) -> dict[str, Tensor]:
        """Return the slots of the clients that have one, after writing all slots to disk.

        The new checkpoint replaces the oldest one, whose slots become free unless another checkpoint refers to them.
        """
        self.file.sync()
        self.held.append(self.replaced)
        self.replaced = []
        while len(self.held) >= self.keep:
            self.free += self.held.pop(0)
        ages = [(age, slot) for age, slots in enumerate(self.held) for slot in slots]
        held = torch.tensor(ages, dtype=torch.int32, device="cpu").reshape(-1, 2)
        known = (self.slots != NONE).nonzero()[:, 0]
        return {CLIENTS: known, self.file.kind: self.slots[known], "sums": self.sums[known], "held": held}

    def restore(self, state: dict[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        slots, sums, held = (state.get(name) for name in (self.file.kind, "sums", "held"))
        if slots is None or sums is None or held is None:
            raise Corrupt(f"checkpoint: client memory has the names {sorted(state)[:3]}; expected {self.file.kind!r}.")
        clients = state.get(CLIENTS, torch.arange(len(self.slots), device="cpu"))  # older ones list all clients
        fits = clients.shape == slots.shape == sums.shape and (slots.dim(), held.dim(), held.shape[-1:]) == (1, 2, (2,))
        types = (clients.dtype, slots.dtype, sums.dtype, held.dtype)
        numbers = [-1, *clients.tolist(), len(self.slots)] if fits else [0, 0]
        if types != (torch.int64, torch.int32, torch.int64, torch.int32) or any(a >= b for a, b in pairwise(numbers)):
            raise Corrupt(f"checkpoint: its slots of {self.file.path.name} are not those of {len(self.slots)} clients.")
        taken = [s for s in slots.tolist() if s != NONE] + held[:, 1].tolist()
        if len(set(taken)) < len(taken) or min(taken, default=0) < 0 or len(taken) > 2**24:
            raise Corrupt(f"checkpoint: it refers to invalid slots of {self.file.path.name}.")
        self.slots.fill_(NONE)[clients.cpu()] = slots.cpu()
        self.sums[clients.cpu()] = sums.cpu()
        self.end = max(taken, default=-1) + 1
        self.file.reopen(self.end)
        for client, slot, total in zip(clients.tolist(), slots.tolist(), sums.tolist(), strict=True):
            if slot != NONE and self.file.checksum(slot) != total:
                raise Corrupt(
                    f"{self.file.path}: the memory of client {client} is damaged, or belongs to another checkpoint."
                )
        oldest_first = range(max((age for age, _ in held.tolist()), default=-1) + 1)
        self.held = [[s for age, s in held.tolist() if age == a] for a in oldest_first]
        self.free = sorted(set(range(self.end)) - set(taken))
        self.replaced = []
        self.staged.clear()

    def close(self) -> None:
        self.file.close()
        if self.temporary:
            self.temporary.cleanup()

    def __del__(self) -> None:
        self.close()  # a store may outlive its run: see LocalClients.recall

    def _release(self, client: int) -> None:
        slot, _ = self.staged.pop(client, (NONE, 0))
        if slot != NONE:
            self.free.append(slot)

    def _put(self, tensors: Sequence[Tensor]) -> tuple[int, int]:
        slot = self.free.pop() if self.free else self.end
        self.end = max(self.end, slot + 1)
        return slot, self.file.write(slot, tensors)


class SlotFile:
    """A file of equal slots, each with the same named tensors. The first write creates it, unless it is reopened."""

    def __init__(self, path: Path, example: State) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.layout = {name: (v.shape, v.dtype) for name, v in example.items()}
        self.kind = " ".join(["slots", *(f"{k}:{dtype}:{list(shape)}" for k, (shape, dtype) in self.layout.items())])
        *self.starts, self.used = accumulate((_up(v.nbytes, 64) for v in example.values()), initial=0)  # 64: alignment
        self.stride = _up(self.used, mmap.ALLOCATIONGRANULARITY)

    def read(self, slot: int, device: torch.device) -> State:
        """Return views of the mapped slot, if possible; its pages are released with the last view."""
        view = mmap.mmap(self._open().fileno(), self.used, access=mmap.ACCESS_COPY, offset=slot * self.stride)
        return {
            name: torch.frombuffer(view, dtype=dtype, count=shape.numel(), offset=at).view(shape).to(device)
            for at, (name, (shape, dtype)) in zip(self.starts, self.layout.items(), strict=True)
        }

    def write(self, slot: int, tensors: Sequence[Tensor]) -> int:
        """Write a slot and return its checksum. Not through a mapping, where a full disk kills the process."""
        total = 0
        try:
            file, end = self._open(), (slot + 1) * self.stride
            if os.fstat(file.fileno()).st_size < end:
                file.truncate(end)
            for at, v in zip(self.starts, tensors, strict=True):
                data = v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                file.seek(slot * self.stride + at)
                file.write(data)
                total = zlib.crc32(data, total)
            file.flush()
        except OSError as error:
            raise Unsaved(
                f"{self.path}: cannot be written ({error.strerror or error}). Free some disk space."
            ) from error
        return total

    def checksum(self, slot: int) -> int:
        """Return the checksum of a slot's current content."""
        total, file = 0, self._open()
        for at, (shape, dtype) in zip(self.starts, self.layout.values(), strict=True):
            file.seek(slot * self.stride + at)
            total = zlib.crc32(file.read(shape.numel() * dtype.itemsize), total)
        return total

    def sync(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())

    def reopen(self, slots: int) -> None:
        """Continue with the first `slots` slots of the existing file."""
        self.close()
        there, needed = self.path.stat().st_size if self.path.is_file() else 0, slots * self.stride
        if there < needed:
            raise Corrupt(
                f"checkpoint: the client memory in {self.path} is incomplete: {there} bytes, expected {needed}."
            )
        if slots:
            self.file = self.path.open("r+b")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file = None

    def _open(self) -> BinaryIO:
        if self.file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "w+b", opener=open_private)  # noqa: SIM115 (close() does)
        return self.file


def _stacked(states: Sequence[State]) -> State:
    return {name: torch.stack([s[name] for s in states]) for name in states[0]}


def _by_client(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows of a state by client and name, as in "7/control"."""
    rows, clients = dict(state), state[CLIENTS].tolist()
    shape = rows.pop(CLIENTS).shape
    fit = bool(rows) and len(shape) == 1 and all(v.shape[:1] == shape for v in rows.values())
    if not fit or len(set(clients)) < len(clients):
        raise Corrupt("checkpoint: client memory does not have one row for each client.")
    return {f"{client}/{name}": v[i].clone() for name, v in rows.items() for i, client in enumerate(clients)}


def _up(n: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-n // unit) * unit
