"""What operators asked for in a run's settings: a monitor and an audit log. They watch the run, and never change it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedstride.algorithm.text import NOTHING
from fedstride.app.audit import Audit, code_hash, file_hash, text_hash
from fedstride.app.deploy.control import own_server, superlink
from fedstride.app.deploy.members import BOARD
from fedstride.app.monitor import monitor_at
from fedstride.core.errors import FedstrideError, InvalidInput
from fedstride.core.files import replace_file
from fedstride.engine.flower.nodes import Nodes
from fedstride.engine.flower.nodes import log as flower_log
from fedstride.engine.flower.project import Project
from fedstride.training.result import Run
from fedstride.training.rounds import Event

Callback = Callable[[Event], object]
KEPT = 20  # runs whose progress `fedstride deploy status` can still read


class Operators:
    """The watchers of a run. They know its nodes as soon as these are gathered."""

    def __init__(self, run: int | None, rounds: int) -> None:
        self.run, self.rounds, self.server = run, rounds, own_server()
        self.audit: Audit | None = None
        self.nodes: Nodes | None = None
        self.keys: dict[int, str] | None = None  # by node: fingerprints of keys, as far as the SuperLink was asked
        self.callbacks: list[Callback] = [lambda event: self.show(event.round)]

    def refused(self, node: int, why: str) -> None:
        """Note that a node was left out."""
        if self.audit is not None:
            self.audit.add("refused", node=str(node), key=self._key(node), why=why)

    def gathered(self, nodes: Nodes) -> None:
        """Note the nodes of the run."""
        self.nodes = nodes
        self.show(0)
        if self.audit is not None:
            self.audit.add("nodes", clients={str(c): {**self.who(c), **_described(nodes, c)} for c in sorted(nodes.at)})

    def show(self, round: int) -> None:
        """Write the progress of the run where `fedstride deploy status` reads it, if this is a deployment."""
        if self.server is None or self.run is None or self.nodes is None:
            return
        clients = [{"client": c, "node": node, **_described(self.nodes, c)} for c, node in self.nodes.at.items()]
        facts = {"run": self.run, "time": time.time(), "round": round, "rounds": self.rounds, "clients": clients}
        place = self.server.joinpath(*BOARD)
        replace_file(place / f"run-{self.run}.json", json.dumps(facts), private=True)
        for old in sorted(place.glob("run-*.json"), key=os.path.getmtime)[:-KEPT]:
            old.unlink(missing_ok=True)

    def ended(self, run: Run) -> None:
        """Note how the run ended, after its files were written."""
        if self.audit is not None:
            self.audit.close(run.ended)

    def who(self, client: int) -> dict[str, Any]:
        """Return the node of a client, and the fingerprint of its key."""
        assert self.nodes is not None
        node = self.nodes.at[client]
        return {"node": str(node), "key": self._key(node)}

    def _key(self, node: int) -> str | None:
        """Return the fingerprint of a node's key; None where nodes have no keys, as in simulations."""
        if self.server is not None and node not in (self.keys or {}):
            with suppress(FedstrideError), superlink(self.server) as link:
                self.keys = {one.node: one.key for one in link.nodes()}
        return (self.keys or {}).get(node)


@contextmanager
def watched(project: Project, settings: Mapping[str, Any], rounds: int, run: int | None) -> Iterator[Operators]:
    """Yield the watchers that the settings ask for; an error that ends the run is noted.

    Raises:
        InvalidInput: if a setting is invalid, a port is in use, or the audit log is broken.
    """
    wanted, out = settings.get("audit", False), settings.get("out") or NOTHING
    if not isinstance(wanted, bool):
        raise InvalidInput(f"audit={wanted!r} is invalid: expected true or false.")
    if wanted and out == NOTHING:
        raise InvalidInput("audit=true needs a folder for the log; set `out`.")
    watchers = Operators(run, rounds)
    with ExitStack() as stack:
        if (where := settings.get("monitor") or NOTHING) != NOTHING:
            monitor = stack.enter_context(closing(monitor_at(where)))
            flower_log.info("monitor: http://%s/", monitor.address)
            watchers.callbacks.append(monitor)
        if wanted:
            about = {"run": str(run), "configuration": text_hash(dict(settings)), "code": {"app": app_hash(project)}}
            watchers.audit = Audit(out, about, watchers.who)
            watchers.callbacks.append(watchers.audit)
        try:
            yield watchers
        except BaseException as error:
            if watchers.audit is not None:
                watchers.audit.add("failed", error=type(error).__name__, text=str(error)[:1000])
            raise


def app_hash(project: Project) -> str:
    """Return a hash of the app's code: the packages, or single files, with the project's functions."""
    functions = [function for function in (project.model, project.data, project.test) if function is not None]
    found: dict[str, str] = {}
    for module in {sys.modules[function.__module__] for function in functions}:
        name = (module.__package__ or "").partition(".")[0] or module.__name__
        path = getattr(sys.modules.get(name, module), "__file__", None) or ""
        if path.endswith("__init__.py"):
            found[name] = code_hash(Path(path).parent)
        elif path:
            found[name] = file_hash(Path(path))
    return text_hash(found)


def _described(nodes: Nodes, client: int) -> dict[str, Any]:
    about = nodes.abouts[client]
    return {"name": about.name, "samples": about.samples, "versions": nodes.versions(client)}
