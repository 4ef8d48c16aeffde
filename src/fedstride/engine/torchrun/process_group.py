"""What the processes of a run tell each other: facts as JSON, tensors as they are; never pickle."""

from __future__ import annotations

import atexit
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from fedstride.core.rows import State

LEADER = 0
PAUSE = 0.02  # seconds between two looks for the others
ENDS = count()  # of runs in this process
GRACE = timedelta(minutes=1)
PATIENCE = timedelta(days=1)  # torchrun finds out who died; who is slow is waited for


class Link:
    """One end of it. Every process calls the same methods in the same order."""

    def __init__(self, device: torch.device) -> None:
        if not dist.is_initialized():
            _join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self.device, self.rank, self.world = device, dist.get_rank(), dist.get_world_size()
        self.broken = False  # somebody is gone: there is no use in talking

    def say(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor] = {}) -> None:
        """The leader to everybody."""
        layout = {k: (str(v.dtype).removeprefix("torch."), tuple(v.shape), v.device.type) for k, v in tensors.items()}
        data = _bytes(json.dumps([facts, layout]).encode())
        for part in (torch.tensor([len(data)], device="cpu"), data, *tensors.values()):
            self._do(dist.broadcast, part.contiguous(), LEADER)

    def hear(self) -> tuple[dict[str, Any], State]:
        """What the leader says."""
        size = self._heard(torch.empty(1, dtype=torch.int64, device="cpu"))
        data = self._heard(torch.empty(int(size), dtype=torch.uint8, device="cpu"))
        facts, layout = json.loads(bytes(data.numpy()))
        tensors = {}
        for name, (dtype, shape, kind) in layout.items():
            where = torch.device("cpu") if kind == "cpu" else self.device
            tensors[name] = self._heard(torch.empty(shape, dtype=getattr(torch, dtype), device=where))
        return facts, tensors

    def agree(self, choice: bool) -> bool:
        """The leader's choice."""
        if self.rank == LEADER:
            self.say({"choice": choice})
            return choice
        return bool(self.hear()[0]["choice"])

    def swap(self, messages: Sequence[bytes]) -> list[bytes]:
        """One message to each process for one from each."""
        sizes = [torch.tensor([len(m)], device="cpu") for m in messages]
        theirs = [int(n) for n in self.trade(sizes, [1] * self.world)]
        return [bytes(v.numpy()) for v in self.trade([_bytes(m) for m in messages], theirs)]

    def gather(self, message: bytes) -> list[bytes]:
        """Everybody's message, for the leader; nothing for the others."""
        return self.swap([message if rank == LEADER else b"" for rank in range(self.world)])

    def trade(self, pieces: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """A vector to each process for one of a known size from each."""
        mine = torch.cat(list(pieces))
        theirs = mine.new_empty(sum(sizes))
        self._do(dist.all_to_all_single, theirs, mine, list(sizes), [len(p) for p in pieces])
        return list(torch.split(theirs, list(sizes)))

    def part(self) -> None:
        """At the end, the leader stays until all have heard what it said: what is on its way would go with it."""
        store, end = _get_default_store(), next(ENDS)
        if self.rank != LEADER:
            store.set(f"heard/{end}/{self.rank}", "")
        elif self.world > 1:
            with suppress(RuntimeError):  # who is gone needs nothing
                store.wait([f"heard/{end}/{rank}" for rank in range(1, self.world)], GRACE)

    def _heard(self, into: Tensor) -> Tensor:
        self._do(dist.broadcast, into, LEADER)
        return into

    def _do(self, operation: Callable[..., Any], *given: Any) -> None:
        try:
            operation(*given)
        except RuntimeError as error:
            self.broken = True
            error.add_note("fedstride: another process of this run is gone; its own output says why")
            raise


def _bytes(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


def _join(backend: str) -> None:
    store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
    own = dist.PrefixStore(  # type: ignore[attr-defined]
        f"fedstride/{_meeting(store, rank, world)}", store
    )
    dist.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=PATIENCE)
    atexit.register(_leave)


def _meeting(store: Any, rank: int, world: int) -> str:
    """A name that only processes of this life share. After a restart the store still holds the addresses of the dead."""
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
            if store.check([f"fedstride/hello/{other}"]):  # perhaps of one who is dead by now
                theirs = store.get(f"fedstride/hello/{other}").decode()
                store.set(f"fedstride/welcome/{theirs}", mine)
        time.sleep(PAUSE)
    return mine


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
