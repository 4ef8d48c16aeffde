"""The clients of a strategy as nodes of the Flower engine: those that call fedstride.flower.train, and unchanged ones."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedstride.client.exchange import Upload
from fedstride.core.errors import InvalidInput
from fedstride.core.rows import sq
from fedstride.data.federation import Found
from fedstride.engine.flower import records
from fedstride.engine.flower.about import About
from fedstride.engine.flower.nodes import REASONS, Nodes, log
from fedstride.engine.flower.replies import Replies
from fedstride.engine.flower.server import look_at_counts
from fedstride.engine.protocol import Order
from fedstride.flower.layout import Layout, difference, tensors_of

ORDER = "fedstride"  # the record that tells a client what is asked for: "about", "gradients" or "updates"
LOSSES = ("train_loss", "train-loss", "loss")  # metrics of unchanged clients that are the training loss
LARGEST = 1e15  # number of samples that a client may claim
MORE = 2**20  # bytes of metrics and headers in a reply


@dataclass
class Relay:
    """A grid that sends the engine's orders as ordinary train messages: arrays and config, and the order beside them."""

    grid: Grid
    names: tuple[str, str]  # of the records with the arrays and the configuration
    arrays: ArrayRecord
    config: ConfigRecord
    needs: str  # the rule, for the error about clients that do not know orders
    gathering: bool = True
    wrong: dict[int, str] = field(default_factory=dict)  # nodes that did not describe themselves, and why
    replies: Replies = field(init=False)  # to ordinary messages

    def __post_init__(self) -> None:
        self.replies = Replies(self.grid)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages([self.ordinary(message) for message in messages])

    def pull_messages(self, keys: Iterable[str]) -> Iterable[Message]:
        replies = list(self.grid.pull_messages(list(keys)))
        if self.gathering:
            self._check(replies)
        return replies

    def ordinary(self, message: Message) -> Message:
        """Return an order as a train message."""
        about, (arrays, config) = message.metadata, self.names
        kind = about.message_type.partition(".")[2]
        content = RecordDict({arrays: self.arrays, config: self.config, ORDER: ConfigRecord({"kind": kind})})
        content.update({name: part for name, part in message.content.items() if name != "model"})
        return Message(content, about.dst_node_id, "train", ttl=about.ttl, group_id=about.group_id)

    def _check(self, replies: Sequence[Message]) -> None:
        """Raise an error if no node can describe itself, instead of waiting for one that can."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self.wrong[node] = f"node {node}: its app crashed: {records.shown(reply.error.reason)}"
                continue
            problem = records.problem(reply.content)
            if problem is not None:
                self.wrong[node] = f"node {node}: {problem['text']}"
            elif "about" not in reply.content:
                got = ", ".join(sorted(map(repr, reply.content))) or "no records"
                self.wrong[node] = (
                    f"node {node}: its reply has {got} and not 'about'. {self.needs} needs clients that take its steps: return "
                    "fedstride.flower.train(msg, context, model, loss, data) from the function under @app.train()."
                )
        nodes = set(self.grid.get_node_ids())
        if nodes and nodes <= self.wrong.keys():
            raise InvalidInput(self.wrong[min(nodes)])


@dataclass
class Members(Nodes):
    """Clients that call fedstride.flower.train. Replies that Flower's loop has received are handed over."""

    handed: list[Message] | None = None
    pauses: tuple[float, ...] = ()  # a round's first replies are collected by Flower's loop
    there: set[int] = field(default_factory=set)  # the clients that were online when the round was configured

    @property
    def relay(self) -> Relay:
        return cast(Relay, self.grid)

    @property
    def steps(self) -> list[int]:
        """Local steps of each client in a round."""
        known = {client: _whole(about.identity.get("steps"), client) for client, about in self.abouts.items()}
        return [known.get(client, 1) for client in range(self.clients)]  # those that are left out take none

    @property
    def batch_size(self) -> int | None:
        """The clients' batch size, None if they differ: it is only used to order them."""
        sizes = {about.identity.get("batch size") for about in self.abouts.values()}
        (only, *others) = sizes
        return None if others or only in (None, "None") else _whole(only, 0)

    def _nobody_else(self, missing: Sequence[int]) -> bool:
        """Whether all nodes that were connected have answered."""
        return len(self.at) + len(self.useless) + len(self.rivals) >= self.clients

    def _unfit(self, about: About, node: int) -> str | None:
        try:
            _whole(about.identity.get("steps"), about.client)
        except InvalidInput as error:
            return str(error)
        return super()._unfit(about, node)

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as they are sent."""
        return [self.relay.ordinary(message) for message in messages]

    def online(self, cohort: Collection[int], seconds: float) -> set[int]:
        if self.handed is None:
            self.there = super().online(cohort, seconds)
        return self.there

    def ask(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, RecordDict | str]]:
        came = _by_node(_exchanged(self, messages, seconds))
        for i, message in enumerate(messages):
            yield i, outcome(came.get(message.metadata.dst_node_id))


@dataclass
class Unchanged(Nodes):
    """Clients with a training loop of their own, which return their arrays and their number of samples."""

    layout: Layout = field(kw_only=True)
    weights: list[float] = field(kw_only=True)  # one per client; the reply tells
    key: str | None = field(kw_only=True)  # metric that weighs the client; None: all weigh the same
    handed: list[Message] | None = None
    pauses: tuple[float, ...] = ()  # the order of the replies is not that of the messages
    lately: list[RecordDict] = field(default_factory=list)  # the last usable replies
    received: int = 0  # bytes of all replies, unusable ones included

    @property
    def found(self) -> Found:
        return Found(None, self.layout.buffers, random=False)

    @property
    def relay(self) -> Relay:
        return cast(Relay, self.grid)

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as they are sent: arrays and config, nothing else."""
        relay = self.relay
        content = RecordDict(dict(zip(relay.names, (relay.arrays, relay.config), strict=True)))
        sent = [(m.metadata.dst_node_id, m.metadata.ttl, m.metadata.group_id) for m in messages]
        return [Message(content, node, "train", ttl=ttl, group_id=group) for node, ttl, group in sent]

    def online(self, cohort: Collection[int], seconds: float) -> set[int]:
        return set(cohort)

    def ask(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, RecordDict | str]]:
        """Convert the replies to uploads.

        Uploads are numbered in the order of their content: in a simulation, Flower gives its nodes other numbers in every
        run, and sums must not depend on them.
        """
        came = _by_node(_exchanged(self, messages, seconds))
        self.received += sum(records.size(reply.content) for reply in came.values() if reply.has_content())
        sent = self.layout.rows(tensors_of(self.relay.arrays, "arrays"))
        good: list[tuple[bytes, float, Tensor, Tensor, RecordDict, int]] = []
        bad: list[str] = []
        wrong: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            content = outcome(came.get(node))
            if isinstance(content, str):
                bad.append(content)
                continue
            try:
                good.append((*self._read(content), node))
            except InvalidInput as error:
                bad.append("wrong shape")
                wrong.append(f"node {node}: {error}")
                log.warning("%s", wrong[-1])
        if wrong and not good:  # another attempt would not help
            raise InvalidInput(wrong[0])
        good.sort(key=lambda one: one[:2])
        if self.key is not None and good:
            look_at_counts([weight for _, weight, *_ in good], lambda i: f"node {good[i][-1]}", 'weights="samples"')
        self.lately = [content for *_, content, _ in good]
        for i, (_, weight, x, stats, content, _) in enumerate(good):
            order = records.order_of(messages[i].content, "updates", torch.device("cpu"))
            self.weights[order.cohort[0][0]] = weight
            yield i, _upload(order, sent[0] - x, stats, content)
        yield from enumerate(bad, len(good))

    def _read(self, content: RecordDict) -> tuple[bytes, float, Tensor, Tensor, RecordDict]:
        """Return digest, weight and rows of a reply.

        Raises:
            InvalidInput: if the reply is not like that of a client of Flower's FedAvg.
        """
        size, most = records.size(content), 2 * sum(v.nbytes for v in self.layout.initial.values()) + MORE
        if size > most:
            raise InvalidInput(
                f"its reply has {size} bytes; expected at most {most}, twice those of the model and 1 MiB."
            )
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise InvalidInput(
                f"its reply has {len(content.array_records)} records of arrays and {len(content.metric_records)} of metrics; "
                f"expected one of each, with the metric {self.key or 'num-examples'!r}, as for Flower's FedAvg."
            )
        (record,), (metrics,) = content.array_records.values(), content.metric_records.values()
        found = tensors_of(record, "its reply")
        wrong = difference(found, self.layout.initial)
        if wrong is not None:
            raise InvalidInput(
                f"its reply: {wrong}; expected the arrays that it received, as in ArrayRecord(model.state_dict())."
            )
        weight = 1.0 if self.key is None else metrics.get(self.key)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= LARGEST:
            raise InvalidInput(
                f"its metric {self.key!r} is {records.shown(weight)}; expected a positive number: the number of samples that it "
                "trained on. Or use weights='uniform'."
            )
        digest = hashlib.blake2b(b"".join(found[name].contiguous().numpy().tobytes() for name in sorted(found)))
        return digest.digest(), float(weight), *self.layout.rows(found), content


