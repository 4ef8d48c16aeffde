"""What operators see: names of nodes, clocks that differ, refusals without traceback, and runs that signals save."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import time
import urllib.error
import urllib.request
import warnings
from types import SimpleNamespace

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from fedstride.app.audit import verify
from fedstride.engine import flower
from fedstride.engine.flower import node as node_module
from fedstride.engine.flower import nodes as nodes_module
from fedstride.engine.flower.server import without_traceback
from fedstride.research.bench.launch import free_port
from tests.engine.test_flower import DATA, PROJECT, a_grid, drop, folder, rewrite, settings, spoiled  # noqa: F401 (a fixture)
from tests.problems import same_bits

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def said(caplog):
    with caplog.at_level(logging.INFO, "flwr.fedstride"):
        yield lambda: [record.getMessage() for record in caplog.records]


def named(*names: str):
    grid = a_grid()
    for node, name in zip(grid.nodes.values(), names, strict=False):
        node["name"] = name
    return grid


def test_lists_of_clients_show_the_names_of_nodes(said):
    flower.train(PROJECT, spoiled(named("Ward 1", "Ward 2", "Ward 3"), 2, drop("upload")), settings())
    assert "client 0 (Ward 1): node 100, 6 samples" in said()
    assert "client 3: node 103, 8 samples" in said()
    assert "round 2: lost 1: client 2 (Ward 3): corrupt" in said()


def test_a_node_that_does_not_fit_is_named():
    grid = named("Ward 1", "Ward 2", "Ward 3")
    other = flower.Project(lambda s: torch.nn.Linear(4, 3).double(), "cross_entropy", PROJECT.data)
    grid.apps[102] = flower.client_app(other)
    with pytest.raises(fs.InvalidInput, match=r"client 2 \(Ward 3, node 102\): different parameters"):
        flower.train(PROJECT, grid, settings())


def test_names_are_short_and_printable(said):
    flower.train(PROJECT, named("a\n\x1b[31mb" + "x" * 9999), settings(rounds=1))
    (line,) = [text for text in said() if text.startswith("client 0")]
    assert "\n" not in line and "\x1b" not in line and len(line) < 120


@pytest.mark.parametrize(("seconds", "words"), [(100, "100 s ahead of"), (-3600, "3600 s behind"), (2, None)])
def test_a_clock_that_differs_is_named(seconds, words, said, monkeypatch):
    wrong = SimpleNamespace(time=lambda: time.time() + seconds)
    grid, real = named("Ward 1"), flower.client_app(PROJECT)

    def app(message, context):
        with monkeypatch.context() as patch:
            patch.setattr(node_module, "time", wrong)
            return real(message, context)

    grid.apps[100] = app
    flower.train(PROJECT, grid, settings(rounds=1))
    found = [text for text in said() if "clock" in text]
    assert len(found) == (words is not None)
    assert all(text.startswith(f"client 0 (Ward 1, node 100): its clock is {words}"[:-5]) for text in found)


def logged(error: Exception) -> str:
    text, logger = io.StringIO(), logging.getLogger("flwr-test")
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    logger.addFilter(without_traceback)
    logger.propagate = False
    try:
        raise error
    except Exception as caught:
        logger.error("%s raised an exception", "ServerApp", exc_info=caught)
    finally:
        logger.removeHandler(handler)
    return text.getvalue()


def test_the_server_prints_refusals_without_traceback():
    assert logged(fs.InvalidInput("rounds=0 is invalid.")) == "InvalidInput: rounds=0 is invalid.\n"
    assert "Traceback" in logged(ValueError("a bug"))


@pytest.mark.parametrize(("error", "traceback"), [(fs.InvalidInput("no data."), False), (ValueError("a bug"), True)])
def test_a_node_prints_refusals_without_traceback(error, traceback, caplog):
    def fails():
        raise error

    context = SimpleNamespace(node_config={"client": 3})
    node_module._answered(fails, Message(RecordDict(), 1, "train.updates"), context)
    (record,) = caplog.records
    assert bool(record.exc_info) == traceback
    assert traceback or "InvalidInput: no data." in record.getMessage()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_server_saves_the_run(number, tmp_path):
    """Flower's own handler ends the process afterwards; here it is a list."""
    grid, ended = a_grid(), []
    context = SimpleNamespace(run_config=settings(rounds=6, algorithm="scaffold", out=str(tmp_path / "out")))

    def send(reply: Message) -> Message:
        if reply.metadata.group_id == "2" and reply.metadata.src_node_id == 102:
            os.kill(os.getpid(), number)
        return reply

    grid.spoil = send
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append(len(fs.load(tmp_path / "out").history)))
    hangup = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.warns(fs.FedstrideWarning, match="interrupted in round 3"):
            flower.server_app(PROJECT)(grid, context)
        assert signal.getsignal(signal.SIGHUP) is hangup
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [2]
    resumed = flower.train(PROJECT, a_grid(), context.run_config)
    assert same_bits(resumed, flower.train(PROJECT, a_grid(memory="other"), settings(rounds=6, algorithm="scaffold")))


