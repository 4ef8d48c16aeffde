"""Serve the figures of a run over HTTP, from a thread of the process that trains."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstride.app.monitor.figures import Figures
from fedstride.core.errors import InvalidInput
from fedstride.training.rounds import Event

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

PAGE = Path(__file__).parent / "dashboard.html"
HERE = "127.0.0.1"
PATIENCE = 10.0  # seconds that a connection may be silent
PLAIN, JSON, HTML = "text/plain; version=0.0.4; charset=utf-8", "application/json", "text/html; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
}


class Prometheus:
    """Serve the figures of a run at /metrics, its state at /health, and a page that shows them at /.

    The figures are in Prometheus's text format. Requests are answered by threads that only read; training never waits for
    them. There is no password: other machines can read them if `host` is not a loopback address.

    Args:
        port: the port; 0 = any free one, which is then in the attribute `port`.
        host: the address to listen at.

    Raises:
        InvalidInput: if the port is invalid or in use, or if the address is not one of this machine.

    Example:
        >>> monitor = fs.loggers.Prometheus(port=0)
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3, callbacks=[monitor])
        >>> "fedstride_round 3" in monitor.text
        True
        >>> monitor.close()
    """

    def __init__(self, port: int = 9464, host: str = HERE) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise InvalidInput(f"Prometheus: port={port!r} is invalid: expected 0 to 65535.")
        self.figures = Figures()
        self.text = self.figures.text()
        self.status, self.last = "starting", time.monotonic()
        try:
            self.server = _listening(self, host, port)
        except (OSError, UnicodeError) as error:
            raise InvalidInput(
                f"Prometheus: cannot listen at {host}:{port} ({getattr(error, 'strerror', None) or error}). Choose another "
                "port, or end the process that uses this one."
            ) from error
        self.host, self.port = host, int(self.server.server_address[1])
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=(0.1,), name="fedstride-monitor", daemon=True
        )
        self.thread.start()

    def __call__(self, event: Event) -> None:
        self.figures.add(event)
        self.text, self.status, self.last = self.figures.text(), "training", time.monotonic()

    @property
    def address(self) -> str:
        """Where it listens, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def health(self) -> dict[str, Any]:
        """Return the answer of /health."""
        return {
            "status": self.status,
            "round": self.figures.round,
            "seconds_since_last_round": round(time.monotonic() - self.last, 3),
        }

    def close(self) -> None:
        """Stop serving and free the port."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def monitor_at(where: object) -> Prometheus:
    """Return a monitor at a port such as 9464, or at an address and port such as "0.0.0.0:9464" or "[::]:9464"."""
    host, _, port = str(where).rpartition(":")
    if isinstance(where, bool) or not port.isdecimal() or len(port) > 5 or (":" in host) != host.startswith("["):
        raise InvalidInput(f'monitor={where!r} is invalid: expected a port, as in "9464", or "ADDRESS:PORT".')
    return Prometheus(int(port), host.strip("[]") or HERE)


def _listening(monitor: Prometheus, host: str, port: int) -> ThreadingHTTPServer:
    import socket  # these take 40 ms, which other runs save
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "fedstride", ""

        def do_GET(self) -> None:
            known = {
                "/metrics": lambda: (PLAIN, monitor.text),
                "/health": lambda: (JSON, json.dumps(monitor.health()) + "\n"),
                "/": lambda: (HTML, PAGE.read_text(encoding="utf-8")),
            }
            path = self.path.partition("?")[0]
            if not _trusted(self.headers.get("Host", ""), host):
                self.answer(403, PLAIN, "Ask for this address by its number, or as localhost.\n")
            elif path not in known:
                self.answer(404, PLAIN, "There are /metrics, /health and /.\n")
            else:
                self.answer(200, *known[path]())

        do_HEAD = do_GET

        def answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that hangs up is not an error of the run."""

    return Server((host, port), Handler)


def _trusted(asked: str, host: str) -> bool:
    """Whether a request may be answered: web sites can make a browser ask this machine under a name of their own."""
    if not _loopback(host):
        return True
    name = asked.rpartition(":")[0] if asked.rpartition(":")[2].isdecimal() else asked
    return name == "localhost" or _loopback(name.strip("[]"))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
