"""The node's side: a ClientApp that describes its data and carries out the server's orders."""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import sampler
from fedstride.client.exchange import MOMENTS, Upload, exchanges
from fedstride.client.local import LocalOptions
from fedstride.client.personal import Personal
from fedstride.core.errors import FedstrideError, InvalidInput, Refused
from fedstride.core.model import Replica
from fedstride.core.normalise import Normalise
from fedstride.core.rows import Vec
from fedstride.data.federation import Federation, Found
from fedstride.engine.flower import records, secure
from fedstride.engine.flower.memory import FOLDER, Memory
from fedstride.engine.flower.project import Project, Settings, arguments, identity
from fedstride.engine.flower.secagg import masked
from fedstride.engine.local import one_thread
from fedstride.engine.protocol import Order, Task
from fedstride.engine.worker import Worker
from fedstride.training import validate
from fedstride.training.frozen import with_changed_weights
from fedstride.training.personal import personal_of
from fedstride.training.probe import Probed, described_sample
from fedstride.training.setup import task_of
from fedstride.wire.secure import Layout

log = logging.getLogger("flwr.fedstride")  # Flower shows what is under its own name
STATISTICS, MODEL = "statistics", "model"  # names in a memory file, beside those of the algorithm


def client_app(project: Project) -> ClientApp:
    """Return the ClientApp of a project."""
    app = ClientApp()

    @app.query("about")
    def about(message: Message, context: Context) -> Message:
        return _answered(lambda: _about(project, message, context), message, context)

    @app.train("gradients")
    def gradients(message: Message, context: Context) -> Message:
        return _answered(lambda: _reply(project, message, context, "gradients"), message, context)

    @app.train("updates")
    def updates(message: Message, context: Context) -> Message:
        return _answered(lambda: _reply(project, message, context, "updates"), message, context)

    @app.train(MOMENTS)
    def moments(message: Message, context: Context) -> Message:
        return _answered(lambda: _reply(project, message, context, MOMENTS), message, context)

    @app.train()
    def summed(message: Message, context: Context) -> Message:
        handle = masked(lambda m, c: _vector(project, m, c))
        return _answered(lambda: handle(message, context).content, message, context)

    return app


@dataclass(frozen=True)
class Station:
    """A node's model and data under the settings of a run."""

    project: Project
    settings: Settings
    node: Settings

    @cached_property
    def client(self) -> int:
        return records.client_number(self.node)

    @cached_property
    def given(self) -> dict[str, Any]:
        return arguments(self.settings)

    @cached_property
    def model(self) -> nn.Module:
        return self.project.build(self.settings)

    @cached_property
    def clients(self) -> Federation:
        return Federation([self.project.data(self.settings, self.node)])

    @property
    def algorithm(self) -> Algorithm:
        algorithm: Algorithm = self.given["algorithm"]
        return algorithm

    @property
    def options(self) -> LocalOptions:
        return LocalOptions(self.given["weight_decay"], self.given["clip_norm"])

    @cached_property
    def mixed(self) -> bool:
        return validate.mixed_of(self.given["precision"], self.model)

    @property
    def normalise(self) -> Normalise:
        return validate.normalise_of(self.given["normalise"], self.algorithm, self.model) or False

    @cached_property
    def personal(self) -> Personal | None:
        return personal_of(self.given["personal"], self.given["personal_steps"], self.algorithm, self.model)

    def whole(self, x: Vec) -> Vec:
        """Return the model that an order is about, which has no personal entries."""
        return x if self.personal is None else self.personal.whole(x, Replica(self.model).row())

    def task(self, found: Found) -> Task:
        algorithm, found, buffers = with_changed_weights(self.algorithm, found, self.model, self.given["buffers"])
        own = {"model": self.model, "loss": self.probed.loss, "clients": self.probed.clients, "weights": (1.0,)}
        own |= {"buffers": buffers, "mixed": self.mixed, "metrics": {}, "personal": self.personal}
        return task_of(algorithm, found, {**self.given, **own})

    @cached_property
    def probed(self) -> Probed:
        _ = self.mixed  # before anything computes
        return validate.try_out(self.model, self.project.loss, self.clients, (), self.normalise)

    def tried_out(self) -> tuple[Found, str]:
        """Try the model on the node's data; return what was found, and a warning if features need scaling."""
        probed, warning = self.probed, ""
        if self.normalise:
            secure.check_inputs(self.settings.get("secure"), self.clients[0].take()[0])
        elif not validate.is_normalised(self.model):
            warning, _ = validate.look_at_scales(self.clients, probed.inputs, self.algorithm.privacy is not None)
        found = Found(probed.reduction, probed.moving, probed.random, probed.features)
        given, local_steps = self.given, self.given["local_steps"]
        if isinstance(local_steps, list):  # one number per client
            local_steps = local_steps[self.client : self.client + 1] or local_steps
        steps = validate.steps_of(local_steps, given["epochs"], given["batch_size"], self.clients.sizes)
        own = replace(self.algorithm, privacy=None)  # one client cannot judge the privacy of all
        validate.fits(own, self.task(found), self.options, sampler(None, 1), steps, tested=False)
        return found, warning

    def worker(self, found: Found) -> Worker:
        """Return a worker for one client: closed form if there is one, else a loop."""
        task, work = self.task(found), exchanges(self.algorithm, self.options, self.normalise)
        try:
            return Worker(task, work, "linear")
        except Refused:
            return Worker(task, work, "loop")


