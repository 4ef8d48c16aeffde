"""The torchrun engine: one run on many processes, on one machine or several.

Rank 0 leads: it holds the training state and writes all files. The other processes follow: each can read the same data,
and computes a share of every cohort and every evaluation. Results are bitwise those of the local engine: chunks are not
split, and the sum is the same tree, of which every process merges a slice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedstride.client.chunk import Samples
from fedstride.client.exchange import Exchange
from fedstride.core.errors import Ended, InvalidInput
from fedstride.core.message import pack, unpack
from fedstride.core.model import Replica
from fedstride.core.rows import State, Vec
from fedstride.engine.evaluation import Scores, evaluation_parts, score
from fedstride.engine.local import Answer, Local, LocalClients, cores, replied
from fedstride.engine.protocol import Contents, Order, Recall, Reply, Task
from fedstride.engine.torchrun.process_group import LEADER, Link, Signals
from fedstride.wire import Aggregator, Node


@dataclass(frozen=True)
class Torchrun:
    """Runs clients in all processes that torchrun started.

    Args:
        local: the engine inside each process; its default number of workers is the process's share of the cores.

    Raises:
        InvalidInput: when training starts, if torchrun did not start this process, or if processes share a GPU.

    Example:
        >>> engine = fs.engine.Torchrun(fs.engine.Local(oracle="loop"))
        >>> engine.local.oracle
        'loop'
    """

    local: Local = field(default_factory=Local)

    @property
    def leads(self) -> bool:
        return number("RANK") == LEADER

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> TorchrunClients:
        device, here = next(task.model.parameters()).device, number("LOCAL_WORLD_SIZE")
        if device.type == "cuda" and here > 1 and str(device) != own_gpu():
            raise InvalidInput(
                f"device={str(device)!r} in process {number('LOCAL_RANK')} of this machine; expected one GPU per process. Use "
                "device=fs.engine.torchrun.own_gpu()."
            )
        share = max(1, cores() // here) if here > 1 else None
        local = replace(self.local, workers=self.local.workers or share)
        return TorchrunClients(Link(device), local.open(task, exchanges, fresh), fresh)


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def own_gpu() -> str:
    """Return the device of this process: one GPU per process of a machine."""
    return f"cuda:{number('LOCAL_RANK')}"


def number(name: str) -> int:
    """Return a number that torchrun sets in the environment, such as RANK."""
    if name not in os.environ:
        raise InvalidInput(
            f"engine='torchrun': {name} is not set, so torchrun did not start this process. Start the script with "
            "`torchrun --nproc-per-node 2 SCRIPT.py`, or use engine='local'."
        )
    return int(os.environ[name])


class TorchrunClients:
    """Clients on all processes. A client's memory is held by the process that last trained it, and moves with it."""

    def __init__(self, link: Link, local: LocalClients, fresh: Callable[[Vec], State]) -> None:
        self.link, self.local, self.task, self.exchanges = link, local, local.task, local.exchanges
        self.signals = Signals()
        lasting = bool(fresh(Replica(self.task.model).row())) or self.task.buffers == "local"
        self.remembers = lasting or sum(exchange.remembers for exchange in self.exchanges.values()) > 1
        self.holder: dict[int, int] = {}  # client: rank of the process with its memory
        self.staged: dict[int, int] = {}  # the same, as staged in this round
        self.unsaved: set[int] = set()  # clients whose memory changed in a follower since the last save

    def about(self) -> dict[str, Any]:
        return {**self.local.about(), "engine": "torchrun", "processes": self.link.world}

    # Called by the leader's training loop, and received by the followers in follow().

    def exchange(self, order: Order) -> Reply:
        self.signals.check()
        facts = {k: getattr(order, k) for k in ("kind", "round", "cohort", "limits", "call")}
        sent = {f"broadcast/{k}": v for k, v in order.broadcast.items()}
        self.link.send({"do": "exchange", **facts}, {"x": order.x, "stats": order.stats, **sent})
        answers, fields, weight = self._exchange(order)
        return replied(answers, fields, weight)

    def commit(self) -> None:
        if self.remembers:
            self.link.send({"do": "commit"})
        self._commit()

    def discard(self) -> None:
        if self.remembers:
            self.link.send({"do": "discard"})
        self._discard()

    def evaluate(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None = None) -> Scores:
        if not self.task.plain:  # messages hold single tensors
            return self.local.evaluate(x, stats, test, scaling)
        told = {} if scaling is None else {"scaling": scaling}
        number = next(i for i, one in enumerate(self.task.tests) if one is test)
        self.link.send({"do": "evaluate", "test": number}, {"x": x, "stats": stats, **told})
        return score(self.task.loss, self.task.metrics, self._outputs(x, stats, test, scaling))

    def recall(self) -> Recall | None:
        if self.link.rank != LEADER:
            return None
        if self.remembers:
            self.link.send({"do": "recall"})
        found: dict[int, State] = {}
        for key, v in self._recall().items():
            _, client, name = key.split("/", 2)
            found.setdefault(int(client), {})[name] = v
        return lambda client: found.get(client, {})

    def state(self) -> dict[str, Tensor]:
        if self.unsaved:
            self.link.send({"do": "collect", "clients": sorted(self.unsaved)})
            self._collect(sorted(self.unsaved))
            self.unsaved.clear()
        return self.local.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore all memory in the leader; it is sent on when other processes train the clients."""
        self.local.restore(state)
        clients = [c for c in range(len(self.task.clients)) if self.local.remembers(c)]
        self.link.send({"do": "restored", "clients": clients})
        self._restored(clients)

    def close(self, outcome: Contents | None = None) -> None:
        if not self.link.broken and self.link.rank == LEADER:
            tensors, facts = outcome or ({}, {})
            self.link.send({"do": "close", "facts": facts}, tensors)
            self.link.finish()
        self.local.close()
        self.signals.restore()

    def follow(self) -> Contents:
        """Follow the leader until the run ends, and return its outcome."""
        try:
            return self._follow()
        finally:
            self.local.close()
            self.signals.restore()

    def _follow(self) -> Contents:
        while True:
            facts, tensors = self.link.receive()
            match facts.pop("do"):
                case "exchange":
                    x, stats = tensors.pop("x"), tensors.pop("stats")
                    sent = {k.removeprefix("broadcast/"): v for k, v in tensors.items()}
                    self._exchange(Order(x=x, stats=stats, broadcast=sent, **facts))
                case "commit":
                    self._commit()
                case "discard":
                    self._discard()
                case "evaluate":
                    test = self.task.tests[facts["test"]]
                    self._outputs(tensors["x"], tensors["stats"], test, tensors.get("scaling"))
                case "recall":
                    self._recall()
                case "collect":
                    self._collect(facts["clients"])
                case "restored":
                    self._restored(facts["clients"])
                case "close":
                    self.link.finish()
                    if not tensors:
                        raise Ended("The process of rank 0 ended the run; see its output for the reason.")
                    return tensors, facts["facts"]

    # Called in every process.

    def _exchange(self, order: Order) -> tuple[list[Answer], State, float]:
        """Return the answers of all processes, the aggregate and its weight; only valid in the leader."""
        parts = self.local.parts(order)
        ranks = deal([self._cost(order, part) for part in parts], self.link.world)
        if self.remembers and self.exchanges[order.kind].remembers:
            self._fetch({order.cohort[p][0]: r for part, r in zip(parts, ranks, strict=True) for p in part})
        total = self.exchanges[order.kind].total()
        mine = [part for part, rank in zip(parts, ranks, strict=True) if rank == self.link.rank]
        answers = self.local.answers(order, mine, total)
        received = [a for data in self.link.gather(_packed(answers)) if data for a in _unpacked(data)]
        return received, *merged(self.link, total, self.exchanges[order.kind].total)

    def _cost(self, order: Order, part: Sequence[int]) -> int:
        """Estimate the cost of a chunk: samples per step times local steps."""
        sizes, most = self.task.clients.sizes, self.task.batch_size
        return sum(tau * min(sizes[c], most or sizes[c]) for c, tau in (order.cohort[p] for p in part))

    def _fetch(self, target: Mapping[int, int]) -> None:
        """Send the memory of clients to the processes that will train them."""
        rank, outgoing, moves = self.link.rank, [State() for _ in range(self.link.world)], False
        for client, to in target.items():
            at = self.staged.get(client, self.holder.get(client, to))
            moves |= at != to
            if rank == at != to and self.local.remembers(client):
                outgoing[to] |= self.local.memory(client)
        if moves:
            for data in self.link.swap([pack(o, {}) for o in outgoing]):
                self.local.stage(unpack(data, "a message from another process")[0])
        self.staged |= target

    def _commit(self) -> None:
        rank = self.link.rank
        for client, now in self.staged.items():
            if now != rank:
                self.local.forget(client)
        self.local.commit()
        self.holder |= self.staged
        if rank == LEADER:
            self.unsaved = {c for c in {*self.unsaved, *self.staged} if self.holder[c] != LEADER}
        self.staged.clear()

    def _discard(self) -> None:
        self.local.discard()
        self.staged.clear()

    def _collect(self, clients: Sequence[int]) -> None:
        """Copy the memory of clients to the leader."""
        mine = [c for c in clients if self.holder[c] == self.link.rank and self.local.remembers(c)]
        found = {k: v for c in mine for k, v in self.local.memory(c).items()}
        for data in self.link.gather(pack(found, {})):
            if data:
                self.local.stage(unpack(data, "a message from another process")[0])
        if self.link.rank == LEADER:
            self.local.commit()

    def _recall(self) -> State:
        """Return the memory of all clients, at the leader."""
        holder, found = {**self.holder, **self.staged}, State()
        mine = [c for c, rank in holder.items() if rank == self.link.rank and self.local.remembers(c)]
        sent = {k: v for c in mine for k, v in self.local.memory(c).items()}
        for data in self.link.gather(pack(sent, {})) if self.remembers else ():
            found |= unpack(data, "a message of another process")[0] if data else {}
        return found

    def _restored(self, clients: Sequence[int]) -> None:
        self.holder = dict.fromkeys(clients, LEADER)
        self.staged.clear()

    def _outputs(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None) -> list[tuple[Tensor, Tensor]]:
        """Return (outputs, targets) for the whole test set; only valid in the leader."""
        parts = evaluation_parts(len(test))
        ranks = deal([len(part) for part in parts], self.link.world)
        mine = [part for part, rank in zip(parts, ranks, strict=True) if rank == self.link.rank]
        found = {}
        if mine:
            parts_of_all = zip(*self.local.outputs(x, stats, test, mine, scaling), strict=True)
            output, targets = (torch.cat(v) for v in parts_of_all)
            found = {"output": output, "targets": targets}
        results = [
            unpack(data, "a message from another process")[0] for data in self.link.gather(pack(found, {})) if data
        ]
        return [(r["output"].to(x.device), r["targets"].to(x.device)) for r in results if r]


def deal(costs: Sequence[float], world: int) -> list[int]:
    """Assign contiguous chunks to ranks, balanced by cost; contiguous ones keep few nodes of the sum's tree open."""
    whole, before, ranks = sum(costs), 0.0, []
    for cost in costs:
        ranks.append(min(world - 1, int(world * (before + cost / 2) / whole)))
        before += cost
    return ranks


