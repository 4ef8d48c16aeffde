"""Histories that are made up, each with one thing wrong, and small real runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fedstride as fs
from fedstride.app.diagnose import Diagnosis, diagnosis
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.read import of_run
from fedstride.app.report.read import Record
from fedstride.training.history import Row

N = 30
GOOD = [2.0 * 0.7**t + 0.1 for t in range(N)]  # falls, then settles
SMALL = [2.0 - 0.001 * t for t in range(N)]
STUCK = [2.0] * 3 + [1.2, 1.0, 0.9] + [0.85] * (N - 6)
HALF = [2.0 - 0.04 * t for t in range(N)]  # still falls
CONSTANT = {"samples": 1000, "accuracy": 0.5, "loss": 0.7}  # what a constant prediction scores


def rows(loss: list[Any], **columns: Any) -> list[Row]:
    """A healthy history of this training loss; other columns as a value for all rounds, or as a list."""
    given = {
        "test_loss": loss,
        "test_accuracy": [0.9 - 0.4 * 0.7**t for t in range(len(loss))],
        "server_step": 1.0,
        "client_step": 0.1,
        "trials": 0.0,
        "failed": 0,
        "update": 0.5,
        "turn": 0.1,
        "drift": 0.5,
        "compression": 0.0,
        "participants": 10,
        "lost": 0,
        **columns,
    }
    made = []
    for t, value in enumerate(loss):
        own = {k: v[t] if isinstance(v, list) else v for k, v in given.items() if v is not ...}
        step = own.get("client_step")
        made.append({"round": t + 1, "train_loss": value, "client_steps": [step] * 5, **own})
    return made


def judged(
    loss: list[Any],
    algorithm: fs.Algorithm | str | None = "fedavg",
    clients: dict[str, Any] | None = None,
    planned: int | None = None,
    single: bool | None = None,
    facts: dict[str, Any] | None = None,
    **columns: Any,
) -> Diagnosis:
    chosen = fs.recipes.get(algorithm) if isinstance(algorithm, str) else algorithm
    record = Record("made", rows(loss, **columns), clients=clients or {})
    return diagnosis(Evidence(record, chosen, planned, single, facts or {}))


def severities(found: Diagnosis) -> dict[str, str]:
    return {f.name: f.severity for f in found.findings}


def causes(found: Diagnosis) -> list[str]:
    return [f.name for f in found.findings if f.severity == "cause"]


def least_squares(
    apart: float = 0.0, n: int = 10, d: int = 20, clients: int = 8
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients of n rows and d unknowns; `apart` is how far their solutions are from a common one."""
    source = torch.Generator().manual_seed(0)
    w, data = torch.randn(d, 1, generator=source), []
    for _ in range(clients):
        A = torch.randn(n, d, generator=source)
        data.append((A, A @ (w + apart * torch.randn(d, 1, generator=source))))
    return data


def learned(algorithm: fs.Algorithm | str, data: list[tuple[torch.Tensor, torch.Tensor]], **options: Any) -> fs.Run:
    model = nn.Linear(data[0][0].shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    given = {"rounds": 30, "local_steps": 10, **options}
    try:
        return fs.train(model, "mse", data, algorithm, **given)
    except fs.Diverged as error:
        return error.run


def digits(algorithm: fs.Algorithm | str, rounds: int = 20, **options: Any) -> fs.Run:
    """Softmax regression on digits, two classes to a client."""
    table = fs.data.load("digits")
    clients = fs.data.federate(table, fs.data.partition.shards(table.train[1], 50, 0, shards=2))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for p in model.parameters():
        nn.init.zeros_(p)
    given = {"cohort": 10, "epochs": 1, "batch_size": 10, "test": table.test, **options}
    return fs.train(model, "cross_entropy", clients, algorithm, rounds=rounds, **given)


def of(run: fs.Run) -> Diagnosis:
    return diagnosis(of_run(run))
