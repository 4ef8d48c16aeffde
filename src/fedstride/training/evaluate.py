"""fs.evaluate(): loss, accuracy and metrics of a model, on one data set or on one for each client, also fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedstride.core.batch import described, selected, split_of
from fedstride.core.errors import FedstrideError, InvalidInput, nearest
from fedstride.core.losses import Loss, for_output, wants_class_labels
from fedstride.core.losses import resolve as resolve_loss
from fedstride.core.scores import resolve
from fedstride.data.clients import Client, Collate, client_of
from fedstride.data.federation import federation
from fedstride.data.sets import sets_of
from fedstride.engine.evaluation import Scores, outputs_of, score
from fedstride.training.fine_tune import FineTune


def evaluate(
    model: nn.Module,
    data: Any,
    loss: str | Loss = "cross_entropy",
    metrics: Mapping[str, Any] | Sequence[str] | None = None,
    collate: Collate | None = None,
    fine_tune: FineTune | None = None,
) -> Any:
    """Evaluate a model.

    Args:
        model: any nn.Module, such as run.model. It is evaluated in evaluation mode, and left as it was.
        data: samples as in fs.train(test=...); or a Federation, a list of them, or a dict of them by name.
        loss: as in fs.train().
        metrics: as in fs.train().
        collate: as in fs.train().
        fine_tune: fs.FineTune(...), to adapt a copy of the model to each client before it is evaluated on the client's test
            set; `data` has one for each client.

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

    def scores(name: str, value: Any, its_model: nn.Module = model) -> Scores:
        return _scores(its_model, criterion, loss, wanted, client_of(name, value, collate), name)

    several = sets_of(data, collate)
    if several is None:
        if fine_tune is not None:
            raise InvalidInput(
                "fine_tune with one data set; expected a list or a dict of test sets, one for each client."
            )
        return scores("data", data)
    names, values = several
    if fine_tune is None:
        models = [model] * len(values)
    else:
        models = _adapted(model, loss, fine_tune, names, len(values), collate)
    labels = names or range(len(values))
    found = [scores(f"data[{k!r}]", v, m) for k, v, m in zip(labels, values, models, strict=True)]
    return dict(zip(names, found, strict=True)) if names else found


def _adapted(
    model: nn.Module, loss: str | Loss, tuning: FineTune, names: list[Any], sets: int, collate: Collate | None
) -> list[nn.Module]:
    """Return a copy of the model for each test set, adapted to the training data of the same client."""
    if not isinstance(tuning, FineTune):
        raise InvalidInput(f"fine_tune={tuning!r} is invalid: expected fs.FineTune(clients, steps=...).")
    clients = federation(tuning.clients, collate)
    if len(clients) != sets:
        raise InvalidInput(f"FineTune: got {len(clients)} clients and {sets} test sets; expected as many of each.")
    known = list(clients.names)
    unknown = [name for name in names if known and str(name) not in known]
    if unknown:
        raise InvalidInput(f"FineTune: there is no client {unknown[0]!r}; {nearest(str(unknown[0]), known)}")
    order = [known.index(str(name)) for name in names] if known and names else range(sets)
    return [tuning.adapted(model, loss, clients[i], collate) for i in order]


def _scores(model: nn.Module, criterion: Loss, loss: Any, metrics: dict[str, Any], data: Client, name: str) -> Scores:
    if len(data) == 0:
        raise InvalidInput(f"{name}: it has no samples; expected at least one.")
    like = next(iter(model.parameters()), torch.empty(0))
    split = split_of(data.batch(torch.arange(1, device="cpu")), model, loss, name, wants_class_labels(criterion))
    try:
        results = outputs_of(model, data.divided(split, like.dtype))
        return score(for_output(criterion, results[0][0]), metrics, results)
    except FedstrideError:
        raise
    except Exception as error:
        raise InvalidInput(f"{name}: model and loss do not fit its samples {_sample_text(data)}: {error}") from error


def _sample_text(data: Client) -> str:
    return described(selected(data.batch(torch.zeros(1, dtype=torch.int64, device="cpu")), 0))
