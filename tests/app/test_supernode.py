"""The SuperNode with a lasting process for the app: the same bits, and nothing left behind, whoever dies when."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import context_to_proto, message_from_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.supercore.task_identity import TaskIdentity

import fedstride as fs
from fedstride.app.supernode import __main__ as command
from fedstride.app.supernode import flower, pace, retry
from fedstride.app.supernode.worker import Died, Worker
from fedstride.core.files import read_tensors
from fedstride.training import checkpoint
from fedstride.training.checkpoint import newest
from tests import kills
from tests.deployment import Deployment, until

SETTINGS = {"clients": 3, "epochs": 1, "batch_size": 64, "seed": 5, "hidden": 16}
SLOW = """

class Slow(nn.Module):
    def forward(self, x):
        if Path("slow").exists():  # in the folder of the node
            Path("working").write_text(str(os.getpid()))
            time.sleep(300)
        return x
"""
STARTED = re.compile(r"Process (\d+) runs the app")


# A federation on loopback, with TLS and keys.


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    # A busy machine needs more than 10 s to start one of Flower's processes.
    with Deployment(tmp_path_factory.mktemp("supernode"), nodes=3, heartbeat=30) as deployment:
        task = deployment.server / "app" / "hospital" / "task.py"
        text = task.read_text().replace("torch.float32", "torch.float64")
        text = text.replace("nn.Linear(width, 2))", "nn.Linear(width, 2)).double()")
        text = text.replace("nn.Sequential(nn.Linear", "nn.Sequential(Slow(), nn.Linear")
        task.write_text(
            text.replace("import numpy", "import os, time\nfrom pathlib import Path\n\nimport numpy") + SLOW
        )
        yield deployment


def begin(it: Deployment, rounds: int, out: str) -> str:
    return it.run(algorithm="scaffold(lr=0.05)", rounds=rounds, out=f"runs/{out}", **SETTINGS)


def history(it: Deployment, out: str) -> list:
    path = it.server / "runs" / out
    return newest(path, lambda file: checkpoint.history(file, read_tensors(file)[0])) or []


def started(it: Deployment, name: str) -> list[int]:
    """The processes that a node has started for the app."""
    return [int(pid) for pid in STARTED.findall(it.output(name))]


@contextmanager
def at_work(it: Deployment, name: str, out: str) -> Iterator[int]:
    """Yield the process of a node while it computes a round, not the first."""
    until(lambda: len(history(it, out)) >= 1, 300, "a round")
    place = it.folder / "nodes" / name
    (place / "slow").touch()
    try:
        until(lambda: bool((place / "working").exists() and (place / "working").read_text()), 300, "the node computes")
        yield int((place / "working").read_text())
    finally:
        (place / "slow").unlink()
        (place / "working").unlink(missing_ok=True)


@pytest.mark.slow
def test_rounds_have_the_bits_of_flowers_own_supernode(it):
    assert it.wait(begin(it, 3, "ours")) == "finished:completed"
    ours, expected = fs.load(it.server / "runs" / "ours"), kills._alone(it.server / "app", SETTINGS, 3)
    assert float((ours.x - expected.x).norm() / expected.x.norm()) <= 1e-10
    assert [row["lost"] for row in ours.history] == [0, 0, 0]
    assert [len(started(it, f"node-{i}")) for i in range(3)] == [1, 1, 1]  # for four messages each
    it.stop("node-2")
    script = it.folder / "nodes" / "node-2" / "start.sh"
    before = script.read_text()
    script.write_text(before.replace("exec python -P -m fedstride.app.supernode", "exec flower-supernode"))
    it.start("node-2")
    assert it.wait(begin(it, 3, "mixed")) == "finished:completed"
    mixed = fs.load(it.server / "runs" / "mixed")
    assert torch.equal(mixed.x, ours.x)
    assert not started(it, "node-2")
    script.write_text(before)
    it.stop("node-2")
    it.start("node-2")


@pytest.mark.slow
def test_another_run_and_another_app_get_another_process(it):
    before = started(it, "node-0")
    wide = it.server / "app" / "hospital" / "task.py"
    text = wide.read_text()
    wide.write_text(text.replace('settings["hidden"]', '2 * settings["hidden"]'))
    assert it.wait(begin(it, 1, "wide")) == "finished:completed"
    wide.write_text(text)
    assert len(fs.load(it.server / "runs" / "wide").x) == 2 * 16 * (30 + 1) + 2 * (2 * 16 + 1)
    after = started(it, "node-0")
    assert len(after) == len(before) + 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_its_node_asked_again(it):
    run, node = begin(it, 100_000, "killed"), it.processes["node-1"].pid
    with at_work(it, "node-1", "killed") as pid:
        assert pid == started(it, "node-1")[-1]
        before = len(history(it, "killed"))
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(history(it, "killed")) > before + 2, 300, "three more rounds")
    rows = history(it, "killed")
    it.flwr("stop", run)
    assert not any(row["lost"] for row in rows)
    assert it.processes["node-1"].pid == node and it.alive("node-1")
    assert started(it, "node-1")[-1] != pid


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_node_that_ends_leaves_no_process_and_no_socket(it, end):
    it.start("node-0")
    out = f"ended-{end.name}"
    run = begin(it, 100_000, out)
    with at_work(it, "node-0", out) as pid:
        assert pid in it.descendants("node-0")
        os.kill(it.processes["node-0"].pid, end)  # the node alone
        it.processes["node-0"].wait(60)
        until(lambda: not it.descendants("node-0"), 20, "all processes of the node end")
    assert not [path for path in (it.folder / "nodes" / "node-0").rglob("*") if path.is_socket()]
    it.flwr("stop", run)


# One process at a time.


@pytest.fixture
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 7)


def request(content: RecordDict) -> list[bytes]:
    message = Message(content, 7, "train")
    parts = flower._deflated(message, {}, b"")
    facts = {"task": 1, "message": message.metadata.message_id, "parts": json.loads(parts[0])["parts"]}
    context = Context(7, 7, {}, RecordDict(), {}, 7)
    return [json.dumps(facts).encode(), context_to_proto(context).SerializeToString(), b"", *parts[4:]]


def app_that(answers) -> flower.App:
    app, client = flower.App(), ClientApp()
    client.train()(answers)
    app.app = client
    return app


def test_a_message_passes_unchanged_and_the_next_one_uses_the_same_app(identity):
    app = app_that(lambda message, context: Message(message.content, reply_to=message))
    sent = RecordDict({"x": ArrayRecord([torch.arange(5.0).numpy()]), "facts": ConfigRecord({"a": 1})})
    for _ in range(2):
        asked = request(sent)
        facts, proto, _, _, *parts = app.answer(asked)
        assert sorted(parts[:-1]) == sorted(asked[3:-1])  # all but the message itself, which has another head
        reply = message_from_proto(Proto.FromString(proto))
        assert reply.metadata.reply_to_message_id == json.loads(asked[0])["message"]
        assert json.loads(facts)["error"] == "" and not json.loads(facts)["failed"]


def test_an_exception_is_an_answer_after_which_the_process_ends(identity):
    def raises(message, context):
        raise ZeroDivisionError("no data")

    app = app_that(raises)
    facts, proto, *_ = app.answer(request(RecordDict()))
    assert json.loads(facts)["failed"]
    error = message_from_proto(Proto.FromString(proto)).error
    assert error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert error.reason == json.loads(facts)["error"]
    assert "ZeroDivisionError in raises, test_supernode.py" in error.reason and "no data" not in error.reason


def test_a_problem_that_fedstride_reports_ends_the_process_too(identity):
    problem = RecordDict({"problem": ConfigRecord({"kind": "RuntimeError"})})
    app = app_that(lambda message, context: Message(problem, reply_to=message))
    assert json.loads(app.answer(request(RecordDict()))[0])["failed"]


@pytest.mark.slow
def test_a_worker_that_is_killed_or_closed_is_gone():
    worker = Worker(("run", "app"))
    worker.process.kill()
    with pytest.raises(Died):
        worker.ask([b"{}"], lambda: None)
    worker.close()
    worker = Worker(("run", "app"))
    start = time.monotonic()
    worker.close()
    assert time.monotonic() - start < 30 and worker.process.returncode is not None


def test_another_version_of_flower_gets_its_own_supernode(monkeypatch, caplog):
    called = []
    monkeypatch.setattr(command.flwr, "__version__", "1.42.0")
    monkeypatch.setattr(sys, "argv", ["supernode", "--insecure"])

    def execvp(file, arguments):
        called.append((file, arguments))
        raise SystemExit

    monkeypatch.setattr(os, "execvp", execvp)
    with pytest.raises(SystemExit):
        command.main()
    assert called == [("flower-supernode", ["flower-supernode", "--insecure"])]
    assert "Flower is 1.42.0, expected 1.41.0" in caplog.text


def test_missing_parts_are_looked_for_soon(monkeypatch):
    pull = importlib.import_module("flwr.supercore.inflatable.inflatable_utils").pull_objects
    monkeypatch.setitem(pull.__kwdefaults__, "initial_backoff", 1)
    retry.retry_soon()
    assert pull.__kwdefaults__["initial_backoff"] == retry.FIRST
    del pull.__kwdefaults__["initial_backoff"]
    retry.retry_soon()  # another version of Flower
    assert "initial_backoff" not in pull.__kwdefaults__


class Clock:
    """A time that passes only in sleep()."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps.append(seconds)


