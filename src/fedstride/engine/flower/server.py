"""The server's side: a ServerApp that waits for its nodes and trains with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstride.algorithm.text import NOTHING
from fedstride.app.supernode.retry import retry_soon
from fedstride.core.errors import InvalidInput, positive, tell
from fedstride.data.federation import elsewhere
from fedstride.engine.flower.clients import Flower
from fedstride.engine.flower.nodes import Nodes, log
from fedstride.engine.flower.project import Project, arguments, identity
from fedstride.engine.flower.secure import secure_of
from fedstride.training import train as training
from fedstride.training import validate
from fedstride.training.guard import Guard
from fedstride.training.progress import line
from fedstride.training.result import Run
from fedstride.training.rounds import Event

DEADLINE = 600  # seconds that an exchange, or waiting for the nodes, may take


def server_app(project: Project) -> ServerApp:
    """Return the ServerApp of a project. It resumes from the checkpoint in the folder `out`, if there is one."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        train(project, grid, context.run_config)

    return app


def train(
    project: Project,
    grid: Grid,
    settings: Mapping[str, Any],
    callbacks: Sequence[Callable[[Event], object]] = (),
    nodes: Nodes | None = None,
) -> Run:
    """Train over a Flower grid. Several runs may use one grid: nodes follow these settings, not the run's configuration.

    Args:
        project: model, loss and data.
        grid: Flower's connection to the nodes.
        settings: arguments of fs.train(), `guard` and `stop` as texts such as "norm=10, spread=50"; `privacy` likewise;
            `clients`, the number of nodes; `out`, a folder; `deadline`, the seconds that an exchange may take; `quorum` of
            fs.Guard; `secure`, the largest norm of an update in a secure sum; `bound`, whether a client's number belongs to the
            first node, and its key, for the whole run; and whatever the project's functions read.
        callbacks: as in fs.train().
        nodes: the nodes, if an earlier run with the same model and data has gathered them.

    Returns:
        The Run.
    """
    retry_soon()
    own = dict(settings)
    given, deadline = arguments(own), own.get("deadline", DEADLINE)
    positive("settings", deadline=deadline)
    if "quorum" in own:
        given["guard"] = replace(given.get("guard") or Guard(), quorum=own["quorum"])
    model = project.build(own)
    nodes = replace(nodes, settings=_text(own)) if nodes is not None else gathered(project, grid, own)

    def show(event: Event) -> None:
        if event.round:
            log.info("round %d of %d: %s", event.round, given["rounds"], line(event.metrics))

    out = own.get("out") or NOTHING
    result = training.train(
        model,
        project.loss,
        elsewhere(nodes.sizes, nodes.found),
        test=None if project.test is None else project.test(own),
        engine=Flower(nodes, given["algorithm"], deadline, secure_of(own.get("secure"))),
        checkpoint=None if out == NOTHING else out,
        callbacks=[show, *callbacks],
        **given,
    )
    if out != NOTHING:
        result.save(out)
    return result


def gathered(project: Project, grid: Grid, settings: Mapping[str, Any]) -> Nodes:
    """Wait until all nodes of a run are connected, and return them."""
    model, clients = project.build(dict(settings)), validate.whole("clients", settings.get("clients"))
    bound = settings.get("bound", False)
    if not isinstance(bound, bool):
        raise InvalidInput(f"bound={bound!r} is invalid: expected true or false.")
    nodes = Nodes(grid, _text(settings), clients, lambda moving: identity(model, moving), bound)
    nodes.gather(settings.get("deadline", DEADLINE))
    log.info("%d clients are here, with %d samples", nodes.clients, sum(nodes.sizes))
    apart = sum(about.apart for about in nodes.abouts.values())
    if apart:
        tell(
            f"clients: at {apart} of {nodes.clients} nodes the scales of the input features are far apart, so that no step size "
            "suits all of them; the log of each node names the features. Use normalise=true, or scale the columns where "
            "each node loads its data."
        )
    return nodes


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
