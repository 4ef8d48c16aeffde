"""The operator's day in a real federation: status, monitor, audit log with keys, JSON logs, a node that comes and goes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr")

import fedstride as fs
from fedstride.app.audit import verify
from fedstride.app.deploy import members
from fedstride.app.deploy.control import fingerprint_of
from fedstride.research.bench.launch import free_port
from tests.deployment import Deployment, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("live"), config='partition-id={0} name="Ward {0}"'.format)
    deployment.environment["FEDSTRIDE_LOGS"] = "json"
    with deployment:
        yield deployment


def asked(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.URLError:
        return ""


def test_a_run_is_watched_audited_and_shown(it):
    port, seen = free_port(), {}
    run = it.run(clients=2, rounds=60, audit=True, monitor=str(port), out="runs/live", evaluate_every=10)

    def enough() -> bool:
        seen["metrics"], seen["health"] = asked(port, "metrics"), asked(port, "health")
        return "fedstride_participants 2\n" in seen["metrics"]

    until(enough, 120, "a round is finished")
    found = members.status(it.folder)
    assert json.loads(seen["health"])["status"] == "training"
    (active,) = found["runs"]
    assert str(active["run"]) == run and active["round"] is not None and active["rounds"] == 60
    keys = {name: fingerprint_of(it.server / "keys" / f"{name}.pub") for name in ("node-0", "node-1")}
    for number, node in enumerate(found["nodes"]):
        assert (node["name"], node["status"], node["called"]) == (f"node-{number}", "online", f"Ward {number}")
        assert node["versions"]["fedstride"] == fs.__version__ and node["key"] == keys[f"node-{number}"]
        assert node["samples"] == 228
    assert it.wait(run) == "finished:completed"
    assert asked(port, "health") == ""
    entries = [json.loads(line) for line in (it.server / "runs/live/audit.jsonl").read_text().splitlines()]
    rounds = [entry for entry in entries if entry["event"] == "round"]
    assert len(rounds) == 60
    for entry in rounds:
        assert {number: one["key"] for number, one in entry["clients"].items()} == {
            "0": keys["node-0"],
            "1": keys["node-1"],
        }
    assert verify(it.server / "runs/live").broken is None
    assert members.run_lines(members.status(it.folder)) == ["no run is active"]


def test_the_logs_are_json(it):
    lines = it.output("node-0").splitlines()
    ours = [json.loads(line) for line in lines if line.startswith("{")]
    assert any("SuperNode ID:" in line["message"] for line in ours)
    assert {"time", "level", "logger", "process", "message"} <= ours[0].keys()
    assert not [line for line in lines if "flwr" not in line and "\x1b[" in line]


def test_a_node_comes_and_goes(it):
    number, _ = members.add(it.folder)
    (said,) = members.register(it.folder)
    assert said.startswith("node-2: registered") and number == 2
    it.start("node-2")
    members.remove(it.folder, 2)
    (said,) = members.register(it.folder)
    assert said.startswith("node-2: unregistered")
    until(lambda: not it.alive("node-2"), 120, "the node ends")
    assert [node["name"] for node in members.status(it.folder)["nodes"]] == ["node-0", "node-1"]
