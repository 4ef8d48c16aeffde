"""The nodes of a federation, as the server sees them: who is which client, who is online, and what they answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedstride.core.errors import InvalidInput, tell
from fedstride.data.federation import Found
from fedstride.engine.flower import records

log = logging.getLogger("flwr.fedstride")  # Flower shows what is under its own name
TOGETHER = 64  # replies that are fetched in one call, and are in memory together
SHORT, LONG = 0.02, 0.3  # seconds from one look for replies to the next
LOOK = 2.0  # seconds from one look for who is online to the next
SAY = 10.0  # seconds from one line of progress to the next
ASK = 600.0  # seconds that a new node has to say who it is, until it is asked again
REASONS = {1: "crashed", 2: "crashed", 5: "offline", 6: "crashed", 7: "crashed", 8: "crashed"}  # Flower's codes


@dataclass(frozen=True)
class About:
    """What a node says of itself."""

    client: int
    samples: int
    found: Found
    kind: str  # shapes and types of an input and a target
    apart: bool  # the scales of its input features
    identity: dict[str, str]


@dataclass
class Nodes:
    """Who is which client. `expected` tells what a node must have in common with the server, given what moves in training."""

    grid: Grid
    settings: str  # JSON: what nodes build the run from
    clients: int
    expected: Callable[[tuple[str, ...]], Mapping[str, str]]
    at: dict[int, int] = field(default_factory=dict)  # client: node
    abouts: dict[int, About] = field(default_factory=dict)  # by client
    asked: dict[str, int] = field(default_factory=dict)  # nodes that were asked who they are, by message
    rivals: dict[int, About] = field(default_factory=dict)  # nodes for clients whose nodes are still online
    useless: set[int] = field(default_factory=set)  # other nodes

    @property
    def sizes(self) -> list[int]:
        return [self.abouts[client].samples for client in range(self.clients)]

    @property
    def found(self) -> Found:
        """As in one process, what the largest client found out."""
        return self.abouts[max(range(self.clients), key=self.sizes.__getitem__)].found

    def gather(self, seconds: float) -> None:
        """Wait until every client has a node."""
        end, said = time.monotonic() + seconds, time.monotonic()
        self._meet(_refuse)
        while len(self.at) < self.clients:
            now, missing = time.monotonic(), [client for client in range(self.clients) if client not in self.at]
            if now > end:
                raise InvalidInput(
                    f"clients={self.clients}, and after {seconds:g} s there is no node for client(s) "
                    f"{', '.join(map(str, missing[:20]))}. Start their nodes, with --node-config 'client=NUMBER' from 0, "
                    "or ask for fewer clients."
                )
            if now > said + SAY:
                said = now
                log.info("%d of %d clients are here; waiting for %s", len(self.at), self.clients, missing[:20])
            time.sleep(LONG)
            self._meet(_refuse)

    def online(self, cohort: Collection[int], seconds: float) -> set[int]:
        """Clients whose nodes are online. Where that is less than half of a cohort, the others are waited for."""
        end = time.monotonic() + seconds
        while True:
            there = self._meet(tell)
            found = {client for client in cohort if self.at.get(client) in there}
            if 2 * len(found) >= len(cohort) or time.monotonic() > end:
                return found
            time.sleep(LONG)

    def ask(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, RecordDict | str]]:
        """(number of a message, its reply or why there is none), as they come in.

        Only the first TOGETHER that are missing are looked for, until the time is over: the others wait at the SuperLink, so
        that a sum over their order has few gaps, and little to hold.
        """
        if not messages:
            return
        pending: dict[str, int] = {}
        for i, key in enumerate(list(self.grid.push_messages(list(messages)))):
            if key:
                pending[key] = i
            else:
                yield i, "offline"
        start, pause = time.monotonic(), SHORT
        looked = said = start
        while pending:
            over = time.monotonic() > start + seconds
            keys = list(pending) if over else list(pending)[:TOGETHER]
            for first in range(0, len(keys), TOGETHER):
                for reply in self.grid.pull_messages(keys[first : first + TOGETHER]):
                    number = pending.pop(reply.metadata.reply_to_message_id, None)
                    if number is not None:
                        yield number, _content(reply, messages[number].metadata.dst_node_id)
            now = time.monotonic()
            if pending and over:
                yield from ((i, "late") for i in pending.values())
                return
            if pending and now > looked + LOOK:
                looked, there = now, set(self.grid.get_node_ids())
                for key, i in list(pending.items()):
                    if messages[i].metadata.dst_node_id not in there:
                        del pending[key]
                        yield i, "offline"
            if pending and now > said + SAY:
                said = now
                log.info("%d of %d answers are in", len(messages) - len(pending), len(messages))
            if pending:
                time.sleep(pause)
                pause = min(LONG, 1.2 * pause)

    def _meet(self, complain: Callable[[str], None]) -> set[int]:
        """Who is online. Nodes that are not known are asked who they are, and not waited for."""
        there = set(self.grid.get_node_ids())
        self.asked = {key: node for key, node in self.asked.items() if node in there}
        self.rivals = {node: about for node, about in self.rivals.items() if node in there}
        for node, about in list(self.rivals.items()):
            if self.at[about.client] not in there:
                self._take(node, self.rivals.pop(node))
        new = sorted(there - {*self.at.values(), *self.asked.values(), *self.rivals, *self.useless})
        if new:
            content = RecordDict({"run": ConfigRecord({"settings": self.settings})})
            keys = self.grid.push_messages([Message(content, node, "query.about", ttl=ASK) for node in new])
            self.asked |= {key: node for key, node in zip(keys, new, strict=True) if key}
        for reply in self.grid.pull_messages(list(self.asked)) if self.asked else ():
            who = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if who is not None:
                self._know(who, _content(reply, who), there, complain)
        return there

    def _know(self, node: int, reply: RecordDict | str, there: set[int], complain: Callable[[str], None]) -> None:
        if isinstance(reply, str):
            if reply == "crashed":
                self.useless.add(node)
                complain(f"node {node}: its app crashed when it was asked about its data; its own log says why.")
            return  # else it is asked again
        self.useless.add(node)
        try:
            about = _about(reply)
        except InvalidInput as error:
            return complain(f"node {node}: {error}")
        wrong, other = self._unfit(about, node), self.at.get(about.client)
        if wrong is not None:
            complain(wrong)
        elif about.client >= self.clients:
            log.info("node %d is client %d, and clients=%d: it is left out", node, about.client, self.clients)
        elif other in there:
            self.useless.remove(node)
            self.rivals[node] = about
            complain(
                f"client {about.client} is node {other} and node {node}; expected one node for each client. Give one of them "
                "another number, or wait: a node that was killed counts as online for a minute."
            )
        else:
            self.useless.remove(node)
            self._take(node, about)

    def _take(self, node: int, about: About) -> None:
        self.at[about.client], self.abouts[about.client] = node, about

    def _unfit(self, about: About, node: int) -> str | None:
        """Why a node cannot be the client that it says it is."""
        who, before = f"client {about.client} (node {node})", self.abouts.get(about.client)
        for name, value in self.expected(about.found.moving).items():
            if about.identity.get(name) != value:
                return (
                    f"{who}: {name} there: {_short(about.identity.get(name))}; here: {_short(value)}. Expected the same "
                    "code and the same versions on the server and on all nodes."
                )
        if before is not None and before.samples != about.samples:
            return f"{who} is back with {about.samples} samples; expected {before.samples}, as before."
        for first in list(self.abouts.values())[:1]:
            if first.kind != about.kind:
                return f"{who} has samples of {about.kind}, client {first.client} of {first.kind}; expected the same."
            if (first.found.moving, first.found.random) != (about.found.moving, about.found.random):
                return f"{who}: the model there has other buffers or other randomness than at client {first.client}."
        return None


def _refuse(text: str) -> None:
    raise InvalidInput(text)


def _content(reply: Message, node: int) -> RecordDict | str:
    """What a node answers, or why it does not."""
    if not reply.has_error():
        return reply.content
    reason = REASONS.get(reply.error.code, "no answer")
    log.warning("node %d: %s: %s", node, reason, reply.error.reason)
    return reason


def _about(content: RecordDict) -> About:
    problem = records.problem(content)
    if problem is not None:
        raise InvalidInput(f"client {problem['client']}: {problem['text']}")
    try:
        facts = cast(dict[str, Any], content.config_records["about"])
        identity = {key: str(value) for key, value in content.config_records["identity"].items()}
        found = records.found_of(facts["found"])
        client, samples = records.client_number(facts), facts["samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"{samples!r} samples")
        apart = facts["scales far apart"] is True
        return About(client, samples, found, str(facts["kind of samples"]), apart, identity)
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"it does not say what it is ({error!r}).") from error


def _short(text: object, most: int = 300) -> str:
    shown = str(text)
    return shown if len(shown) <= most else f"{shown[:most]}..."
