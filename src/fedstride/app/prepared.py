"""Prepared runs: a configuration with its data loaded, dealt to clients, and its model built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fedstride import data, models
from fedstride.app.config import USUAL, Config, Data
from fedstride.app.functions import called, function_of, is_function
from fedstride.app.presets import TASKS
from fedstride.core.errors import InvalidInput
from fedstride.data.federation import federation

STEPS = 50  # local steps per round that the batch size of the user's own data aims at
LEAST = 2000  # samples from which on the user's own data gets a network with hidden layers
BATCHES = (16, 1024)  # smallest and largest such batch size
CLIENTS = "clients as in fs.train(), clients and a test set, or an fs.data.Table"


@dataclass(frozen=True)
class Prepared:
    """A configuration with its data and model loaded."""

    config: Config
    clients: data.Federation | data.Lazy
    test: Any  # a pair of tensors, except for clients that a function of the user returned
    classes: int | None
    model: nn.Module
    about: str = ""  # describes the data

    @property
    def loss(self) -> str:
        return self.config.model.loss or ("mse" if self.classes is None else "cross_entropy")

    @property
    def own_tests(self) -> list[Any]:
        """A test set for each client: the test samples of its classes."""
        if isinstance(self.test, list):
            return self.test
        if self.classes is None or not _is_pair(self.test):
            return [self.test] * len(self.clients)
        inputs, targets = self.test
        own = [torch.isin(targets, self.clients[i].take()[1]) for i in range(len(self.clients))]
        return [(inputs[rows], targets[rows]) if bool(rows.any()) else self.test for rows in own]

    @property
    def tests(self) -> Any:
        """The test set; with personal parameters, one for each client."""
        return self.own_tests if self.config.training.personal and self.test is not None else self.test


def prepare(config: Config) -> Prepared:
    """Load the data, partition it, and build the model."""
    if is_function(config.data.source):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.data.seed)  # so that torch's random numbers in it are the same when it is resumed
            found = called("--data", config.data.source, CLIENTS)
    else:
        found = data.load(config.data.source, **{"folder": config.data.folder, **config.data.options})
    if isinstance(found, data.Table):
        table = normalised(found) if config.data.normalise else found
        clients: data.Federation | data.Lazy = data.federate(table, deal(table, config.data))
        test: Any = table.test
        shape: tuple[int, ...] | None = tuple(table.train[0].shape[1:])
        classes, words = table.classes, not table.train[0].is_floating_point()
    else:
        given, test = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        clients = federation(given)
        shape, classes, words = _sample_of(clients, test)
    config = fitted(config, clients.sizes, classes, words, tested=test is not None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.model.seed)
        model = _model(config, shape, classes)
    if isinstance(found, data.Table) and config.task not in TASKS and isinstance(model, models.Network):
        _start_at_mean(model, found)
    return Prepared(config, clients, test, classes, model, repr(found if isinstance(found, data.Table) else clients))


def fitted(config: Config, sizes: Any, classes: int | None, words: bool, tested: bool) -> Config:
    """Choose the settings of the user's own data that nobody set, by the number and the sizes of the clients."""
    if config.task in TASKS:
        return config
    chosen: dict[str, Any] = {}
    if len(sizes) <= USUAL["cohort"]:
        chosen["cohort"] = None
    fewest, most = BATCHES
    wanted = median(sizes) / STEPS
    chosen["batch_size"] = next((b for b in (2**k for k in range(11)) if fewest <= b >= wanted), most)
    if classes is None and tested and config.model.loss is None:
        chosen["metrics"] = ["r2", "mae"]
    chosen = {k: v for k, v in chosen.items() if k not in config.training.model_fields_set}
    model = {}
    if "name" not in config.model.model_fields_set:
        model["name"] = "char_lstm" if words else "softmax" if sum(sizes) < LEAST else "mlp"
    return config.model_copy(
        update={
            "training": config.training.model_copy(update=chosen),
            "model": config.model.model_copy(update=model),
        }
    )


def _is_pair(test: Any) -> bool:
    return isinstance(test, tuple) and len(test) == 2 and all(isinstance(v, Tensor) for v in test)


def _sample_of(clients: data.Federation | data.Lazy, test: Any) -> tuple[tuple[int, ...] | None, int | None, bool]:
    """Return the shape of one input, the number of classes, and whether inputs are codes; None if they are unknown."""
    inputs, targets = clients[0].take()
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None, None, False
    shape, words = tuple(inputs.shape[1:]), not inputs.is_floating_point()
    if targets.is_floating_point() or targets.dim() != 1:
        return shape, None, words
    if isinstance(clients, data.Lazy):
        return shape, len(clients.classes) or None, words
    held = [test[1]] if _is_pair(test) else []
    return shape, 1 + max(int(t.max()) for t in (*(c.take()[1] for c in clients), *held)), words


def _model(config: Config, shape: tuple[int, ...] | None, classes: int | None) -> nn.Module:
    name, options = config.model.name, config.model.options
    for known in {"shape", "classes"} & options.keys():
        raise InvalidInput(f"model.options.{known}={options[known]!r} is invalid: it is determined by the data.")
    if not is_function(name):
        if shape is None:
            raise InvalidInput(f"--model {name}: the inputs are not one tensor; expected --model MODULE:FUNCTION.")
        return models.build(name, shape, classes or 1, **options)
    make = function_of("--model", name, "an nn.Module")
    needed = {"shape": shape, "classes": classes or 1}
    taken = {k: v for k, v in needed.items() if k in inspect.signature(make).parameters}
    model = called("--model", name, "an nn.Module", **taken, **options)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"--model {name!r} returns {type(model).__name__}; expected an nn.Module.")
    return model


def _start_at_mean(model: models.Network, table: data.Table) -> None:
    """Let a regression start at the mean of the targets: from zero, large targets would take most of the rounds."""
    if table.classes is None and isinstance(model.head, nn.Linear):
        with torch.no_grad():
            model.head.bias.fill_(float(table.train[1].mean()))


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
        return p.natural(table.groups, min(d.clients or there, there) or None, d.seed)
    if d.clients is None:
        raise InvalidInput(f"data.clients=none with data.partition={d.partition}: expected the number of clients.")
    clients, samples = d.clients, d.samples or max(1, len(labels) // d.clients)
    makers: dict[str, Callable[[], list[Tensor]]] = {
        "iid": lambda: p.iid(labels, clients, d.seed),
        "dirichlet": lambda: p.dirichlet(labels, clients, d.seed, alpha=d.alpha, samples=samples),
        "dirichlet_split": lambda: p.dirichlet_split(labels, clients, d.seed, alpha=d.alpha),
        "pathological": lambda: p.pathological(labels, clients, d.seed, classes=d.classes),
        "shards": lambda: p.shards(labels, clients, d.seed, shards=d.classes),
        "quantity": lambda: p.quantity(labels, clients, d.seed, low=max(1, samples // 5), high=samples, alpha=d.alpha),
    }
    return makers[d.partition]()
