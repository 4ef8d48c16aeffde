"""Flower's SuperLink, open to nodes only: other requests (starting runs, registering nodes) must come from this machine.

Flower serves both on one port and does not authenticate who starts a run, and every node executes the code of a run.
"""

from __future__ import annotations

from ipaddress import ip_address

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class NodesOnly:
    """Accept only /health and the signed requests of SuperNodes from other machines."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _for_nodes(scope["path"]) or _here(scope):
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Allowed only from the SuperLink's own machine.", 403)(scope, receive, send)


def _for_nodes(path: str) -> bool:
    return path == "/health" or path.startswith("/v1/fleet/")


def _here(scope: Scope) -> bool:
    return scope["client"] is not None and ip_address(scope["client"][0]).is_loopback


if __name__ == "__main__":
    extensions.get_middleware = lambda: (Middleware(NodesOnly),)
    flower_superlink()
