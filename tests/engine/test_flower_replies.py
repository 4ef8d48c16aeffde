"""Uploads that take long or never end: they cost their own node, and no more time than the deadline."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

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


class Post:
    """A grid whose replies come when the test says so; `asked` has the messages of every poll."""

    def __init__(self) -> None:
        self.here: dict[str, Message] = {}
        self.asked: list[str] = []

    def push_messages(self, messages):
        return [str(i) for i, _ in enumerate(messages)]

    def pull_messages(self, keys):
        self.asked += keys
        return [self.here.pop(key) for key in keys if key in self.here]

    def arrive(self, key: str) -> None:
        self.here[key] = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=key))


def test_while_no_reply_arrives_one_is_asked_for_at_a_time():
    post = Post()
    waiting = replies.Replies(post)
    waiting.start()
    for _ in range(6):
        assert not list(waiting.wait(["a", "b", "c"]))
    assert sorted(post.asked[:3]) == sorted(post.asked[3:]) == ["a", "b", "c"]


def test_when_a_reply_arrives_all_others_are_asked_for_at_once():
    post, found = Post(), []
    waiting = replies.Replies(post)
    for key in "abc":
        post.arrive(key)
    waiting.start()
    start = time.monotonic()
    for pending in (["a", "b", "c"], ["a", "b", "c"]):
        found += [reply.metadata.reply_to_message_id for reply in waiting.wait(pending)]
    assert sorted(found) == ["a", "b", "c"]
    assert time.monotonic() - start < replies.LONG


@pytest.mark.parametrize("silent", [(), ("1",)])
def test_replies_to_all_messages_or_those_in_time(silent, monkeypatch):
    monkeypatch.setattr(replies, "TOGETHER", 1)  # one that is silent does not cost those after it
    post = Post()
    for key in {"0", "1", "2"} - set(silent):
        post.arrive(key)
    found = replies.Replies(post).send_and_receive([None] * 3, 0.3 if silent else 60)
    assert {reply.metadata.reply_to_message_id for reply in found} == {"0", "1", "2"} - set(silent)
    assert replies.Replies(post).send_and_receive([], 60) == []
