"""Ask the SuperLink of a deployment, on its own machine, about its nodes and runs. Private parts of Flower are used here only."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedstride.core.errors import InvalidInput

FACTS = "deployment.json"  # in the deployment's folder, and in that of its server


@dataclass(frozen=True)
class Registered:
    """A node that the SuperLink knows."""

    node: int  # Flower's id
    name: str
    key: str  # fingerprint
    status: str  # "registered" (never seen), "online" or "offline"
    seen: float | None  # when it was last heard of, in seconds since 1970


class SuperLink:
    """A connection to the SuperLink of a deployment."""

    def __init__(self, client: Any) -> None:
        self.client, self.messages = client, importlib.import_module("flwr.proto.control_pb2")

    def nodes(self) -> list[Registered]:
        """Return the nodes that are registered, by name."""
        found = self.client.ListNodes(self.messages.ListNodesRequest()).nodes_info
        known = [_registered(info) for info in found if info.status != "unregistered"]
        return sorted(known, key=lambda one: (len(one.name), one.name, one.node))

    def register(self, public: Path, name: str) -> int:
        """Register the public key of a node; return the node's id."""
        key = _loaded(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return int(self.client.RegisterNode(self.messages.RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """End the access of a node at once."""
        self.client.UnregisterNode(self.messages.UnregisterNodeRequest(node_id=node))

    def running(self) -> list[int]:
        """Return the ids of the runs that have not finished."""
        found = self.client.ListRuns(self.messages.ListRunsRequest()).run_dict
        return sorted(run for run, facts in found.items() if facts.status.status != "finished")


def server_of(folder: Path) -> Path:
    """Return the server's folder, given it or the folder of the whole deployment."""
    for place in (folder / "server", folder):
        if (place / FACTS).is_file() and (place / "ca.crt").is_file():
            return place
    raise InvalidInput(f"{folder} is not the server's folder of a deployment; create one with `fedstride deploy init`.")


@contextmanager
def superlink(server: Path) -> Iterator[SuperLink]:
    """Connect to the SuperLink that was started in this folder.

    Raises:
        InvalidInput: if it does not answer, or refuses.
    """
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.error.base import FlowerError
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

    facts = json.loads((server / FACTS).read_text())
    address = f"{'[::1]' if ':' in facts['hosts'][0] else '127.0.0.1'}:{facts['port']}"
    checked: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    client = ControlHttpClient.from_server_address(address, False, (server / "ca.crt").read_bytes(), checked)
    try:
        yield SuperLink(client)
    except httpx.HTTPStatusError as error:
        raise InvalidInput(f"the SuperLink at {address} refused: {error.response.text[:300]}") from error
    except (httpx.HTTPError, FlowerError) as error:
        raise InvalidInput(
            f"the SuperLink at {address} does not answer ({error}). Run this on the server, and start it with {server}/start.sh."
        ) from error
    finally:
        client.close()


def own_server() -> Path | None:
    """Return the server's folder if this process was started by the SuperLink of a deployment."""
    home = os.environ.get("FLWR_HOME")
    place = None if home is None else Path(home).parent
    return place if place is not None and (place / FACTS).is_file() else None


def fingerprint(key: Any) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -lf` shows it."""
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(line.split()[1])).digest()).decode().rstrip("=")


def fingerprint_of(public: Path) -> str:
    """Return the fingerprint of a key in a file."""
    return fingerprint(_loaded(public))


def _loaded(public: Path) -> Any:
    try:
        return load_ssh_public_key(public.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{public} is not a public key ({error}); expected a file of server/keys.") from error


def _registered(info: Any) -> Registered:
    from flwr.common.constant import HEARTBEAT_PATIENCE

    seen = info.online_until - HEARTBEAT_PATIENCE * info.heartbeat_interval if info.online_until else None
    if info.status == "offline" and info.last_deactivated_at:
        seen = max(seen or 0.0, datetime.fromisoformat(info.last_deactivated_at).timestamp())
    key = fingerprint(load_pem_public_key(info.public_key)) if info.public_key else ""
    return Registered(info.node_id, info.name or f"node {info.node_id}", key, info.status, seen)
