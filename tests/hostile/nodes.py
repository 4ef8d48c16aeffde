"""Attacks by a node of a Flower federation: rubbish at the roll call, instead of an upload, and in secure sums."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from fedstride.engine import flower
from fedstride.flower import DeltaSGD, FedExP, Strategy
from tests.engine.grid import Grid
from tests.engine.test_flower import BAD, PROJECT, a_grid, settings, spoiled
from tests.engine.test_flower_hostile import CALL, EXTRA, NEEDED
from tests.engine.test_flower_hostile import calling as needed
from tests.engine.test_flower_replies import Stuck
from tests.engine.test_flower_secure_hostile import ATTACKS as SHARES
from tests.engine.test_flower_secure_hostile import FALSE, MANY
from tests.flower import test_hostile as strategies
from tests.flower.quickstart import fedstride_client, initial, unchanged_client
from tests.hostile.row import Seen

Change = Callable[[Message], Message]
TAKEN = "another client's number"  # costs that client, because the node comes first and keys are not used here


@dataclass(frozen=True)
class Node:
    """An attack by one node."""

    what: str
    grid: Callable[[], Grid]
    lost: list[int]
    secure: bool = False
    seconds: float = math.inf  # in which the run must end
    clients: int = 4
    quorum: float | None = None
    expected = "the run ends; at most one client is lost, or as many as the row says"

    @property
    def name(self) -> str:
        return self.what

    def run(self) -> Seen:
        here, given = os.getcwd(), {"secure": "10, effective_steps=100"} if self.secure else {}
        given |= {} if self.quorum is None else {"quorum": self.quorum}
        deadline, start = 2 if self.seconds < math.inf else 20, time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            try:
                project = PROJECT if self.clients == 4 else MANY
                options = settings(algorithm="fednova", deadline=deadline, clients=self.clients, **given)
                run = flower.train(project, self.grid(), options)
            finally:
                os.chdir(here)
        lost, took = run.history["lost"], time.monotonic() - start
        refused = f"{run.history[1]['refused'] or 'none refused'}"
        late = "" if self.seconds == math.inf else f", within {self.seconds:.0f} s: {took < self.seconds}"
        return Seen(lost == self.lost and took < self.seconds, f"clients lost per round: {lost}, {refused}{late}")


@dataclass(frozen=True)
class OfAStrategy:
    """An attack by one of the three nodes of a strategy of fedstride.flower."""

    what: str
    change: Callable[[RecordDict], None]
    client: Callable[[], ClientApp]
    rule: Callable[..., Strategy]
    junk: int = 0  # bytes that it sends, which must be counted
    expected = Node.expected

    @property
    def name(self) -> str:
        return f"strategy: {self.what}"

    def run(self) -> Seen:
        strategy = self.rule(fraction_evaluate=0.0)
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
            strategy.start(strategies.spoiled("train", self.change, self.client), initial(), num_rounds=3, timeout=60)
        lost, counted = strategy.history["lost"], all(n > self.junk for n in strategy.history["bytes_up"])
        told = f", junk counted: {counted}" if self.junk else ""
        return Seen(lost == [1] * 3 and counted, f"clients lost per round: {lost}{told}")


def calling(change: Change) -> Grid:
    """A node that comes first, claims the number of another one, and answers the roll call with rubbish."""
    grid = a_grid()
    grid.nodes[99] = {"partition-id": 2}
    grid.online.add(99)
    grid.spoil = lambda reply: (
        change(reply) if reply.metadata.src_node_id == 99 and reply.metadata.message_type == "query.about" else reply
    )
    return grid


def stuck_at_the_roll_call() -> Grid:
    grid = a_grid()
    grid.nodes[99] = {"partition-id": 2}
    return Stuck(grid, "query.about", 99, 60)


def claiming(samples: int) -> Grid:
    """A node that is needed, and changes its number of samples after it was replaced."""
    grid = a_grid()

    def change(reply: Message) -> Message:
        if (reply.metadata.group_id, reply.metadata.src_node_id) == ("0", 102):
            grid.nodes[200] = grid.nodes[102]
            grid.online = (grid.online | {200}) - {102}
        if reply.metadata.src_node_id == 200:
            reply.content["about"]["samples"] = samples
        return reply

    grid.spoil = change
    return grid


ATTACKS = [
    *(Node(f"roll call: {k}", lambda v=v: calling(v), [int(k == TAKEN)] * 3) for k, v in CALL.items()),
    *(
        Node(
            f"roll call of a run with a quorum, by a node that it needs: {k}",
            lambda k=k: needed(k, 100),
            [1] * 3,
            quorum=0.5,
            seconds=50,
        )
        for k in NEEDED
    ),
    *(Node(f"upload: {k}", lambda v=v: spoiled(a_grid(), 2, v), [0, 1, 0]) for k, v in EXTRA.items()),
    *(
        Node(f"upload: {k}", lambda v=v: spoiled(a_grid(), 2, v), [0, 1, 0])
        for k, v in BAD.items()
        if "update" not in k
        and not k.startswith(
            ("wrong shape: t", "wrong shape: f", "wrong shape: a m", "too", "not finite", "corrupt: r")
        )
    ),
    Node("upload that never ends", lambda: Stuck(a_grid(), "train.updates", 102, 60), [1, 1, 1], seconds=50),
    Node("roll call: an upload that never ends", stuck_at_the_roll_call, [0, 0, 0], seconds=50),
    Node("a node that returns with more samples", lambda: claiming(10**6), [0, 1, 1]),
    *(Node(f"secure sum: {k}", grid, [len(refused)] * 3, secure=True) for k, (grid, refused) in SHARES.items()),
    *(
        Node(f"secure sum of seven: {k} (no protocol names it, so three are left out)", grid, [3] * 3, True, clients=7)
        for k, grid in FALSE.items()
    ),
    OfAStrategy("2 MB of junk beside a model", strategies.junk, unchanged_client, FedExP, junk=2_000_000),
    OfAStrategy("a model that is not finite", strategies.not_finite, unchanged_client, FedExP),
    *(
        OfAStrategy(f"roll call: {what}", change, lambda: fedstride_client(local_steps=2), DeltaSGD)
        for what, change in {
            "10^5000 local steps": strategies.steps,
            "deep JSON": strategies.unreadable,
            "no number": strategies.unnumbered,
            "another model": strategies.other_model,
        }.items()
    ),
]