@lru_cache(maxsize=8)  # a process of a simulation serves several nodes
def station(project: Project, settings: str, node: str) -> Station:
    return Station(project, json.loads(settings), json.loads(node))


@lru_cache(maxsize=8)
def worker(project: Project, settings: str, node: str, found: str) -> Worker:
    return station(project, settings, node).worker(records.found_of(found))


def perform(
    project: Project, content: RecordDict, context: Context, kind: str, sums: Layout | None = None
) -> tuple[Order, Upload]:
    """Carry out an order; return it with the upload. The client's new memory is on disk when this returns."""
    errand = records.errand_of(content)
    node = json.dumps(dict(context.node_config), sort_keys=True)
    here = station(project, errand.settings, node)
    device = next(here.model.parameters()).device
    order = records.order_of(content, kind, device)
    client, _ = order.cohort[0]
    if client != here.client:
        raise InvalidInput(f"an order for client {client} came to a node that is client {here.client}.")
    files = Memory(Path(str(here.node.get("memory", FOLDER))), errand.token, client)
    kept, round = files.read(errand.base) if errand.base else ({}, order.round)
    x, statistics = kept.pop(MODEL, order.x).to(device), kept.pop(STATISTICS, order.stats).to(device)
    order = replace(order, x=here.whole(order.x) if len(order.x) else x)
    fresh = here.algorithm.memory(order.x, here.personal) if kind != MOMENTS else {}
    memory = {name: v.to(device) for name, v in kept.items() if round == order.round or name in fresh} or fresh
    upload, moved = worker(project, errand.settings, node, errand.found).work(
        order,
        order.cohort,
        [here.probed.clients[0]],
        {name: v[None] for name, v in memory.items()},
        statistics[None] if len(order.stats) else None,
    )
    state = secure.remembered(upload, sums, memory, here.personal)
    if moved is not None:
        state[STATISTICS] = moved[0]
    if kind == "gradients":
        state[MODEL] = order.x  # which is not sent again in this round
    if state:
        files.write(errand.keep, state, order.round)
    files.forget(errand.retain, (order.round, order.call))
    return order, upload


def _vector(project: Project, message: Message, context: Context) -> Tensor:
    """Carry out an order of a secure sum; return the encoded upload."""
    kind, sums, weight = secure.asked_for(message.content)
    with one_thread(), torch.enable_grad():
        _, upload = perform(project, message.content, context, kind, sums if isinstance(sums, Layout) else None)
    return secure.encoded(upload, sums, weight)


def _reply(project: Project, message: Message, context: Context, kind: str) -> RecordDict:
    if context.node_config.get("secure"):
        raise InvalidInput("this node was started with secure=true: it takes part in secure sums only; set `secure`.")
    with one_thread(), torch.enable_grad():
        order, upload = perform(project, message.content, context, kind)
    return records.uploaded(upload, order)


def _about(project: Project, message: Message, context: Context) -> RecordDict:
    settings = str(message.content.config_records["run"]["settings"])
    here = station(project, settings, json.dumps(dict(context.node_config), sort_keys=True))
    number = here.client
    with torch.enable_grad():
        found, warning = here.tried_out()
    if warning:
        log.warning("%s", warning)  # it quotes data, which must not leave the node
    facts: dict[str, int | str | bool | float] = {
        "client": number,
        "samples": here.clients.sizes[0],
        "found": records.found_text(found),
        "kind of samples": described_sample(here.probed.clients[0].take(torch.arange(1, device="cpu"))),
        "name": str(context.node_config.get("name", "")),
        "time": time.time(),
        "scales far apart": bool(warning) and here.algorithm.privacy is None,
    }
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    known = ConfigRecord({**identity(here.model, found.moving), **versions})
    return RecordDict({"about": ConfigRecord({**facts}), "identity": known})


def _answered(work: Callable[[], RecordDict], message: Message, context: Context) -> Message:
    """Answer a message. Errors become an answer with the client's number: Flower would send their whole text."""
    try:
        content = work()
    except Exception as error:
        if isinstance(error, FedstrideError):  # its text says what to do
            log.error("the order was refused: %s: %s", type(error).__name__, error)
        else:
            log.exception("the order failed")
        number = str(context.node_config.get("client", context.node_config.get("partition-id")))
        text = re.sub(r"clients\[0\]|client 0\b", f"client {number}", records.told(error))
        content = RecordDict({"problem": ConfigRecord({"kind": type(error).__name__, "text": text, "client": number})})
    return Message(content, reply_to=message)
