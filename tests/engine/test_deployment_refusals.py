"""Refusals of a real SuperLink: unknown nodes, connections without TLS, and runs started from other machines."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedstride.app import deploy
from fedstride.research.bench.launch import free_port
from tests.deployment import BIN, Deployment, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("refusals"), nodes=1) as deployment:
        yield deployment


def refused(it: Deployment, *arguments: str | Path) -> str:
    """Return the output of a SuperNode that is refused; it must exit by itself."""
    common = ["--superlink", f"127.0.0.1:{it.port}", "--port", str(free_port()), "--max-retries", "1"]
    ours = [str(BIN / "python"), "-P", "-m", "fedstride.app.supernode"]
    process = it.launch("refused", [*ours, *common, *map(str, arguments)])
    assert process.wait(timeout=120) != 0
    assert "SuperNode ID:" not in it.output("refused")
    return it.output("refused")


def identity(it: Deployment, number: int) -> list[str | Path]:
    node = it.folder / "nodes" / f"node-{number}"
    return ["--root-certificates", node / "ca.crt", "--auth-supernode-private-key", node / "key"]


def ask(it: Deployment, path: str, **headers: str) -> int:
    trusted = ssl.create_default_context(cafile=it.server / "ca.crt")
    connection = http.client.HTTPSConnection("127.0.0.1", it.port, context=trusted, timeout=30)
    connection.request("POST", path, headers=headers)
    return connection.getresponse().status


def test_a_node_whose_key_is_not_registered(it):
    deploy.node(it.folder, 7)
    assert "Failed to activate SuperNode" in refused(it, *identity(it, 7))
    assert it.online() == 1


def test_a_node_without_a_key(it):
    assert "All SuperNodes must be registered" in refused(it, "--root-certificates", it.server / "ca.crt")


def test_a_node_without_tls(it):
    output = refused(it, "--insecure")
    # Which of the two errors the node sees depends on which side closes the connection first.
    assert "Server disconnected without sending a response" in output or "Connection reset by peer" in output, output


def test_a_node_that_trusts_another_authority(it, tmp_path):
    deploy.init(tmp_path / "other", 1, ["127.0.0.1"], it.port)
    key = ["--auth-supernode-private-key", it.folder / "nodes" / "node-0" / "key"]
    output = refused(it, "--root-certificates", tmp_path / "other" / "server" / "ca.crt", *key)
    assert "certificate verify failed" in output


def test_a_second_node_with_the_key_of_one_that_is_online(it):
    assert "Failed to activate SuperNode" in refused(it, *identity(it, 0))


def test_a_request_that_is_not_encrypted(it):
    connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=30)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.request("GET", "/health")
        connection.getresponse()


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages"])
def test_orders_from_another_machine(it, path):
    assert ask(it, path, **{"X-Forwarded-For": "192.0.2.9"}) == 403  # uvicorn believes a proxy on its own machine
    assert ask(it, path) != 403


def test_a_node_whose_key_was_unregistered(it):
    deploy.node(it.folder, 5)
    node = it.register(5)
    it.start("node-5")
    it.flwr("supernode", "unregister", node)
    until(lambda: not it.alive("node-5"), 120, "the node ends")
    assert "Failed to activate SuperNode" in refused(it, *identity(it, 5))
