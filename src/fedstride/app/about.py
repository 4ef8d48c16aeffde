"""Facts for run folders: the clients with the scores of the returned model on their data, and the environment."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

import fedstride
from fedstride.core.batch import logits_of, targets_of
from fedstride.core.losses import Loss
from fedstride.data.clients import Client
from fedstride.data.federation import Lazy
from fedstride.engine.evaluation import Scores, outputs_of, score
from fedstride.engine.local import cores
from fedstride.training.result import Run

MOST_CLASSES = 1000  # with more, samples are not counted by class


def environment(when: str = "started", private: bool = False) -> dict[str, Any]:
    """Return versions, machine, command and time; when: the key of the time; private: without the command."""
    command = {} if private else {"command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])}
    return {
        "fedstride": fedstride.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
        **command,
        when: datetime.now(UTC).isoformat(timespec="seconds"),
    }


def about_clients(run: Run) -> dict[str, Any] | None:
    """Return sizes, names, label counts, accuracy and loss for each client: of its own model if it has one.

    Only sizes and names of clients that are loaded on demand; None if the run has no data on this machine, or is private.
    """
    if run.source is None or (run.algorithm is not None and run.algorithm.privacy is not None):
        return None
    clients = run.source.clients
    known = {"sizes": list(clients.sizes), "names": list(clients.names) or None}
    if isinstance(clients, Lazy):
        return known
    own = run.personal
    models = (run.model if own is None else own[i] for i in range(len(clients)))
    found = [_scores(model, run.source.loss, client) for model, client in zip(models, clients, strict=True)]
    labels = [counts for _, counts in found if counts is not None]
    classes = [*clients.classes, *map(str, range(len(clients.classes), MOST_CLASSES))]
    counted = len(labels) == len(found)
    return {
        "sizes": known["sizes"],
        "labels": labels if counted else None,
        "classes": classes[: len(labels[0])] if counted else None,
        "accuracy": _column(found, "accuracy"),
        "loss": _column(found, "loss"),
        "names": known["names"],
    }


def _column(found: list[tuple[Scores, Any]], name: str) -> list[float | None] | None:
    values = [scores[name] for scores, _ in found]
    return None if all(v is None for v in values) else values


def _scores(model: nn.Module, loss: Loss, client: Client) -> tuple[Scores, list[int] | None]:
    """Return the scores of a model on the data of a client, and the number of samples in each class."""
    results = outputs_of(model, client)
    return score(loss, {}, results), _counts(logits_of(results[0][0]), [targets_of(t) for _, t in results])


def _counts(logits: Any, parts: list[Any]) -> list[int] | None:
    """Count the samples in each class; None if the targets are not classes of single samples."""
    if not isinstance(logits, Tensor) or not all(isinstance(t, Tensor) and t.dim() == 1 for t in parts):
        return None
    targets = torch.cat(parts)
    classes = logits.shape[1] if logits.dim() == 2 and logits.shape[1] > 1 else 2
    if targets.is_floating_point() or logits.dim() > 2 or classes > MOST_CLASSES:
        return None
    if not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        return None
    counts: list[int] = torch.bincount(targets.cpu(), minlength=classes).tolist()
    return counts