def test_pauses_grow_with_the_time_waited(monkeypatch):
    monkeypatch.setattr(pace, "time", clock := Clock())
    waiting = pace.Pace(0.04, 3.0)
    waiting.start()
    for _ in range(200):
        waiting.pause()
    assert clock.naps[:3] == [0.0, 0.04, 0.04]  # nothing is known about the first time
    assert clock.naps == sorted(clock.naps) and clock.naps[-1] == 3.0
    waited = [sum(clock.naps[: i + 1]) for i in range(len(clock.naps))]
    assert all(nap <= 0.04 + pace.SHARE * before for nap, before in zip(clock.naps[1:], waited[:-1], strict=True))


def test_the_first_look_is_when_it_may_be_there(monkeypatch):
    monkeypatch.setattr(pace, "time", clock := Clock())
    waiting = pace.Pace(0.04, 3.0)

    def first_look(took: float) -> float:
        waiting.start()
        clock.now += took - clock.naps[-1]
        waiting.arrived()
        clock.now += 100
        waiting.arrived()  # others of the same time do not count
        return clock.naps[-1]

    looks = [first_look(took) for took in (0.2, 5.0, 5.0, 0.4, 0.4)]
    assert looks == pytest.approx([0.0, 0.12, 0.12, pace.CAP, 0.24])  # of the shorter of the last two