def _exchanged(nodes: Members | Unchanged, messages: Sequence[Message], seconds: float) -> Iterable[Message]:
    """Return the replies that were handed over, or send the messages and wait for replies."""
    replies, nodes.handed = nodes.handed, None
    if replies is None:
        replies = nodes.relay.replies.send_and_receive(nodes.messages(messages), seconds)
    return replies


def _by_node(replies: Iterable[Message]) -> dict[int, Message]:
    return {reply.metadata.src_node_id: reply for reply in replies}


def outcome(reply: Message | None) -> RecordDict | str:
    """Return the content of a reply, or the reason why there is none."""
    if reply is None:
        return "late"
    if not reply.has_error():
        return reply.content
    log.warning("node %d: %s", reply.metadata.src_node_id, records.shown(reply.error.reason))
    return REASONS.get(reply.error.code, "no answer")


def _upload(order: Order, update: Tensor, stats: Tensor, content: RecordDict) -> RecordDict:
    """Return the reply of an unchanged client as an upload of the engine. Costs that it does not report are 0."""
    fields = {"update": update[None], "square": sq(update[None]), **({"stats": stats[None]} if len(stats) else {})}
    (metrics,) = content.metric_records.values()
    zero, one = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    loss = update.new_tensor([[loss_of(metrics) or 0.0]])
    costs = {"trials": zero, "failed": zero, "finite": one, "gradients": zero, "forwards": zero}
    found = {"train_loss": loss, "client_step": torch.zeros_like(loss), **costs}
    return records.uploaded(Upload(fields, found, {}, [(len(update) + len(stats)) * update.element_size()]), order)


