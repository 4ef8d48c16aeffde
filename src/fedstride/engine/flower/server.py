"""The server's side: a ServerApp that waits for its nodes and trains with them."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstride.algorithm.text import NOTHING
from fedstride.app.json_logs import json_logs
from fedstride.app.progress import HANGUP, SIGNALS
from fedstride.app.supernode.retry import retry_soon
from fedstride.core.errors import FedstrideError, InvalidInput, positive, tell
from fedstride.data.federation import elsewhere
from fedstride.engine.flower.clients import Flower, left_out
from fedstride.engine.flower.nodes import Nodes, log
from fedstride.engine.flower.operators import watched
from fedstride.engine.flower.project import Project, arguments, identity
from fedstride.engine.flower.secure import secure_of
from fedstride.training import train as training
from fedstride.training import validate
from fedstride.training.guard import Guard
from fedstride.training.history import MEDIAN_LOSS
from fedstride.training.progress import line
from fedstride.training.result import Run
from fedstride.training.rounds import Event

HEAVY = 100  # times the median: a client with more samples than this, or than half of all, is named
INSTEAD = {  # by use of the counts of samples: what does not depend on them
    'weights="samples"': 'use weights="uniform", also with a robust mean such as fs.TrimmedMean',
    "normalise=true": "scale the inputs where each node loads its data",
    "steps in epochs": "use local_steps, or an algorithm that does not multiply by the number of steps, as FedNova does",
}
DEADLINE = 600  # seconds that an exchange, or waiting for the nodes, may take


def server_app(project: Project) -> ServerApp:
    """Return the ServerApp of a project. It resumes from the checkpoint in the folder `out`, if there is one."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        json_logs()
        logging.getLogger("flwr").addFilter(without_traceback)
        with saved_on_signals():
            train(project, grid, context.run_config)

    return app


def without_traceback(record: logging.LogRecord) -> bool:
    """Let Flower log an error of fedstride without its traceback: the text says what to do. Used as a filter of its logger."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, FedstrideError):
        record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, error), None
    return True


@contextmanager
def saved_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt a run as Ctrl-C does, so that it is saved; then end the process as Flower does."""
    asked: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not asked:
            asked.append(number)
            raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()  # other threads cannot set handlers
    nohup = HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN
    mine = [number for number in SIGNALS if here and not (nohup and number == HANGUP)]
    before = {number: signal.signal(number, interrupt) for number in mine}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            signal.raise_signal(signal.SIGTERM if asked[0] == HANGUP else asked[0])  # Flower does not handle SIGHUP


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
            fs.Guard, with which a run also starts without clients that have no usable node; `secure`, the largest norm of an
            update in a secure sum; `bound`, whether a client's number belongs to the first node, and its key, for the whole
            run; `monitor`, the port of fs.loggers.Prometheus, or "ADDRESS:PORT"; `audit`, whether fs.loggers.Audit writes a
            log to `out`; and whatever the project's functions read. Lists are texts such as weights="[120, 75, 90]".
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
    if (stop := given.get("stop")) is not None and stop.metric == "train_loss":  # a mean, which one node could move
        given["stop"] = replace(stop, metric=MEDIAN_LOSS)

    def show(event: Event) -> None:
        if event.round:
            text, facts = line(event.metrics), {"facts": {"metrics": event.metrics}}
            log.info("round %d of %d: %s", event.round, given["rounds"], text, extra=facts)

    out = own.get("out") or NOTHING
    run = getattr(getattr(grid, "run", None), "run_id", None)
    with watched(project, own, given["rounds"], run) as operators:
        model = project.build(own)
        if nodes is None:
            nodes = gathered(project, grid, own, operators.refused)
        else:
            nodes = replace(nodes, settings=_text(own), refused=operators.refused)
        operators.gathered(nodes)
        result = training.train(
            model,
            project.loss,
            elsewhere(nodes.sizes, nodes.found),
            test=None if project.test is None else project.test(own),
            engine=Flower(nodes, given["algorithm"], deadline, secure_of(own.get("secure"))),
            checkpoint=None if out == NOTHING else out,
            callbacks=[show, *operators.callbacks, *callbacks],
            **given,
        )
        if out != NOTHING:
            result.save(out)
        operators.ended(result)
        return result


def gathered(
    project: Project, grid: Grid, settings: Mapping[str, Any], refused: Callable[[int, str], object] | None = None
) -> Nodes:
    """Wait until all nodes of a run are connected, and return them; refused(node, why) is told about others."""
    model, clients = project.build(dict(settings)), validate.whole("clients", settings.get("clients"))
    bound = settings.get("bound", False)
    if not isinstance(bound, bool):
        raise InvalidInput(f"bound={bound!r} is invalid: expected true or false.")
    nodes = Nodes(grid, _text(settings), clients, lambda moving: identity(model, moving), bound)
    nodes.refused = refused or nodes.refused
    given, out = arguments(settings), settings.get("out") or NOTHING
    nodes.left_out = set() if out == NOTHING else left_out(Path(out), clients)
    nodes.gather(settings.get("deadline", DEADLINE), least_of(settings, given, clients))
    here = {client: nodes.abouts[client].samples for client in sorted(nodes.at)}
    log.info("%d clients are here, with %d samples", len(here), sum(here.values()))
    for client, size in here.items():
        log.info("%s: node %d, %d samples", nodes.label(client), nodes.at[client], size)
    trusts = {
        'weights="samples"': given["weights"] in ("samples", "sample"),
        "normalise=true": bool(given["normalise"]),
        "steps in epochs": "effective_steps" in given["algorithm"].needs and given["local_steps"] is None,
    }
    for use in (use for use, on in trusts.items() if on):
        look_at_counts(nodes.sizes, nodes.label, use)
    apart = sum(about.apart for about in nodes.abouts.values())
    if apart:
        tell(
            f"clients: at {apart} of {nodes.clients} nodes the scales of the input features are far apart, so that no step size "
            "suits all of them; the log of each node names the features. Use normalise=true, or scale the columns where "
            "each node loads its data."
        )
    return nodes


def least_of(settings: Mapping[str, Any], given: Mapping[str, Any], clients: int) -> int | None:
    """Return the number of clients that a run may start with; None, all of them, unless a quorum is set."""
    if "quorum" in settings:
        return replace(Guard(), quorum=settings["quorum"]).least(clients)
    own = "quorum" in str(settings.get("guard"))
    return given["guard"].least(clients) if own else None


def look_at_counts(sizes: Sequence[float], label: Callable[[int], str], use: str) -> None:
    """Warn about clients that could dominate the mean, because nobody can check the counts of samples that nodes claim.

    Args:
        sizes: the counts.
        label: returns the name of a client, for the message.
        use: what the counts are used for, a key of INSTEAD.
    """
    most = min(HEAVY * median(sizes), sum(sizes) / 2)
    heavy = [client for client, size in enumerate(sizes) if size > most and len(sizes) > 2]
    if heavy:
        who = ", ".join(f"{label(client)} with {sizes[client]:,.0f}" for client in heavy[:5])
        tell(
            f"{use}: {who} of {sum(sizes):,.0f} samples (median {median(sizes):,.0f}) can outweigh the others. Counts are as "
            f"the nodes claim; if you do not trust them, {INSTEAD[use]}."
        )


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
