"""The server's side of an exchange: send orders to nodes, check their uploads, and add them up as they arrive."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.client.chunk import Samples
from fedstride.client.exchange import MOMENTS, Exchange, Upload, layout
from fedstride.core.batch import moved
from fedstride.core.errors import Corrupt, InvalidInput, tell
from fedstride.core.files import read_tensors
from fedstride.core.model import Replica
from fedstride.core.normalise import scaled
from fedstride.core.rows import State, Vec
from fedstride.engine.admission import Rules, admit, rules_of
from fedstride.engine.evaluation import Scores, evaluation_parts, score
from fedstride.engine.flower import memory, records, secure
from fedstride.engine.flower.nodes import AGAIN, Nodes, log
from fedstride.engine.local import Answer, answer, replied
from fedstride.engine.protocol import Contents, Order, Reply, Task
from fedstride.engine.worker import context_of
from fedstride.training.checkpoint import newest
from fedstride.wire import Aggregator
from fedstride.wire.secure import Secure

GRACE = 60.0  # seconds that messages live beyond the deadline, because clocks differ


@dataclass(frozen=True)
class Flower:
    """Runs clients on the nodes of a Flower grid; fedstride.engine.flower.train creates it.

    Args:
        nodes: the nodes of the run, one per client.
        algorithm: the algorithm of the run, the same as on the nodes.
        deadline: seconds per exchange; later answers are lost.
        secure: bounds for secure aggregation, where the server sees only sums of uploads. None: no secure aggregation.
    """

    nodes: Nodes
    algorithm: Algorithm
    deadline: float = 600.0
    secure: Secure | None = None

    @property
    def leads(self) -> bool:
        return True

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> FlowerClients:
        return FlowerClients(self, task, exchanges, fresh)


class FlowerClients:
    """Clients on nodes. Their memory is on the nodes, under names that the server keeps."""

    def __init__(
        self, engine: Flower, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]
    ) -> None:
        self.engine, self.task, self.exchanges = engine, task, exchanges
        self.nodes = engine.nodes
        self.replica = Replica(task.model, task.moving)
        if self.replica.dtype == torch.bfloat16:
            raise InvalidInput(
                "model: Flower's arrays do not support bfloat16; use float32, optionally with precision=bfloat16."
            )
        if engine.secure is not None:
            statistics = len(self.replica.stats()) if task.buffers == "average" else 0
            kinds = [kind for kind in exchanges if kind != MOMENTS]  # checked by the nodes
            shapes, own = self.replica.shapes, task.personal
            uploads = [layout(engine.algorithm, kind, shapes, statistics, personal=own)[0] for kind in kinds]
            secure.check(engine.secure, engine.algorithm, uploads, len(task.clients))
        found = engine.nodes.found
        self.found, self.features = records.found_text(found), found.features
        local = ("statistics",) if task.buffers == "local" and task.moving else ()
        self.lasting = (*fresh(self.replica.row()), *local)  # names in the clients' lasting memory
        self.token, self.incarnation = secrets.token_hex(8), secrets.token_hex(4)
        self.kept: dict[int, str] = {}  # client: name of its memory; no entry: no memory
        self.staged: dict[int, str] = {}
        self.suspects = Counter[int]()  # client: how often a secure sum was possible only without its group
        self.failing = set[int]()  # clients that were asked again in vain
        self.held: list[dict[int, str]] = []  # the value of `kept` at the last checkpoints

    def about(self) -> dict[str, Any]:
        return {"engine": "flower", "oracle": "by each node", "chunk": 1, "nodes": len(self.nodes.at)}

    def exchange(self, order: Order) -> Reply:
        reply = self._exchange(order)
        self.nodes.log_lost(order.round, reply.lost)
        return reply

    def _exchange(self, order: Order) -> Reply:
        total, answers = self.exchanges[order.kind].total(), dict[int, Answer]()
        fields, metrics = self.layout(order)
        online = self.nodes.online([client for client, _ in order.cohort], self.engine.deadline)
        here = [position for position, (client, _) in enumerate(order.cohort) if client in online]
        if self.engine.secure is not None:
            return secure.exchange(self, order, self.engine.secure, here)
        for position, (client, _) in enumerate(order.cohort):
            if client not in online:
                answers[position] = self._absent(client, "offline", metrics)
        for position, reply in self._replies(order, here):
            client, _ = order.cohort[position]
            try:
                upload = records.admitted(self.usable(reply, order, client), order, client, fields, metrics)
                answers[position] = self._answer(upload, order, position, total)
            except records.Unusable as error:
                junk = 0 if isinstance(reply, str) else records.size(reply)
                answers[position] = self._absent(client, str(error), metrics, junk)
        return replied([answers[position] for position in sorted(answers)], *total.finish())

    def _replies(self, order: Order, positions: Sequence[int]) -> Iterator[tuple[int, RecordDict | str]]:
        """Yield the replies of the clients at these positions. Nodes that crash or leave are asked again, after pauses.

        A node for which that was in vain gets no second chance until it has answered once: rounds stay short without it.
        """
        end = time.monotonic() + self.engine.deadline
        for pause in (*self.nodes.pauses, None):
            failed: dict[int, RecordDict | str] = {}
            for i, reply in self.nodes.ask(self.messages(order, positions), max(0.0, end - time.monotonic())):
                client, _ = order.cohort[positions[i]]
                if reply in AGAIN and pause is not None and client not in self.failing:
                    failed[positions[i]] = reply
                    continue
                (self.failing.add if reply in AGAIN else self.failing.discard)(client)
                yield positions[i], reply
            if pause is None or not failed or time.monotonic() + pause > end:
                yield from failed.items()
                return
            log.info(
                "round %d: %d nodes crashed or left; asking them again in %g s", order.round + 1, len(failed), pause
            )
            time.sleep(pause)
            positions = list(failed)

    def layout(self, order: Order) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return the fields and metrics of an upload: see client.exchange.layout."""
        statistics = len(order.stats) if self.task.buffers == "average" else 0
        shapes, own = self.replica.shapes, self.task.personal
        return layout(self.engine.algorithm, order.kind, shapes, statistics, self.features, own)

    def messages(self, order: Order, positions: Sequence[int]) -> list[Message]:
        """Return the messages to the clients at some positions of the cohort."""
        known = order.kind != next(iter(self.exchanges))  # the round's first exchange has sent the model
        shared, keep, messages = records.ordered(order, known, self.task.personal), self._name(order), []
        for client, steps in (order.cohort[position] for position in positions):
            base = self.staged.get(client, self.kept.get(client, ""))
            names = {base, self.kept.get(client, ""), *(held.get(client, "") for held in self.held)}
            retain = tuple(sorted(names - {""}))
            errand = records.Errand(self.nodes.settings, self.found, self.token, base, keep, retain)
            content = records.sent(shared, order, client, steps, errand)
            kind, seconds = f"train.{order.kind}", self.engine.deadline + GRACE
            messages.append(Message(content, self.nodes.at[client], kind, group_id=str(order.round), ttl=seconds))
        return messages

    def usable(self, reply: RecordDict | str, order: Order, client: int) -> RecordDict:
        """Return a node's reply.

        Raises:
            Unusable: if there is none, or if the node reports a problem.
        """
        if isinstance(reply, str):
            raise records.Unusable(reply)
        problem = records.problem(reply)
        if problem is None:
            return reply
        text = f"{self.nodes.label(client)}, round {order.round + 1}: {problem['text']}"
        if problem["kind"] != memory.MemoryLost.__name__:
            log.warning("%s", text)
            raise records.Unusable("crashed")
        tell(f"{text} The client continues without memory.")
        names = self.staged if client in self.staged else self.kept
        names.pop(client, None)
        raise records.Unusable("memory lost")

    def remembered(self, order: Order, clients: Sequence[int]) -> None:
        """Stage the memory that these clients have written, after their answers were admitted."""
        if not self.exchanges[order.kind].remembers:
            return
        something = bool(self.lasting) or order.kind == "gradients"
        self.staged |= dict.fromkeys(clients, self._name(order) if something else "")

    def _answer(self, upload: Upload, order: Order, position: int, total: Aggregator) -> Answer:
        client, _ = order.cohort[position]
        found = admit(upload, [client], order.round, self.rules(order, position))
        if found.rows:
            self.remembered(order, [client])
            total.add_rows(position, [self.task.weights[client]], found.fields)
        square = "square" in self.engine.algorithm.needs and order.kind == "updates"
        return answer(found, [position], upload.bytes[0] + square * order.x.element_size())  # as other engines count

    def rules(self, order: Order, position: int) -> Rules:
        """Return what the upload of the client at a position of the cohort must satisfy."""
        exchange, member = self.exchanges[order.kind], order.cohort[position]
        context = context_of(self.task, order, [member], [self.task.clients.sizes[member[0]]])
        known = {} if exchange.known is None else exchange.known(context)
        return rules_of(exchange, self.task.loss, self.replica.stats_floor(), order.limits, known)

    def _absent(self, client: int, why: str, metrics: tuple[str, ...], bytes: int = 0) -> Answer:
        return Answer([], {name: [] for name in (*metrics, "square")}, {client: why}, Counter([why]), bytes)

    def _name(self, order: Order) -> str:
        return memory.name(order.round, order.call, self.incarnation)

    def commit(self) -> None:
        self.kept = {client: name for client, name in {**self.kept, **self.staged}.items() if name}
        self.staged.clear()

    def discard(self) -> None:
        self.staged.clear()

    def evaluate(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None = None) -> Scores:
        replica = self.replica
        replica.bind(x)
        replica.bind_stats(stats)
        replica.module.eval()
        mixed = torch.autocast(replica.device.type, torch.bfloat16) if self.task.mixed else nullcontext()

        def outputs(index: Tensor) -> tuple[Any, Any]:
            inputs, targets = (moved(part, replica.device) for part in test.take(index))
            inputs = inputs if scaling is None else scaled(inputs, scaling)
            with torch.no_grad(), mixed:
                return replica(inputs), targets

        return score(self.task.loss, self.task.metrics, [outputs(index) for index in evaluation_parts(len(test))])

    def recall(self) -> None:
        """Return None: the clients' memory stays at their nodes."""

    def state(self) -> dict[str, Tensor]:
        """Return the names of the clients' memory, for this checkpoint and the kept ones before it, and the nodes."""
        self.held = [*self.held, dict(self.kept)][-self.task.keep :]
        known = {"names": self.held, "nodes": self.nodes.at}
        return {"token": _bytes(self.token), **{name: _bytes(json.dumps(facts)) for name, facts in known.items()}}

    def restore(self, state: dict[str, Tensor]) -> None:
        try:
            token, names = (bytes(state[name].numpy()).decode() for name in ("token", "names"))
            held = [{int(client): str(name) for client, name in part.items()} for part in json.loads(names)]
            self.kept = dict(held[-1])
        except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Corrupt(f"checkpoint: it does not contain the client memory of a Flower run ({error!r}).") from error
        before = _nodes(state, "nodes") if "nodes" in state else {}
        self.token, self.held = token, held
        self.staged.clear()
        self.nodes.bind(before)

    def close(self, outcome: Contents | None = None) -> None:
        """Do nothing: the nodes go on running."""


def left_out(folder: Path, clients: int) -> set[int]:
    """Return the clients that were left out when a run started, from its newest checkpoint; none without a checkpoint."""

    def read(path: Path) -> set[int]:
        tensors, _ = read_tensors(path)
        return set(range(clients)) - set(_nodes(tensors, "clients/nodes")) if "clients/nodes" in tensors else set()

    return newest(folder, read) or set()


def _nodes(state: Mapping[str, Tensor], name: str) -> dict[int, int]:
    """Return the nodes of the clients in a checkpoint.

    Raises:
        Corrupt: if there are none.
    """
    try:
        found = json.loads(bytes(state[name].numpy()))
        return {int(client): int(node) for client, node in found.items()}
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Corrupt(f"checkpoint: it does not contain the nodes of a Flower run ({error!r}).") from error


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