@pytest.mark.parametrize(
    ("given", "use"),
    [
        ({"weights": "samples", "local_steps": 2}, 'weights="samples"'),
        ({"normalise": True, "local_steps": 2}, "normalise=true"),
        ({"algorithm": "fednova", "epochs": 1e-6}, "steps in epochs"),
    ],
)
def test_a_count_that_outweighs_the_others_is_named(given, use):
    grid = named("Ward 1", "Ward 2")
    lie = rewrite("about", "samples", 10**6)
    grid.spoil = lambda reply: (
        lie(reply) if (reply.metadata.src_node_id, kind(reply)) == (101, "query.about") else reply
    )
    with pytest.warns(fs.FedstrideWarning, match=rf"{use}: client 1 \(Ward 2\) with 1,000,000 of"):
        flower.train(PROJECT, grid, settings(rounds=1, **given))


def kind(reply: Message) -> str:
    return reply.metadata.message_type


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_counts_of_honest_nodes_are_no_reason_for_a_warning(weights):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flower.train(PROJECT, a_grid(), settings(rounds=1, weights=weights))


def test_a_node_keeps_its_count_of_samples(said):
    """Node 100 is replaced by one that is the same client with more samples."""
    grid, seen = a_grid(), []

    def another(reply: Message) -> Message:
        if reply.metadata.group_id == "0" and 100 in grid.online:
            grid.nodes[200] = grid.nodes[100]
            grid.online = (grid.online | {200}) - {100}
        if reply.metadata.src_node_id == 200:
            seen.append(kind(reply))
            reply.content["about"]["samples"] = 9999
        return reply

    grid.spoil = another
    with pytest.warns(fs.FedstrideWarning, match=r"client 0 \(node 200\) reconnected with 9999 samples; expected 6"):
        flower.train(PROJECT, grid, settings(weights="samples", quorum=0.5, deadline=5))
    assert seen == ["query.about"]


def test_a_monitor_is_one_setting(said):
    """It serves while nodes are awaited and during the run, and ends with it."""
    looks = []

    def look(event):
        (line,) = [text for text in said() if text.startswith("monitor: ")]
        with urllib.request.urlopen(f"{line.removeprefix('monitor: ')}metrics", timeout=10) as answer:
            looks.append(answer.read().decode())

    port = free_port()
    flower.train(PROJECT, spoiled(a_grid(), 2, drop("upload")), settings(monitor=port, rounds=2), [look])
    assert f"\nfedstride_round {2}\n" in looks[-1]
    assert 'fedstride_refused_messages_total{reason="corrupt"} 1\n' in looks[-1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10)


@pytest.mark.parametrize("off", ["none", "", 0])
def test_there_is_no_monitor_unless_asked_for(off, said):
    flower.train(PROJECT, a_grid(), settings(monitor=off, rounds=1))
    assert not [text for text in said() if "monitor" in text]


def test_a_monitor_that_cannot_listen_is_refused_before_the_roll_call():
    grid = a_grid()
    with pytest.raises(fs.InvalidInput, match="monitor='x' is invalid"):
        flower.train(PROJECT, grid, settings(monitor="x"))
    assert grid.count == 0


def audit_of(place):
    return [json.loads(line) for line in (place / "audit.jsonl").read_text().splitlines()]


def test_the_audit_log_of_a_run(tmp_path):
    grid = spoiled(named("Ward 1", "Ward 2"), 2, drop("upload"))
    flower.train(PROJECT, grid, settings(audit=True, out=str(tmp_path / "out")))
    started, nodes, *rounds, ended = audit_of(tmp_path / "out")
    assert [entry["event"] for entry in (started, nodes, *rounds, ended)] == [
        "started",
        "nodes",
        *3 * ["round"],
        "ended",
    ]
    assert started["code"].keys() == {"fedstride", "app"} and len(started["configuration"]) == 64
    assert nodes["clients"]["1"]["name"] == "Ward 2" and nodes["clients"]["1"]["samples"] == len(DATA[1][0])
    assert nodes["clients"]["1"]["versions"]["fedstride"] == fs.__version__
    lost = [one["lost"] for entry in rounds for one in entry["exchanges"]]
    assert {"2": "corrupt"} in lost
    assert rounds[0]["clients"]["3"] == {"node": "103", "key": None}
    assert verify(tmp_path / "out").broken is None


