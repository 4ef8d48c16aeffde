"""The server's view of the nodes: which client each one is, which are online, and their replies."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedstride.core.errors import InvalidInput, tell
from fedstride.data.federation import Found
from fedstride.engine.flower import records
from fedstride.engine.flower.about import PACKAGES, About, difference, mismatch, number_of, read_about, skew, who
from fedstride.engine.flower.replies import Replies

log = logging.getLogger("flwr.fedstride")  # a child of Flower's logger, which shows it
WAIT = 0.3  # seconds between checks of whether missing nodes have come
LOOK = 2.0  # seconds between checks of which nodes are online
SAY = 10.0  # seconds between log lines
ASK = 600.0  # seconds until a new node is asked again to identify itself
NAMED = 20  # clients that a log line lists
VERSIONS = (*PACKAGES, "torch", "python")  # that a node tells
AGAIN = ("crashed", "offline")  # reasons for which a node is asked again in the same exchange
REASONS = {1: "crashed", 2: "crashed", 5: "offline", 6: "crashed", 7: "crashed", 8: "crashed"}  # Flower's codes


@dataclass
class Nodes:
    """The nodes of a run. expected(moving) returns what a node must have in common with the server."""

    grid: Grid
    settings: str  # JSON: the run's configuration, sent to all nodes
    clients: int
    expected: Callable[[tuple[str, ...]], Mapping[str, str]]
    bound: bool = False  # whether a client stays with its first node: with keys, a restarted node keeps its id
    at: dict[int, int] = field(default_factory=dict)  # client: node
    abouts: dict[int, About] = field(default_factory=dict)  # by client
    asked: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # message: node that was asked who it is, and when
    rivals: dict[int, About] = field(default_factory=dict)  # additional nodes of clients whose node is still online
    useless: set[int] = field(default_factory=set)  # nodes that cannot be used, until they connect again
    unfit: dict[int | None, str] = field(default_factory=dict)  # why, by client; None: of nodes without a valid number
    left_out: set[int] = field(default_factory=set)  # clients without a node at the start: they take no part in the run
    gathered: bool = False
    refused: Callable[[int, str], object] = lambda node, why: None  # told about nodes that are left out, and why
    pauses: tuple[float, ...] = (1.0, 3.0)  # seconds before a node that crashed or left is asked again, in one exchange
    replies: Replies = field(init=False)

    def __post_init__(self) -> None:
        self.replies = Replies(self.grid)

    @property
    def sizes(self) -> list[int]:
        """Number of samples of each client; of one that is left out, as if it were the median client."""
        known = {client: about.samples for client, about in self.abouts.items()}
        return [known.get(client, int(median(known.values()))) for client in range(self.clients)]

    @property
    def found(self) -> Found:
        """Result of the trial run of the model that most clients had; of several, that of the largest client."""
        counts = Counter(about.found for about in self.abouts.values())
        return max(self.abouts.values(), key=lambda about: (counts[about.found], about.samples, -about.client)).found

    def label(self, client: int) -> str:
        """Return a client's number, with the name that its node gave itself, for messages."""
        about = self.abouts.get(client)
        return f"client {client}" + (f" ({about.name})" if about is not None and about.name else "")

    def versions(self, client: int) -> dict[str, str]:
        """Return the versions of a client's software, as its node says."""
        known = self.abouts[client].identity
        return {name: records.shown(known[name])[:30] for name in VERSIONS if name in known}

    def bind(self, before: Mapping[int, int]) -> None:
        """Give the clients of a run that continues their earlier nodes again, if a client stays with its first node."""
        for client, node in before.items():
            if self.bound and self.at.get(client, node) != node:
                tell(
                    f"{self.label(client)} was node {node} in this run, and is node {self.at[client]} now; bound=true: the run "
                    "continues without it until the first one returns. If it has a new key, continue with bound=false."
                )
                self.at[client] = node

    def log_lost(self, round: int, lost: Mapping[int, str]) -> None:
        """Log the clients that were lost in an exchange, and why."""
        if lost:
            names = [f"{self.label(client)}: {why}" for client, why in sorted(lost.items())[:NAMED]]
            log.warning(
                "round %d: lost %d: %s",
                round + 1,
                len(lost),
                "; ".join([*names, "..."][: len(lost)]),
                extra={"facts": {"round": round + 1, "lost": dict(lost)}},
            )

    def gather(self, seconds: float, least: int | None = None) -> None:
        """Wait until every client has a node.

        Args:
            seconds: how long.
            least: with so many clients, start without those whose node is unusable, and after this time without those
                that have none. None: the run needs all.

        Raises:
            InvalidInput: if a node cannot be used, or if clients are missing after this time, and the others are too few.
        """
        end, said = time.monotonic() + seconds, time.monotonic()
        self._update(log.warning)
        while missing := self._missing():
            now, nobody = time.monotonic(), self._nobody_else(missing)
            if nobody or now > end:
                missing += self._odd()
                if least is not None and len(self.at) >= least:
                    self._start_without(missing)
                    break
            few = "To start without such clients, set quorum, for example quorum=0.8."
            if least is not None:
                few = f"{len(self.at)} of {self.clients} clients have a usable node; expected at least {least}."
            if nobody:
                raise InvalidInput(" ".join([*(self.unfit[c] for c in missing[:NAMED] if c in self.unfit), few]))
            if now > end:
                raise InvalidInput(
                    f"clients={self.clients}, but after {seconds:g} s there is no node for client(s) "
                    f"{', '.join(map(str, missing[:NAMED]))}. Start their nodes, with --node-config 'client=NUMBER' from 0, "
                    f"or ask for fewer clients. {' '.join([*self.unfit.values(), few])}"
                )
            if now > said + SAY:
                said = now
                log.info("%d of %d clients are connected; waiting for %s", len(self.at), self.clients, missing[:NAMED])
            time.sleep(WAIT)
            self._update(log.warning)
        self.gathered = True

    def _missing(self) -> list[int]:
        """Return the clients without a usable node. Once all have one, they are compared with each other."""
        missing = [client for client in range(self.clients) if client not in {*self.at, *self.left_out}]
        return missing or self._odd()

    def _nobody_else(self, missing: Sequence[int]) -> bool:
        """Whether there is nobody to wait for."""
        return all(client in self.unfit for client in missing)

    def _odd(self) -> list[int]:
        """Leave out clients whose samples or model differ from those of most, and return them."""
        if not self.abouts:
            return []
        counts = Counter(about.common for about in self.abouts.values())
        usual = max(self.abouts.values(), key=lambda about: (counts[about.common], -about.client))
        odd = [about for about in self.abouts.values() if about.common != usual.common]
        for about in odd:
            node = self.at.pop(about.client)
            self._leave_out(node, about.client, difference(about, node, usual), log.warning)
            del self.abouts[about.client]
        return [about.client for about in odd]

    def _start_without(self, missing: Sequence[int]) -> None:
        self.left_out |= set(missing)
        why = " ".join(self.unfit[client] for client in (*missing[:NAMED], None) if client in self.unfit)
        names = ", ".join(map(str, missing[:NAMED]))
        tell(
            f"the run starts without client(s) {names}, which take no part in it: they have no usable node. {why}".rstrip()
        )

    def online(self, cohort: Collection[int], seconds: float) -> set[int]:
        """Return the clients of a cohort whose nodes are online; wait for the others if less than half are."""
        end = time.monotonic() + seconds
        while True:
            there = self._update(tell)
            found = {client for client in cohort if self.at.get(client) in there}
            if 2 * len(found) >= len(cohort) or time.monotonic() > end:
                return found
            time.sleep(WAIT)

    def ask(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, RecordDict | str]]:
        """Send messages, and yield (index of a message, its reply or the reason why there is none) as replies arrive."""
        if not messages:
            return
        pending: dict[str, int] = {}
        for i, key in enumerate(list(self.grid.push_messages(list(messages)))):
            if key:
                pending[key] = i
            else:
                yield i, "offline"
        looked = said = start = time.monotonic()
        self.replies.start()
        while pending:
            over = time.monotonic() > start + seconds
            for reply in self.replies.last(pending) if over else self.replies.wait(pending):
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
                log.info("%d of %d replies have arrived", len(messages) - len(pending), len(messages))

    def _update(self, complain: Callable[[str], None]) -> set[int]:
        """Return the nodes that are online. Ask unknown nodes to identify themselves, without waiting for them."""
        there = set(self.grid.get_node_ids())
        self.asked = {key: asked for key, asked in self.asked.items() if asked[0] in there}
        self.rivals = {node: about for node, about in self.rivals.items() if node in there}
        self.useless &= there
        for node, about in list(self.rivals.items()):
            if self.at.get(about.client) not in there and not self.bound:
                self._take(node, self.rivals.pop(node))
        asked = {node for node, _ in self.asked.values()}
        new = sorted(there - {*self.at.values(), *asked, *self.rivals, *self.useless})
        if new:
            content = RecordDict({"run": ConfigRecord({"settings": self.settings})})
            keys = self.grid.push_messages([Message(content, node, "query.about", ttl=ASK) for node in new])
            self.asked |= {key: (node, time.time()) for key, node in zip(keys, new, strict=True) if key}
        for reply in self.replies.poll(list(self.asked)):
            if (known := self.asked.pop(reply.metadata.reply_to_message_id, None)) is not None:
                self._identify(*known, _content(reply, known[0]), there, complain)
        return there

    def _identify(
        self, node: int, sent: float, reply: RecordDict | str, there: set[int], complain: Callable[[str], None]
    ) -> None:
        if isinstance(reply, str):
            if reply == "crashed":
                self._leave_out(
                    node, None, f"node {node}: its app crashed when it was asked about its data; see its log.", complain
                )
            return  # otherwise it is asked again
        try:
            about = read_about(reply)
        except InvalidInput as error:
            return self._leave_out(node, number_of(reply), f"node {node}: {error}", complain)
        self.useless.add(node)
        if (wrong := skew(about.time, sent, time.time())) is not None:
            complain(f"{who(about, node)}: {wrong}")
        wrong, other = self._unfit(about, node), self.at.get(about.client)
        if wrong is not None:
            self._leave_out(node, about.client, wrong, complain)
        elif about.client >= self.clients:
            log.info("node %d is client %d, but clients=%d: ignored", node, about.client, self.clients)
        elif about.client in self.left_out:
            log.info("node %d is client %d, which was left out when this run started: ignored", node, about.client)
        elif other in there or (self.bound and other is not None):
            self.useless.remove(node)
            self.rivals[node] = about
            self.unfit[None] = (
                f"{self.label(about.client)} is node {other} and node {node}; expected one node per client. Give one of them "
                "another number, or wait: a node that was killed counts as online for a minute."
            )
            self.refused(node, self.unfit[None])
            complain(self.unfit[None])
        else:
            self.useless.remove(node)
            self._take(node, about)

    def _leave_out(self, node: int, client: int | None, why: str, complain: Callable[[str], None]) -> None:
        self.useless.add(node)
        self.unfit[client] = why
        self.refused(node, why)
        complain(why)

    def _take(self, node: int, about: About) -> None:
        self.at[about.client], self.abouts[about.client] = node, about
        self.unfit.pop(about.client, None)

    def _unfit(self, about: About, node: int) -> str | None:
        """Return why a node cannot be used, None if it can."""
        if (wrong := mismatch(about, node, self.expected(about.found.moving))) is not None:
            return wrong
        before = self.abouts.get(about.client)
        if before is not None and before.samples != about.samples:
            return f"{who(about, node)} reconnected with {about.samples} samples; expected {before.samples}, as before."
        first = next(iter(self.abouts.values()), about) if self.gathered else about
        return difference(about, node, first) if about.common != first.common else None


def _content(reply: Message, node: int) -> RecordDict | str:
    """Return the content of a reply, or the reason why there is none."""
    if not reply.has_error():
        return reply.content
    reason = REASONS.get(reply.error.code, "no answer")
    log.warning("node %d: %s: %s", node, reason, records.shown(reply.error.reason))
    return reason
