"""fs.evaluate(): loss, accuracy and metrics of a model, on one data set or on one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedstride.core.batch import called, moved, split_of
from fedstride.core.errors import InvalidInput
from fedstride.core.losses import Loss, for_output
from fedstride.core.losses import resolve as resolve_loss
from fedstride.core.scores import resolve
from fedstride.data.clients import Client, Collate, client_of
from fedstride.data.federation import Federation, Lazy
from fedstride.engine.evaluation import Scores, evaluation_parts, score


def evaluate(
    model: nn.Module,
    data: Any,
    loss: str | Loss = "cross_entropy",
    metrics: Mapping[str, Any] | Sequence[str] | None = None,
    collate: Collate | None = None,
) -> Any:
    """Evaluate a model.

    Args:
        model: any nn.Module, such as run.model. It is evaluated in evaluation mode, and left as it was.
        data: samples as in fs.train(test=...); or a Federation, a list of them, or a dict of them by name.
        loss: as in fs.train().
        metrics: as in fs.train().
        collate: as in fs.train().

    Returns:
        A dict with "loss", "accuracy" (None if the task is not a classification) and the metrics; for several data sets
        a list of such dicts, or a dict by name.

    Raises:
        InvalidInput: data, loss or a metric is invalid.

    Example:
        >>> scores = fs.evaluate(nn.Linear(4, 3), (inputs, targets), metrics=["f1"])
        >>> sorted(scores)
        ['accuracy', 'f1', 'loss']
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model: got {type(model).__name__}; expected a torch.nn.Module.")
    wanted, criterion = resolve(metrics), resolve_loss(loss)

    def scores(name: str, value: Any) -> Scores:
        return _scores(model, criterion, loss, wanted, client_of(name, value, collate), name)

    if isinstance(data, Federation | Lazy):
        found = [scores(f"data[{i}]", client) for i, client in enumerate(data)]
        return dict(zip(data.names, found, strict=True)) if data.names else found
    if isinstance(data, Mapping) and not all(hasattr(v, "dtype") for v in data.values()):
        return {name: scores(f"data[{name!r}]", value) for name, value in data.items()}
    if isinstance(data, list) and data and not all(hasattr(v, "dtype") for v in data):
        return [scores(f"data[{i}]", value) for i, value in enumerate(data)]
    return scores("data", data)


def _scores(model: nn.Module, criterion: Loss, loss: Any, metrics: dict[str, Any], data: Client, name: str) -> Scores:
    if len(data) == 0:
        raise InvalidInput(f"{name}: it has no samples; expected at least one.")
    like = next(iter(model.parameters()), torch.empty(0))
    split = split_of(data.batch(torch.arange(1, device="cpu")), model, loss, name)
    divided, was_training = data.divided(split, like.dtype), model.training
    model.eval()
    results = []
    try:
        with torch.no_grad():
            for index in evaluation_parts(len(data)):
                inputs, targets = (moved(part, like.device) for part in divided.take(index))
                results.append((called(model, inputs), targets))
    finally:
        model.train(was_training)
    return score(for_output(criterion, results[0][0]), metrics, results)
