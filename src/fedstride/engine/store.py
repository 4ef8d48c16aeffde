"""What clients remember from round to round, beside their data: in RAM, or in a file where they are too many for that."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import torch
from torch import Tensor

from fedstride.errors import InvalidInput
from fedstride.rows import State, Vec

LIMIT = 2**30  # bytes that all clients together may keep in RAM
NONE = -1  # the slot of a client whose state is fresh


def store(fresh: Callable[[Vec], State], like: Vec, clients: int, folder: Path | None, name: str) -> Store | FileStore:
    """A place for the state of so many clients: fresh(like) tells how much one of them remembers.

    The file stands in `folder`, beside the checkpoint that refers to it; without one it is temporary.
    """
    example = fresh(like)
    if clients * sum(v.nbytes for v in example.values()) <= LIMIT:
        return Store(fresh)
    return FileStore(fresh, example, clients, folder, name)


class Store:
    """State of those who took part; everybody else's is fresh. Changes are staged until they are committed."""

    def __init__(self, fresh: Callable[[Vec], State]) -> None:
        self.fresh = fresh
        self.kept: dict[int, State] = {}
        self.staged: dict[int, State] = {}

    def rows(self, clients: Sequence[int], x: Vec) -> State:
        """The state of some clients, one row each; who never took part starts fresh from x."""
        return _stacked([self.kept.get(c) or self.fresh(x) for c in clients])

    def stage(self, clients: Sequence[int], rows: State) -> None:
        for i, client in enumerate(clients):
            self.staged[client] = {name: v[i].clone() for name, v in rows.items()}

    def commit(self) -> None:
        for client, state in self.staged.items():
            if state:
                self.kept[client] = state
            else:
                self.kept.pop(client, None)
        self.staged.clear()

    def state(self) -> dict[str, Tensor]:
        return {f"{client}/{name}": v for client, s in sorted(self.kept.items()) for name, v in s.items()}

    def restore(self, state: dict[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        self.kept.clear()
        self.staged.clear()
        for key, v in state.items():
            client, name = key.split("/", 1)
            self.kept.setdefault(int(client), {})[name] = place(v)

    def close(self) -> None:
        """Nothing to give back."""


class FileStore:
    """The same in a file of slots, one per client who took part: costs no RAM.

    What is new goes into a free slot, and a slot that a checkpoint refers to is free only once the next one is taken: a
    crash at any moment leaves the last checkpoint whole. Names that fresh() does not give live for a round, in RAM.
    """

    def __init__(
        self, fresh: Callable[[Vec], State], example: State, clients: int, folder: Path | None, name: str
    ) -> None:
        self.fresh = fresh
        self.temporary: TemporaryDirectory[str] | None = None
        if folder is None:
            self.temporary = TemporaryDirectory(prefix="fedstride-")
            folder = Path(self.temporary.name)
        self.file = SlotFile(folder / f"{name}.bin", example)
        self.slots = torch.full((clients,), NONE, dtype=torch.int32, device="cpu")
        self.staged: dict[int, int] = {}
        self.free: list[int] = []
        self.replaced: list[int] = []  # since the last checkpoint
        self.end = 0  # slots in use or free
        self.others = Store(lambda x: {})

    def rows(self, clients: Sequence[int], x: Vec) -> State:
        slots = self.slots[list(clients)].tolist()
        mine = _stacked([self.fresh(x) if s == NONE else self.file.read(s, x.device) for s in slots])
        return {**mine, **self.others.rows(clients, x)}

    def stage(self, clients: Sequence[int], rows: State) -> None:
        layout = self.file.layout
        mine = {name: rows[name] for name in layout if name in rows}
        found = {name: (v.shape[1:], v.dtype) for name, v in mine.items()}
        if mine and found != layout:
            raise InvalidInput(f"memory: clients remember {found}; expected the same as at the start, {layout}.")
        self.others.stage(clients, {name: v for name, v in rows.items() if name not in layout})
        for i, client in enumerate(clients):
            if self.staged.get(client, NONE) != NONE:
                self.free.append(self.staged[client])
            self.staged[client] = self._put([v[i] for v in mine.values()]) if mine else NONE

    def commit(self) -> None:
        for client, slot in self.staged.items():
            if (old := int(self.slots[client])) != NONE:
                (self.free if self.temporary else self.replaced).append(old)
            self.slots[client] = slot
        self.staged.clear()
        self.others.commit()

    def state(self) -> dict[str, Tensor]:
        """Whose slot is which; what is in them is on the disk when this returns."""
        self.file.sync()
        self.free += self.replaced
        self.replaced.clear()
        return {self.file.kind: self.slots.clone(), **self.others.state()}

    def restore(self, state: dict[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        others = dict(state)
        slots = others.pop(self.file.kind, None)
        if slots is None:
            raise InvalidInput(
                f"checkpoint: it holds {sorted(state)[:3]} of the clients; expected {self.file.kind!r}. Use another folder."
            )
        self.slots = slots.cpu().clone()
        self.end = int(self.slots.max()) + 1
        self.file.reopen(self.end)
        self.free = sorted(set(range(self.end)) - set(self.slots.tolist()))
        self.replaced.clear()
        self.staged.clear()
        self.others.restore(others, place)

    def close(self) -> None:
        self.file.close()
        if self.temporary:
            self.temporary.cleanup()

    def _put(self, tensors: Sequence[Tensor]) -> int:
        slot = self.free.pop() if self.free else self.end
        self.end = max(self.end, slot + 1)
        self.file.write(slot, tensors)
        return slot


class SlotFile:
    """A file of equal slots, each with named tensors side by side. It is made anew at the first write, unless reopened."""

    def __init__(self, path: Path, example: State) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.layout = {name: (v.shape, v.dtype) for name, v in example.items()}
        self.kind = " ".join(["slots", *(f"{k}:{dtype}:{list(shape)}" for k, (shape, dtype) in self.layout.items())])
        *self.starts, self.used = accumulate((_up(v.nbytes, 64) for v in example.values()), initial=0)  # 64: aligned
        self.stride = _up(self.used, mmap.ALLOCATIONGRANULARITY)

    def read(self, slot: int, device: torch.device) -> State:
        """Views of the mapped slot, where they can be; with the last of them its pages leave the memory."""
        view = mmap.mmap(self._open().fileno(), self.used, access=mmap.ACCESS_COPY, offset=slot * self.stride)
        return {
            name: torch.frombuffer(view, dtype=dtype, count=shape.numel(), offset=at).view(shape).to(device)
            for at, (name, (shape, dtype)) in zip(self.starts, self.layout.items(), strict=True)
        }

    def write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """Not through a mapping: a full disk is an error here, and the end of the process there."""
        file, end = self._open(), (slot + 1) * self.stride
        if os.fstat(file.fileno()).st_size < end:
            file.truncate(end)
        for at, v in zip(self.starts, tensors, strict=True):
            file.seek(slot * self.stride + at)
            file.write(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()

    def sync(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())

    def reopen(self, slots: int) -> None:
        """Go on with the first so many slots of the file that is there."""
        self.close()
        there, needed = self.path.stat().st_size if self.path.is_file() else 0, slots * self.stride
        if there < needed:
            raise InvalidInput(
                f"checkpoint: what its clients remember should be in {self.path}, which has {there} bytes and not {needed}. "
                "Bring the file back, or use another folder."
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
            self.file = self.path.open("w+b")
        return self.file


def _stacked(states: Sequence[State]) -> State:
    return {name: torch.stack([s[name] for s in states]) for name in states[0]}


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
