"""The nodes of a deployment: add, remove and renew them, and show how they are.

A node is a member if its public key is in server/keys. register() makes the SuperLink agree.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

from fedstride.app import deploy
from fedstride.app.deploy.control import Registered, SuperLink, fingerprint_of, server_of, superlink
from fedstride.core.errors import InvalidInput

NAME = re.compile(r"node-(\d+)")
BOARD = ("flower", "fedstride")  # folders below the server's, where runs write what they are doing
CLIENTS = re.compile(r"(?m)^clients = \d+")


def numbers(server: Path) -> list[int]:
    """Return the numbers of the nodes whose keys are there."""
    found = (NAME.fullmatch(path.stem) for path in (server / "keys").glob("*.pub"))
    return sorted(int(match[1]) for match in found if match)


def add(folder: Path) -> tuple[int, Path]:
    """Write the folder of a new node; return its number, the first free one, and the folder."""
    known = numbers(folder / "server")
    number = next(n for n in range(len(known) + 1) if n not in known)
    place = deploy.node(folder, number)
    _count(folder / "server")
    return number, place


def remove(folder: Path, number: int) -> None:
    """Delete the key of a node, and its folder if it is still there."""
    server = server_of(folder)
    if number not in (known := numbers(server)):
        raise InvalidInput(f"node {number} is not a member; expected one of {', '.join(map(str, known)) or 'none'}.")
    if len(known) == 1:
        raise InvalidInput(f"node {number} is the only node; expected at least one that stays.")
    (server / "keys" / f"node-{number}.pub").unlink()
    if (place := folder / "nodes" / f"node-{number}").is_dir():
        shutil.rmtree(place)
    _count(server)


def gaps(folder: Path) -> list[int]:
    """Return the numbers that no node has, below the highest one: a run waits for a node of each number."""
    known = numbers(server_of(folder))
    return sorted(set(range(max(known, default=-1) + 1)) - set(known))


def register(folder: Path) -> list[str]:
    """Register new keys at the SuperLink, and end the access of nodes whose key was deleted; say what was done."""
    server = server_of(folder)
    keys = {fingerprint_of(path): path for path in sorted((server / "keys").glob("*.pub"))}
    done: list[str] = []
    with superlink(server) as link:
        there = link.nodes()
        for node in there:
            if node.key not in keys and NAME.fullmatch(node.name):
                link.unregister(node.node)
                done.append(f"{node.name}: unregistered, key {node.key}")
        for key, path in keys.items():
            if key not in {node.key for node in there}:
                link.register(path, path.stem)
                done.append(f"{path.stem}: registered, key {key}")
    return done


def status(folder: Path) -> dict[str, Any]:
    """Return the nodes of a deployment and its running runs."""
    server = server_of(folder)
    with superlink(server) as link:
        return described(link, server)


def described(link: SuperLink, server: Path) -> dict[str, Any]:
    running, registered = link.running(), link.nodes()
    boards = {board["run"]: board for path in server.joinpath(*BOARD).glob("run-*.json") if (board := _read(path))}
    known: dict[int, dict[str, Any]] = {}  # by node: what the newest run that met it says about it
    for board in sorted(boards.values(), key=lambda one: one["time"]):
        known |= {client["node"]: client for client in board["clients"]}
    runs = [{"run": run, **_progress(boards.get(run))} for run in running]
    return {"runs": runs, "nodes": [_row(node, known.get(node.node, {})) for node in registered]}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return the nodes of status() as rows of texts, with a head."""
    rows = [["name", "status", "last seen", "client", "called", "samples", "versions", "key"]]
    for node in found["nodes"]:
        versions = ", ".join(f"{name} {version}" for name, version in node["versions"].items())
        cells = (node["client"], node["called"], node["samples"], versions, node["key"])
        texts = ["-" if cell in (None, "") else str(cell) for cell in cells]
        rows.append([node["name"], node["status"], _ago(node["seen"]), *texts])
    return rows


def run_lines(found: dict[str, Any]) -> list[str]:
    """Return the runs of status() as sentences."""
    lines = []
    for run in found["runs"]:
        at = (
            "waiting for its nodes"
            if run["round"] is None
            else f"round {run['round']} of {run['rounds']} finished {_ago(run['time'])}"
        )
        lines.append(f"run {run['run']}: {at}")
    return lines or ["no run is active"]


def _progress(board: dict[str, Any] | None) -> dict[str, Any]:
    return {name: None if board is None else board[name] for name in ("round", "rounds", "time")}


def _row(node: Registered, client: dict[str, Any]) -> dict[str, Any]:
    return {
        **{"name": node.name, "node": str(node.node), "status": node.status, "seen": node.seen, "key": node.key},
        **{"client": client.get("client"), "called": client.get("name"), "samples": client.get("samples")},
        "versions": client.get("versions", {}),
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found if {"run", "time", "round", "rounds", "clients"} <= found.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _ago(seen: float | None) -> str:
    if seen is None:
        return "never"
    seconds = max(0.0, time.time() - seen)
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _count(server: Path) -> None:
    """Write the number of nodes that runs wait for into the app's settings."""
    settings = server / "app" / "pyproject.toml"
    if settings.is_file():
        count = max(numbers(server), default=0) + 1
        settings.write_text(CLIENTS.sub(f"clients = {count}", settings.read_text()))
