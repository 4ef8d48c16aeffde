"""Data silos: partitions, model and runs of the benchmark NIID-Bench.

Li, Diao, Chen, He. Federated learning on non-IID data silos: an experimental study. ICDE 2022 (NIID-Bench), as run by
Flower's baseline niid_bench: 10 clients that all take part, 50 rounds of 10 epochs, batches of 64, SGD with rate 0.01 and
momentum 0.9, weight decay 1e-5, inputs in [0, 1], crops and flips on CIFAR-10, means weighted by the number of samples.
Deviations: none known; the partitions of seed 0 are drawn in the order of the baseline with its seed, 42.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import auto
from fedstride.app.sweep import ROUNDS, Result
from fedstride.client.step import Momentum
from fedstride.core.errors import GivenUp
from fedstride.data import Table, federate, load
from fedstride.data.partition import Array, Parts
from fedstride.engine import Local
from fedstride.models import CropFlip, Network
from fedstride.models.network import Shape
from fedstride.training.rounds import Event
from fedstride.training.train import train

CLIENTS = 10
ALPHA = 0.5
LEAST = 10  # samples of the smallest client of a Dirichlet partition
SEED = 42
COLUMNS = ("round", "test_accuracy", "test_loss", "train_loss")
METHODS: dict[str, Callable[[], Algorithm]] = {"auto": auto, "FedAvg": lambda: Algorithm(step=Momentum(lr=0.01))}


def iid(labels: Array, random: np.random.Generator) -> list[Array]:
    """Deal all samples at random."""
    return np.array_split(random.choice(len(labels), len(labels), replace=False), CLIENTS)


def dirichlet(labels: Array, random: np.random.Generator) -> list[Array]:
    """Split each class in proportions from a Dirichlet distribution; clients that have their share get no more of it."""
    while True:
        parts: list[Array] = [np.empty(0, dtype=np.int64) for _ in range(CLIENTS)]
        for c in range(labels.max() + 1):
            mine = np.flatnonzero(labels == c)
            random.shuffle(mine)
            shares = random.dirichlet(np.full(CLIENTS, ALPHA)) * [len(part) < len(labels) / CLIENTS for part in parts]
            cuts = (np.cumsum(shares / shares.sum()) * len(mine)).astype(int)[:-1]
            parts = [np.concatenate(both) for both in zip(parts, np.split(mine, cuts), strict=True)]
        if min(map(len, parts)) >= LEAST:
            return parts


def by_label(labels: Array, random: np.random.Generator, count: int) -> list[Array]:
    """Give client i label i and count - 1 random ones; the samples of a label are split evenly over its clients."""
    classes = int(labels.max()) + 1
    held: list[list[int]] = []
    for client in range(CLIENTS):
        own = [client % classes]
        while len(own) < count:
            if (drawn := int(random.choice(classes, 1)[0])) not in own:
                own.append(drawn)
        held.append(own)
    parts: list[list[Array]] = [[] for _ in held]
    for c in range(classes):
        mine = np.flatnonzero(labels == c)
        random.shuffle(mine)
        owners = [client for client, own in enumerate(held) if c in own]
        for client, piece in zip(owners, np.array_split(mine, len(owners)), strict=True):
            parts[client].append(piece)
    return [np.concatenate(own) for own in parts]


SPLITS: dict[str, Callable[[Array, np.random.Generator], list[Array]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "labels1": lambda labels, random: by_label(labels, random, 1),
    "labels2": lambda labels, random: by_label(labels, random, 2),
    "labels3": lambda labels, random: by_label(labels, random, 3),
}


def partition(labels: torch.Tensor, split: str, seed: int) -> Parts:
    """Return one tensor of sample indices per client."""
    parts = SPLITS[split](labels.numpy(), np.random.default_rng(SEED + seed))
    return [torch.from_numpy(part) for part in parts]


def network(shape: Shape, augment: bool) -> Network:
    """Return the benchmark's CNN: 5 x 5 convolutions with 6 and 16 filters, pooling, layers of 120, 84 and 10 units."""
    channels, *sides = shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    body = nn.Sequential(
        *([CropFlip(border="reflect")] if augment else []),
        *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
    )
    return Network(body, nn.Linear(84, 10))


@lru_cache(1)
def _table(data: str) -> Table:
    return load(data)


def silos(
    data: str,
    split: str,
    method: str,
    seed: int,
    rounds: int,
    epochs: int,
    samples: int | None,
    folder: Path | None = None,
) -> Result:
    """Train on the first `samples` training samples (None: all), and return accuracy and loss by round.

    With a folder, an interrupted run continues from there.
    """
    table = _table(data)
    inputs, targets = table.train
    table = replace(table, train=(inputs[:samples], targets[:samples]))
    clients = federate(table, partition(table.train[1], split, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(tuple(inputs.shape[1:]), augment=data == "cifar10")

    def note(event: Event) -> None:
        if folder is not None and event.round:
            with (folder / ROUNDS).open("a") as file:
                file.write(json.dumps({name: event.metrics[name] for name in COLUMNS}) + "\n")

    diverged = None
    try:
        run = train(
            model,
            "cross_entropy",
            clients,
            METHODS[method](),
            rounds=rounds,
            epochs=epochs,
            batch_size=64,
            weights="samples",
            weight_decay=1e-5,
            test=table.test,
            seed=seed,
            engine=Local(workers=1),
            checkpoint=folder,
            callbacks=[note],
            progress=False,
        )
    except GivenUp as error:
        run, diverged = error.run, error.round
    if run.ended == "interrupted":
        raise KeyboardInterrupt
    seconds = sum(row["seconds"] for row in run.history)
    history = {name: [row[name] for row in run.history] for name in COLUMNS}
    return {"diverged": diverged, "history": history, "seconds": seconds}
