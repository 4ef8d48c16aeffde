"""Attacks by a node of a Flower federation: rubbish at the roll call, and instead of an upload."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Message

from fedstride.engine import flower
from tests.engine.grid import Grid
from tests.engine.test_flower import BAD, PROJECT, a_grid, settings, spoiled
from tests.engine.test_flower_hostile import CALL, EXTRA
from tests.hostile.row import Seen

Change = Callable[[Message], Message]


@dataclass(frozen=True)
class Node:
    """An attack by one node."""

    what: str
    grid: Callable[[], Grid]
    lost: list[int]
    expected = "the run ends; at most this node is lost"

    @property
    def name(self) -> str:
        return self.what

    def run(self) -> Seen:
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            try:
                run = flower.train(PROJECT, self.grid(), settings(algorithm="fednova", deadline=20))
            finally:
                os.chdir(here)
        lost = run.history["lost"]
        return Seen(lost == self.lost, f"clients lost per round: {lost}, {run.history[1]['refused'] or 'none refused'}")


def calling(change: Change) -> Grid:
    """A node that comes first, claims the number of another one, and answers the roll call with rubbish."""
    grid = a_grid()
    grid.nodes[99] = {"partition-id": 2}
    grid.online.add(99)
    grid.spoil = lambda reply: (
        change(reply) if reply.metadata.src_node_id == 99 and reply.metadata.message_type == "query.about" else reply
    )
    return grid


ATTACKS = [
    *(Node(f"roll call: {k}", lambda v=v: calling(v), [0, 0, 0]) for k, v in CALL.items()),
    *(Node(f"upload: {k}", lambda v=v: spoiled(a_grid(), 2, v), [0, 1, 0]) for k, v in EXTRA.items()),
    *(
        Node(f"upload: {k}", lambda v=v: spoiled(a_grid(), 2, v), [0, 1, 0])
        for k, v in BAD.items()
        if "update" not in k
        and not k.startswith(
            ("wrong shape: t", "wrong shape: f", "wrong shape: a m", "too", "not finite", "corrupt: r")
        )
    ),
]