def agreeing(contents: Sequence[RecordDict], key: str) -> list[int]:
    """Return the positions of replies whose metrics can be averaged with each other; key: the metric that weighs them.

    They have the names and lengths that most have, in one record, and only finite values: Flower's own mean raises an
    error if one reply differs, so that one node could end a run.
    """
    forms = [_form(content, key) for content in contents]
    counts = Counter(form for form in forms if form is not None)
    usual = max(counts, key=lambda form: (counts[form], form), default=None)
    found = [i for i, form in enumerate(forms) if form is not None and form == usual]
    if len(found) < len(contents):
        log.warning("the metrics of %d of %d replies cannot be averaged", len(contents) - len(found), len(contents))
    return found


def _form(content: RecordDict, key: str) -> tuple[str, tuple[tuple[str, int], ...]] | None:
    """Return the name of the record with metrics, and their names and lengths; None if they cannot be averaged."""
    if len(content.metric_records) != 1:
        return None
    ((record, metrics),) = content.metric_records.items()
    weight, values = metrics.get(key), [v if isinstance(v, list) else [v] for v in metrics.values()]
    if isinstance(weight, list | None) or not 0 < weight <= LARGEST or not all(map(math.isfinite, chain(*values))):
        return None
    return record, tuple(sorted((name, len(v) if isinstance(v, list) else -1) for name, v in metrics.items()))


def loss_of(metrics: Mapping[str, Any]) -> float | None:
    """Return the training loss among the metrics of a client, None if there is none."""
    known = [metrics[name] for name in LOSSES if isinstance(metrics.get(name), int | float)]
    return float(known[0]) if known and abs(known[0]) < LARGEST else None


def _whole(text: str | None, client: int) -> int:
    if text is None or not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= 10**9:
        raise InvalidInput(
            f"client {client} says that it takes {records.shown(text)} local steps; expected a whole number >= 1."
        )
    return int(text)