def merged(link: Link, total: Aggregator, start: Callable[[], Aggregator]) -> tuple[State, float]:
    """Return the aggregate of all processes and its weight, in the leader. Each process merges a slice of all nodes."""
    nodes = sorted(total.nodes.items())
    layout = {k: (str(v.dtype), v.numel()) for _, node in nodes[:1] for k, v in node.fields.items()}
    mine = {"nodes": [(*place, node.weight) for place, node in nodes], "layout": layout}
    told = [json.loads(data) for data in link.swap([json.dumps(mine).encode()] * link.world)]
    layout = next((t["layout"] for t in told if t["layout"]), {})
    fields, weight = State(), 0.0
    for dtype in sorted({dtype for dtype, _ in layout.values()}):
        sizes = {k: n for k, (d, n) in layout.items() if d == dtype}
        numbers = sum(sizes.values())
        rows = [torch.cat([node.fields[k].reshape(-1) for k in sizes]) for _, node in nodes]
        like = torch.empty(0, dtype=getattr(torch, dtype.removeprefix("torch.")), device=link.device)
        edges = [numbers * rank // link.world for rank in range(link.world + 1)]
        own = edges[link.rank + 1] - edges[link.rank]
        pieces = [torch.cat([row[a:b] for row in rows] or [like]) for a, b in pairwise(edges)]
        slices = start()
        for t, part in zip(told, link.swap_vectors(pieces, [own * len(t["nodes"]) for t in told]), strict=True):
            for (level, position, w), row in zip(t["nodes"], part.view(len(t["nodes"]), own), strict=True):
                slices.place(level, position, Node(w, {"slice": row}))
        found, weight = slices.finish()
        lengths = [b - a for a, b in pairwise(edges)] if link.rank == LEADER else [0] * link.world
        whole = link.swap_vectors([found["slice"] if r == LEADER else like for r in range(link.world)], lengths)
        if link.rank == LEADER:
            fields |= zip(sizes, torch.split(torch.cat(whole), list(sizes.values())), strict=True)
    return fields, weight


def _packed(answers: Sequence[Answer]) -> bytes:
    return json.dumps([{**vars(a), "lost": list(a.lost.items())} for a in answers]).encode()


def _unpacked(data: bytes) -> list[Answer]:
    return [Answer(**{**a, "lost": dict(a["lost"]), "refused": Counter(a["refused"])}) for a in json.loads(data)]