def test_a_node_that_is_refused_is_in_the_audit_log(tmp_path):
    grid = named("Ward 1", "Ward 2", "Ward 3")
    grid.apps[102] = flower.client_app(
        flower.Project(lambda s: torch.nn.Linear(4, 3).double(), "cross_entropy", PROJECT.data)
    )
    with pytest.raises(fs.InvalidInput):
        flower.train(PROJECT, grid, settings(audit=True, out=str(tmp_path / "out")))
    _, refused, failed = audit_of(tmp_path / "out")
    assert refused["node"] == "102" and "client 2 (Ward 3, node 102)" in refused["why"]
    assert failed["event"] == "failed" and failed["error"] == "InvalidInput"
    assert verify(tmp_path / "out").broken is None


@pytest.mark.parametrize(
    ("given", "match"), [({"audit": True}, "set `out`"), ({"audit": "yes"}, "expected true or false")]
)
def test_an_audit_log_that_cannot_be_written(given, match):
    with pytest.raises(fs.InvalidInput, match=match):
        flower.train(PROJECT, a_grid(), settings(**given))


@pytest.mark.parametrize(("package", "fix"), [("fedstride", r"fedstride\[flower\]==0\.1\.0"), ("flwr", r"flwr==\d")])
def test_a_node_with_another_version_is_refused_with_the_fix(package, fix):
    grid = named("Ward 1")
    other = rewrite("identity", package, "0.0.1")
    grid.spoil = lambda reply: other(reply) if reply.metadata.src_node_id == 100 else reply
    text = (
        rf"client 0 \(Ward 1, node 100\) has {package} 0\.0\.1, and the server has .*pip install '{fix}.*' and start it"
    )
    with pytest.raises(fs.InvalidInput, match=text):
        flower.train(PROJECT, grid, settings(rounds=1))


def test_a_node_that_was_refused_may_come_back(said):
    """Its owner installs the right version and starts it again, while the run waits for another node."""
    grid = a_grid()
    grid.online.remove(103)
    other, looks = rewrite("identity", "fedstride", "0.0.1"), []
    grid.spoil = lambda reply: other(reply) if reply.metadata.src_node_id == 100 and len(looks) < 3 else reply
    real = grid.get_node_ids

    def get_node_ids():
        looks.append(1)
        if len(looks) == 3:
            grid.online.remove(100)
        if len(looks) == 4:
            grid.online |= {100, 103}
        return real()

    grid.get_node_ids = get_node_ids
    flower.train(PROJECT, grid, settings(rounds=1))
    assert len([text for text in said() if "has fedstride 0.0.1" in text]) == 1


def crashing(grid, node: int, times: int):
    """Let the app of a node crash this many times when it trains."""
    left, real = [times], flower.client_app(PROJECT)

    def app(message, context):
        if message.metadata.message_type != "query.about" and left[0]:
            left[0] -= 1
            raise RuntimeError("killed")
        return real(message, context)

    grid.apps[node] = app
    return grid


@pytest.fixture
def quick(monkeypatch):
    """Shorter pauses."""
    made = nodes_module.Nodes.__init__
    monkeypatch.setattr(
        nodes_module.Nodes, "__init__", lambda *given, **more: made(*given, **{"pauses": (0.1, 0.2), **more})
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedlin"])
def test_a_node_that_crashes_is_asked_again_with_the_same_bits(algorithm, said):
    given = settings(algorithm=algorithm)
    run = flower.train(PROJECT, crashing(a_grid(), 101, 2), given)
    assert run.history["lost"] == [0, 0, 0]
    assert [text for text in said() if "asking them again in" in text] == [
        f"round 1: 1 nodes crashed or left; asking them again in {pause} s" for pause in (0.1, 0.2)
    ]
    assert same_bits(run, flower.train(PROJECT, a_grid(memory="other"), given))


@pytest.mark.usefixtures("quick")
def test_a_node_that_goes_on_crashing_costs_the_pauses_once(said):
    run = flower.train(PROJECT, crashing(a_grid(), 101, 99), settings(rounds=3, quorum=0.5))
    assert run.history["lost"] == [1, 1, 1] and run.history["refused"] == 3 * [{"crashed": 1}]
    assert len([text for text in said() if "asking them again" in text]) == 2
