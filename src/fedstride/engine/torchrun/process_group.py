"""Communication between the processes of a run: JSON facts and raw tensors, never pickle."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from fedstride.core.rows import State

LEADER = 0
PAUSE = 0.02  # seconds between checks for the other processes
ENDS = count()  # number of finished runs in this process
GRACE = timedelta(minutes=1)  # how long the leader waits for followers at the end of a run
LOOK = 5.0  # seconds between checks that torchrun is alive
PATIENCE = timedelta(days=1)  # slow peers never time out; torchrun detects dead ones


class Link:
    """One process's end of the connection. Every process calls the same methods in the same order."""

    def __init__(self, device: torch.device) -> None:
        if not dist.is_initialized():
            _join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self.device, self.rank, self.world = device, dist.get_rank(), dist.get_world_size()
        self.broken = False  # a peer is gone, so nothing can be sent any more

    def send(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor] = {}) -> None:
        """Send facts and tensors from the leader to all followers."""
        layout = {k: (str(v.dtype).removeprefix("torch."), tuple(v.shape), v.device.type) for k, v in tensors.items()}
        data = _bytes(json.dumps([facts, layout]).encode())
        for part in (torch.tensor([len(data)], device="cpu"), data, *tensors.values()):
            self._do(dist.broadcast, part.contiguous(), LEADER)

    def receive(self) -> tuple[dict[str, Any], State]:
        """Receive facts and tensors from the leader."""
        size = self._received(torch.empty(1, dtype=torch.int64, device="cpu"))
        data = self._received(torch.empty(int(size), dtype=torch.uint8, device="cpu"))
        facts, layout = json.loads(bytes(data.numpy()))
        tensors = {}
        for name, (dtype, shape, kind) in layout.items():
            where = torch.device("cpu") if kind == "cpu" else self.device
            tensors[name] = self._received(torch.empty(shape, dtype=getattr(torch, dtype), device=where))
        return facts, tensors

    def agree(self, choice: bool) -> bool:
        """Return the leader's choice in every process."""
        if self.rank == LEADER:
            self.send({"choice": choice})
            return choice
        return bool(self.receive()[0]["choice"])

    def swap(self, messages: Sequence[bytes]) -> list[bytes]:
        """Exchange messages: one to each process, and one from each."""
        sizes = [torch.tensor([len(m)], device="cpu") for m in messages]
        theirs = [int(n) for n in self.swap_vectors(sizes, [1] * self.world)]
        return [bytes(v.numpy()) for v in self.swap_vectors([_bytes(m) for m in messages], theirs)]

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes in the leader, empty ones in followers."""
        return self.swap([message if rank == LEADER else b"" for rank in range(self.world)])

    def swap_vectors(self, pieces: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Exchange vectors: one to each process, and one of a known size from each."""
        mine = torch.cat(list(pieces))
        theirs = mine.new_empty(sum(sizes))
        self._do(dist.all_to_all_single, theirs, mine, list(sizes), [len(p) for p in pieces])
        return list(torch.split(theirs, list(sizes)))

    def finish(self) -> None:
        """Wait, in the leader, until all followers have received its last message, which would be lost if it exited."""
        store, end = _get_default_store(), next(ENDS)
        if self.rank != LEADER:
            store.set(f"heard/{end}/{self.rank}", "")
        elif self.world > 1:
            with suppress(RuntimeError):  # a follower that has exited needs no message
                store.wait([f"heard/{end}/{rank}" for rank in range(1, self.world)], GRACE)

    def _received(self, into: Tensor) -> Tensor:
        self._do(dist.broadcast, into, LEADER)
        return into

    def _do(self, operation: Callable[..., Any], *given: Any) -> None:
        try:
            operation(*given)
        except RuntimeError as error:
            self.broken = True
            error.add_note("fedstride: another process of this run has ended; see its output for the reason")
            raise


def _bytes(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


class Signals:
    """Signals during a run: the leader ends it before the next exchange and saves it, and followers wait for the leader.

    A process that died at once would break the exchange of the others. torchrun kills processes that take too long.
    """

    def __init__(self) -> None:
        self.asked, self.before = False, dict[int, Any]()
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
            usual = (signal.SIG_DFL, signal.default_int_handler)  # not those of a program that handles them itself
            self.before = {n: signal.signal(n, self._ask) for n in numbers if signal.getsignal(n) in usual}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a signal."""
        if self.asked:
            raise KeyboardInterrupt

    def restore(self) -> None:
        """Restore the handlers from before the run."""
        while self.before:
            signal.signal(*self.before.popitem())


def _join(backend: str) -> None:
    end_with_parent()  # first: the processes wait for each other below
    store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
    own = dist.PrefixStore(  # type: ignore[attr-defined]
        f"fedstride/{_name_of_start(store, rank, world)}", store
    )
    dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=PATIENCE)
    atexit.register(_leave)


def end_with_parent(pause: float = LOOK) -> None:
    """End this process when the one that started it has died: an orphan would wait for its peers and keep its locks."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(pause)
        sys.stderr.write("fedstride: torchrun has died; this process ends. Start the run again to resume it.\n")
        sys.stderr.flush()
        os._exit(1)  # the main thread waits in C code

    threading.Thread(target=watch, name="fedstride-parent", daemon=True).start()


def _name_of_start(store: Any, rank: int, world: int) -> str:
    """Agree on a name for this start of the processes. After a restart, the store still has addresses of dead ones."""
    mine = secrets.token_hex(8)
    if rank != LEADER:
        store.set(f"fedstride/hello/{rank}", mine)
        store.wait([f"fedstride/welcome/{mine}"], PATIENCE)
        name: str = store.get(f"fedstride/welcome/{mine}").decode()
        store.set(f"fedstride/here/{name}/{rank}", "")
        return name
    others = range(1, world)
    while not all(store.check([f"fedstride/here/{mine}/{other}"]) for other in others):
        for other in others:
            if store.check([f"fedstride/hello/{other}"]):  # possibly from a process that has died since
                theirs = store.get(f"fedstride/hello/{other}").decode()
                store.set(f"fedstride/welcome/{theirs}", mine)
        time.sleep(PAUSE)
    return mine


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
