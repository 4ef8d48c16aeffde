"""Uploads that take long or never end: they cost their own node, and no more time than the deadline."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("flwr")

from fedstride.engine import flower
from fedstride.engine.flower import replies
from tests.engine.grid import Grid
from tests.engine.test_flower import PROJECT, a_grid, folder, settings  # noqa: F401 (a fixture)
from tests.problems import same_bits

pytestmark = pytest.mark.usefixtures("folder")


class Stuck(Grid):
    """A grid whose call for replies returns only when the uploads of all of them have ended."""

    def __init__(self, grid: Grid, kind: str, node: int, seconds: float) -> None:
        super().__init__(grid.app, grid.nodes)
        self.kind, self.node, self.seconds = kind, node, seconds
        self.closed = threading.Event()

    def pull_messages(self, keys):
        found = super().pull_messages(keys)
        for reply in found:
            if (reply.metadata.src_node_id, reply.metadata.message_type) == (self.node, self.kind):
                self.closed.wait(self.seconds)
        return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(replies, "PATIENCE", 0.3)


def trained(grid: Stuck, **more):
    start = time.monotonic()
    try:
        return flower.train(PROJECT, grid, settings(**more)), time.monotonic() - start
    finally:
        grid.closed.set()


def test_an_upload_that_never_ends_costs_one_node_and_the_deadline():
    run, seconds = trained(Stuck(a_grid(), "train.updates", 101, 60), rounds=1, deadline=1.5)
    assert [row["refused"] for row in run.history] == [{"late": 1}]
    assert seconds < 30


def test_a_slow_upload_before_the_deadline_counts():
    run, _ = trained(Stuck(a_grid(), "train.updates", 101, 1.0), rounds=2, deadline=60)
    assert run.history["lost"] == [0, 0]
    assert same_bits(run, flower.train(PROJECT, a_grid(), settings(rounds=2)))


def test_a_node_cannot_stop_the_roll_call_with_an_upload_that_never_ends():
    grid = a_grid()
    grid.nodes[99] = {"partition-id": 0}
    run, seconds = trained(Stuck(grid, "query.about", 99, 60), rounds=1, deadline=20)
    assert run.history["lost"] == [0]
    assert seconds < 30


def test_an_error_of_the_grid_is_raised_where_replies_are_awaited():
    class Down(Exception):
        pass

    def fail(keys):
        raise Down

    grid = a_grid()
    grid.pull_messages = fail
    with pytest.raises(Down):
        flower.train(PROJECT, grid, settings())
