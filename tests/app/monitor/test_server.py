"""The monitor's HTTP side: three paths, read only, on loopback; it neither delays nor breaks a run, and frees its port."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app import cli
from fedstride.app.monitor import monitor_at
from fedstride.app.monitor import server as server_module
from tests.app.monitor.test_figures import read


@pytest.fixture
def monitor():
    made = fs.loggers.Prometheus(port=0)
    yield made
    made.close()


def get(monitor, path: str, method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", monitor.port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def train(*callbacks, rounds=3, **more):
    clients = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(i)), torch.arange(6) % 3) for i in range(3)]
    torch.manual_seed(0)
    return fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=rounds, callbacks=callbacks, **more)


def test_metrics_health_and_the_page_during_a_run(monitor):
    seen = []

    def look(event):
        seen.append([get(monitor, path) for path in ("/metrics", "/health", "/")])

    train(monitor, look)
    for number, answers in enumerate(seen):
        (status, headers, text), (_, _, health), (_, page_headers, page) = answers
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert read(text)["fedstride_round", None] == str(number)
        assert json.loads(health)["round"] == number and json.loads(health)["status"] == "training"
        assert page.startswith("<!doctype html>") and "default-src 'none'" in page_headers["Content-Security-Policy"]
    assert len(seen) == 4


def test_before_the_first_round_it_is_starting(monitor):
    assert json.loads(get(monitor, "/health")[2])["status"] == "starting"
    assert read(get(monitor, "/metrics")[2])["fedstride_round", None] == "0"


def test_it_only_reads(monitor):
    assert [get(monitor, "/metrics", method)[0] for method in ("HEAD", "POST", "PUT", "DELETE")] == [200, 501, 501, 501]
    assert get(monitor, "/metrics", "HEAD")[2] == ""
    assert [get(monitor, path)[0] for path in ("/nothing", "/../server.py", "/metrics/", "/dashboard.html")] == [
        404
    ] * 4


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example.org", 403),
        ("evil.example.org:80", 403),
        ("", 403),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:5", 200),
    ],
)
def test_a_web_site_cannot_read_it_through_a_browser(monitor, host, status):
    assert get(monitor, "/metrics", Host=host)[0] == status


def test_the_run_is_the_same_to_the_bit(monitor):
    assert torch.equal(train(monitor).x, train().x)


def test_clients_that_say_nothing_or_hang_up_do_not_matter(monitor, capfd):
    silent = [socket.create_connection(("127.0.0.1", monitor.port)) for _ in range(20)]
    for one in silent[:10]:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        one.close()
    silent[10].sendall(b"\x00\xff rubbish\r\n\r\n")
    run = train(monitor)
    assert len(run.history) == 3 and get(monitor, "/metrics")[0] == 200
    for one in silent[10:]:
        one.close()
    assert capfd.readouterr().err == ""


def test_a_closed_monitor_frees_its_port_and_ends_its_thread():
    made = fs.loggers.Prometheus(port=0)
    held = socket.create_connection(("127.0.0.1", made.port))  # a connection that stays open
    made.close()
    assert not made.thread.is_alive()
    again = fs.loggers.Prometheus(port=made.port)
    again.close()
    held.close()


def test_a_port_in_use_is_refused_before_any_work(monitor):
    with pytest.raises(fs.InvalidInput, match=rf"cannot listen at 127.0.0.1:{monitor.port} .*Choose another"):
        fs.loggers.Prometheus(monitor.port)


@pytest.mark.parametrize("port", [-1, 65536, 1.5, True, "9464", None])
def test_a_port_that_is_none(port):
    with pytest.raises(fs.InvalidInput, match="expected 0 to 65535"):
        fs.loggers.Prometheus(port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (9464, ("127.0.0.1", 9464)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::]:9", ("::", 9)),
    ],
)
def test_addresses_as_text(text, expected, monkeypatch):
    asked = []
    monkeypatch.setattr(server_module, "Prometheus", lambda port, host: asked.append((host, port)))
    monitor_at(text)
    assert asked == [expected]


@pytest.mark.parametrize("text", ["", "x", "::1:80", "localhost", "1:2:3", "123456", True, "-1", "80.5"])
def test_addresses_that_are_none(text):
    with pytest.raises(fs.InvalidInput, match="expected a port"):
        monitor_at(text)


def test_by_default_other_machines_cannot_reach_it(monitor):
    assert monitor.server.server_address[0] == "127.0.0.1"


def test_many_requests_at_once(monitor):
    train(monitor)
    failed = []

    def ask():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=10) as answer:
                read(answer.read().decode())
        except (urllib.error.URLError, AssertionError) as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_the_command_line_serves_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = ["run", "digits", "--rounds", "1", "--out", "run", "-q"]
    refused = CliRunner().invoke(cli.app, [*task, "--monitor", "nowhere"])
    assert refused.exit_code == 2 and "monitor='nowhere' is invalid" in refused.stderr
    assert not (tmp_path / "run").exists()
    done = CliRunner().invoke(cli.app, [*task, "--monitor", "0"])
    assert done.exit_code == 0 and "monitor: http://127.0.0.1:" in done.stderr
