"""Flower's SuperLink, open to nodes only: all else (starting runs, registering nodes) is answered on this machine alone.

Flower serves both at one port and asks nobody who starts a run, and a run is code that every node executes.
"""

from __future__ import annotations

from ipaddress import ip_address

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class NodesOnly:
    """From other machines only what SuperNodes send, which is signed with their keys, and /health."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _for_nodes(scope["path"]) or _here(scope):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Only from the machine of the SuperLink.", 403)(scope, receive, send)


def _for_nodes(path: str) -> bool:
    return path == "/health" or path.startswith("/v1/fleet/")


def _here(scope: Scope) -> bool:
    return scope["client"] is not None and ip_address(scope["client"][0]).is_loopback


if __name__ == "__main__":
    extensions.get_middleware = lambda: (Middleware(NodesOnly),)
    flower_superlink()
