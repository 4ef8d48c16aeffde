"""Nodes of a deployment: keys that come and go, what the SuperLink is told, and what status shows."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import fedstride as fs
from fedstride.app import deploy
from fedstride.app.cli.deploy import app
from fedstride.app.deploy import members
from fedstride.app.deploy.control import Registered, fingerprint_of, own_server, server_of
from fedstride.core.errors import InvalidInput


class Link:
    """A SuperLink that remembers what it was asked for."""

    def __init__(self) -> None:
        self.known: dict[int, Registered] = {}
        self.active: list[int] = []

    def nodes(self):
        return sorted(self.known.values(), key=lambda node: node.name)

    def register(self, public, name):
        number = 100 + len(self.known)
        self.known[number] = Registered(number, name, fingerprint_of(public), "registered", None)
        return number

    def unregister(self, node):
        del self.known[node]

    def running(self):
        return self.active


@pytest.fixture
def folder(tmp_path):
    deploy.init(tmp_path / "ours", 2, ["fl.example.org"], 9092)
    return tmp_path / "ours"


@pytest.fixture
def link(monkeypatch):
    made = Link()

    @contextmanager
    def superlink(server):
        yield made

    monkeypatch.setattr(members, "superlink", superlink)
    return made


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def clients(folder) -> int:
    settings = tomllib.loads((folder / "server" / "app" / "pyproject.toml").read_text())
    return settings["tool"]["flwr"]["app"]["config"]["clients"]


def names(link):
    return [node.name for node in link.nodes()]


def test_register_makes_the_superlink_agree_with_the_keys(folder, link):
    assert "node-0: registered, key SHA256:" in call("register", folder).stdout
    assert names(link) == ["node-0", "node-1"]
    assert "nothing to do" in call("register", folder / "server").stdout  # the server's folder alone will do


def test_a_new_node_gets_the_first_free_number(folder, link):
    call("register", folder)
    done = call("add", folder)
    assert f"give to node 2: {folder}/nodes/node-2" in done.stdout and "node-2: registered" in done.stdout
    assert (names(link), clients(folder)) == (["node-0", "node-1", "node-2"], 3)


def test_a_removed_node_loses_its_access_and_its_number_is_given_again(folder, link):
    call("register", folder)
    call("add", folder)
    done = call("remove", folder, 1)
    assert "node-1: unregistered" in done.stdout and "runs wait for a node with the number 1" in done.stdout
    assert names(link) == ["node-0", "node-2"] and not (folder / "nodes" / "node-1").exists()
    assert "give to node 1" in call("add", folder).stdout
    assert "number" not in call("remove", folder, 2).stdout  # the last number leaves no gap
    assert (names(link), clients(folder)) == (["node-0", "node-1"], 2)


def test_a_renewed_key_replaces_the_old_one(folder, link):
    call("register", folder)
    before = {node.name: node.key for node in link.nodes()}
    done = call("renew", folder, "--node", 1)
    after = {node.name: node.key for node in link.nodes()}
    assert "node-1: unregistered" in done.stdout and "node-1: registered" in done.stdout
    assert before["node-0"] == after["node-0"] and before["node-1"] != after["node-1"]


def test_nodes_that_somebody_else_registered_are_left_alone(folder, link):
    link.known[1] = Registered(1, "a friend", "SHA256:other", "online", 0.0)
    call("register", folder)
    assert names(link) == ["a friend", "node-0", "node-1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["remove", 7], "node 7 is not a member; expected one of 0, 1"),
        (["renew", "--node", 7], "--node 7 is not a member; expected one of 0, 1"),
    ],
)
def test_nodes_that_are_not_there(folder, link, arguments, text):
    done = call(arguments[0], folder, *arguments[1:])
    assert done.exit_code == 2 and text in done.stderr


def test_the_last_node_stays(folder, link):
    call("remove", folder, 1)
    done = call("remove", folder, 0)
    assert done.exit_code == 2 and "is the only node" in done.stderr
    assert members.numbers(folder / "server") == [0]


def test_without_a_superlink_the_next_step_is_named(folder):
    shutil.rmtree(folder / "server" / "app")  # its port is free: nothing answers
    done = call("add", folder)
    assert done.exit_code == 0 and "run there: fedstride deploy register" in done.stdout
    done = call("status", folder)
    assert done.exit_code == 2 and "does not answer" in done.stderr and "start.sh" in done.stderr


def test_a_folder_without_a_deployment(tmp_path):
    for command in ("status", "register"):
        done = call(command, tmp_path)
        assert done.exit_code == 2 and "is not the server's folder of a deployment" in done.stderr
    with pytest.raises(InvalidInput, match="deploy init"):
        server_of(tmp_path)


def board(folder, run: int, round: int, name: str = "Ward 1") -> None:
    place = folder / "server" / "flower" / "fedstride"
    place.mkdir(parents=True, exist_ok=True)
    client = {"client": 0, "node": 100, "name": name, "samples": 57, "versions": {"fedstride": fs.__version__}}
    facts = {"run": run, "time": time.time() - 3, "round": round, "rounds": 20, "clients": [client]}
    (place / f"run-{run}.json").write_text(json.dumps(facts))


def test_status_shows_nodes_and_the_running_round(folder, link):
    call("register", folder)
    link.known[100] = Registered(100, "node-0", link.known[100].key, "online", time.time() - 7)
    link.active = [5, 6]
    board(folder, 5, 4)
    (folder / "server" / "flower" / "fedstride" / "run-9.json").write_text("{")  # a file that is being written
    done = call("status", folder)
    assert done.exit_code == 0
    assert "run 5: round 4 of 20 finished 3 s ago" in done.stdout
    assert "run 6: waiting for its nodes" in done.stdout
    (first,) = [line for line in done.stdout.splitlines() if line.startswith("node-0")]
    for word in ("online", "7 s ago", "Ward 1", "57", f"fedstride {fs.__version__}", link.known[100].key):
        assert word in first
    (second,) = [line for line in done.stdout.splitlines() if line.startswith("node-1")]
    assert "registered" in second and "never" in second
    found = json.loads(call("status", folder, "--json").stdout)
    assert found["runs"][0]["round"] == 4 and found["nodes"][0]["samples"] == 57


def test_the_name_of_a_node_is_not_markup(folder, link):
    call("register", folder)
    board(folder, 5, 4, name="[/red] [link=https://example.org]x")
    assert "[/red] [link=https://example.org]x" in call("status", folder).stdout


def test_without_runs_status_says_so(folder, link):
    assert "no run is active" in call("status", folder).stdout


def test_the_server_of_a_process(folder, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(folder / "server" / "flower"))
    assert own_server() == folder / "server"
    monkeypatch.setenv("FLWR_HOME", str(folder / "elsewhere" / "flower"))
    assert own_server() is None
    monkeypatch.delenv("FLWR_HOME")
    assert own_server() is None
