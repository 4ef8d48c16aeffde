"""Run folders: train a model from a configuration and save everything in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstride import data, models
from fedstride.app.about import about_clients, environment
from fedstride.app.config import Config, Data, resolve, to_toml
from fedstride.core.errors import InvalidInput
from fedstride.core.files import NEW, append, read_tensors, replace_file
from fedstride.training import checkpoint
from fedstride.training.checkpoint import locked
from fedstride.training.history import History, Row
from fedstride.training.result import Run
from fedstride.training.rounds import Event
from fedstride.training.train import train

CONFIG, ENVIRONMENT, HISTORY, CLIENTS = "config.toml", "environment.json", "history.jsonl", "clients.json"


@dataclass(frozen=True)
class Job:
    """A configuration with its data and model loaded."""

    config: Config
    clients: data.Federation
    test: tuple[Tensor, Tensor]
    classes: int | None
    model: nn.Module

    @property
    def loss(self) -> str:
        return "mse" if self.classes is None else "cross_entropy"

    @property
    def own_tests(self) -> list[tuple[Tensor, Tensor]]:
        """A test set for each client: the test samples of its classes."""
        inputs, targets = self.test
        if self.classes is None:
            return [self.test] * len(self.clients)
        own = [torch.isin(targets, client.take()[1]) for client in self.clients]
        return [(inputs[rows], targets[rows]) if bool(rows.any()) else self.test for rows in own]

    @property
    def tests(self) -> Any:
        """What is evaluated in every round: with personal parameters, each client's model on its own test set."""
        return self.own_tests if self.config.training.personal else self.test


def prepare(config: Config) -> Job:
    """Load the data, partition it, and build the model."""
    table = data.load(config.data.source, **{"folder": config.data.folder, **config.data.options})
    if config.data.normalise:
        table = normalised(table)
    clients = data.federate(table, deal(table, config.data))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.model.seed)
        shape, classes, options = tuple(table.train[0].shape[1:]), table.classes or 1, config.model.options
        for known in {"shape", "classes"} & options.keys():
            raise InvalidInput(f"model.options.{known}={options[known]!r} is invalid: it is determined by the data.")
        model = models.build(config.model.name, shape, classes, **options)
    return Job(config, clients, table.test, table.classes, model)


def normalised(table: data.Table) -> data.Table:
    """Scale inputs to mean 0 and deviation 1 over the training set, per channel or per feature."""
    inputs = table.train[0]
    if not inputs.is_floating_point():
        raise InvalidInput(f"data.normalise: the inputs of {table.name} are not floating point; set it to false.")
    over = [d for d in range(inputs.dim()) if d != 1]
    mean, deviation = inputs.mean(over, keepdim=True), inputs.std(over, keepdim=True)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    (X, y), (X_test, y_test) = table.train, table.test
    return replace(table, train=((X - mean) / deviation, y), test=((X_test - mean) / deviation, y_test))


def deal(table: data.Table, d: Data) -> list[Tensor]:
    """Assign samples to clients: one tensor of indices per client."""
    labels, p = table.train[1], data.partition
    if d.partition == "natural":
        there = 0 if table.groups is None else len(torch.unique(table.groups))
        return p.natural(table.groups, min(d.clients, there) or None, d.seed)
    samples = d.samples or max(1, len(labels) // d.clients)
    makers: dict[str, Callable[[], list[Tensor]]] = {
        "iid": lambda: p.iid(labels, d.clients, d.seed),
        "dirichlet": lambda: p.dirichlet(labels, d.clients, d.seed, alpha=d.alpha, samples=samples),
        "dirichlet_split": lambda: p.dirichlet_split(labels, d.clients, d.seed, alpha=d.alpha),
        "pathological": lambda: p.pathological(labels, d.clients, d.seed, classes=d.classes),
        "shards": lambda: p.shards(labels, d.clients, d.seed, shards=d.classes),
        "quantity": lambda: p.quantity(
            labels, d.clients, d.seed, low=max(1, samples // 5), high=samples, alpha=d.alpha
        ),
    }
    return makers[d.partition]()


def status(folder: Path) -> str:
    """Return the status of a run folder: new, started or finished."""
    if not (folder / CONFIG).is_file():
        if folder.exists() and (not folder.is_dir() or any(p.suffix != NEW for p in folder.iterdir())):
            raise InvalidInput(f"--out {folder}: not empty, and not a run folder; choose another one.")
        return "new"
    rounds = resolve(file=folder / CONFIG).training.rounds
    done = len(_history(folder))
    return "finished" if done >= rounds and (folder / "model.safetensors").is_file() else "started"


def execute(job: Job, folder: Path, callbacks: Sequence[Callable[[Event], object]] = ()) -> Run:
    """Train in a run folder; continue from the folder's checkpoint if there is one."""
    with locked(folder):
        return _execute(job, folder, callbacks)


def follow(job: Job) -> None:
    """Take part in a job that another process executes."""
    train(job.model, job.loss, job.clients, job.config.make_algorithm(), test=job.tests, **job.config.arguments(None))


def _execute(job: Job, folder: Path, callbacks: Sequence[Callable[[Event], object]]) -> Run:
    config = job.config
    replace_file(folder / CONFIG, to_toml(config))
    about = environment()
    replace_file(folder / ENVIRONMENT, json.dumps(about, indent=2))
    replace_file(folder / HISTORY, History(_history(folder)).text())

    def log(event: Event) -> None:
        if event.round > 0:
            append(folder / HISTORY, json.dumps(event.metrics) + "\n")

    run = train(
        job.model,
        job.loss,
        job.clients,
        config.make_algorithm(),
        test=job.tests,
        callbacks=[log, *callbacks],
        **config.arguments(folder),
    )
    run.save(folder)
    replace_file(folder / ENVIRONMENT, json.dumps({**about, **run.engine}, indent=2))
    if (people := about_clients(run)) is not None:
        replace_file(folder / CLIENTS, json.dumps(people))
    return run


def _history(folder: Path) -> list[Row]:
    """Return the rounds in the checkpoint; after a crash, the log may be ahead of it."""
    return checkpoint.newest(folder, lambda path: checkpoint.history(path, read_tensors(path)[0])) or []
