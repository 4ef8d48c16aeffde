"""The client's side of a strategy: one call in the function under @app.train()."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import nn

from fedstride.core.errors import InvalidInput
from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.engine.flower import node, records
from fedstride.engine.flower.project import Project
from fedstride.flower.layout import difference, tensors_of
from fedstride.flower.members import ORDER
from fedstride.training import validate


def train(
    msg: Message,
    context: Context,
    model: nn.Module,
    loss: str | Loss,
    data: Any,
    *,
    local_steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> Message:
    """Take the local steps of the server's strategy, and return the reply; call it in the function under @app.train().

    Args:
        msg: the message of the server.
        context: the context of the app. The client's number is `client` or `partition-id` in its node configuration.
        model: the model; the arrays of the message are loaded into it.
        loss: as in fs.train().
        data: the client's samples, as one element of `clients` in fs.train(): (inputs, targets), a Dataset or a DataLoader.
        local_steps: local steps per round. Default: one epoch.
        epochs: instead of local_steps: passes over the data, which may be fractional.
        batch_size: samples per step; None = the full batch.
        weight_decay: added to the local loss.
        clip_norm: largest norm of a local gradient, before any drift correction.

    Returns:
        The reply.

    Raises:
        InvalidInput: the message is not from a strategy of fedstride.flower whose clients take its steps. Other errors are
            logged on the client, and sent to the server without texts of the data.

    Example:
        >>> @app.train()  # doctest: +SKIP
        ... def train(msg, context):
        ...     return fedstride.flower.train(msg, context, Net(), "cross_entropy", load_data(context), batch_size=32)
    """
    asked = msg.content.config_records.get(ORDER)
    if asked is None:
        raise InvalidInput(
            f"msg: no record {ORDER!r} in {sorted(msg.content)}: the server's strategy leaves the steps to the app. Use a strategy "
            'of fedstride.flower whose clients take its steps, such as Auto() or Strategy("fedexp"), or keep your own loop.'
        )
    given = {"local_steps": local_steps, "epochs": epochs, "batch_size": batch_size}
    given |= {"weight_decay": weight_decay, "clip_norm": clip_norm}
    own = {name: value for name, value in given.items() if value is not None}
    project = Project(lambda settings: model, loss, lambda settings, node: data)
    kind = str(asked["kind"])

    def work() -> RecordDict:
        load(model, msg.content)
        content = msg.content
        settings = content.config_records["run" if kind == "about" else "order"]
        settings["settings"] = json.dumps({**json.loads(str(settings["settings"])), **own}, sort_keys=True)
        if kind == "about":
            return _about(project, msg, context, own)
        errand = records.errand_of(content)
        replica = Replica(model, records.found_of(errand.found).moving)
        content["model"] = records.arrays({"x": replica.row(), "stats": replica.stats()})
        return node._reply(project, msg, context, kind)

    try:
        return node._answered(work, msg, context)
    finally:  # they hold this call's model and data
        node.station.cache_clear()
        node.worker.cache_clear()


def load(model: nn.Module, content: RecordDict) -> None:
    """Load the arrays of a message into a model.

    Raises:
        InvalidInput: if names or shapes differ.
    """
    found = [record for record in content.array_records.items() if record[0] != "broadcast"]
    record: ArrayRecord = found[0][1]
    arrays = tensors_of(record, "the message")
    wrong = difference(arrays, model.state_dict())
    if wrong is not None:
        raise InvalidInput(
            f"model: {wrong.replace(chr(39), '')} in the server's initial_arrays; build the same model on the server and on the clients."
        )
    model.load_state_dict(arrays)


def _about(project: Project, msg: Message, context: Context, own: dict[str, Any]) -> RecordDict:
    """Describe the client: as the Flower engine does, and how many steps it takes."""
    content = node._about(project, msg, context)
    size = int(content.config_records["about"]["samples"])  # type: ignore[arg-type]
    steps = validate.steps_of(own.get("local_steps"), own.get("epochs"), own.get("batch_size"), [size])(0, 0)
    facts = {"steps": str(steps), "batch size": str(own.get("batch_size"))}
    content["identity"] = ConfigRecord({**content.config_records["identity"], **facts})
    return content
