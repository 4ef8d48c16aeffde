"""Attacks by one of six nodes of a Flower federation on what the server learns or decides from their declarations."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from flwr.app import Array, Message
from torch import Tensor, nn

import fedstride as fs
from fedstride.engine import flower
from fedstride.engine.flower import records
from tests.engine.grid import Grid
from tests.hostile.row import Seen
from tests.hostile.uploads import CLIENTS, POINTS, ROUNDS, data

Change = Callable[[Message, int], None]  # changes a node's answer; the round, -1 at the roll call
HOSTILE = 100  # the node of client 0


def make_model(settings: dict[str, Any]) -> nn.Module:
    middle = [layer for _ in range(settings["depth"]) for layer in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), *middle, nn.Linear(32, 10))


def samples(settings: dict[str, Any], part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs, labels = part
    return inputs, nn.functional.one_hot(labels.long(), 10).float() if settings["mse"] else labels


def project(mse: bool) -> flower.Project:
    return flower.Project(
        make_model,
        "mse" if mse else "cross_entropy",
        lambda settings, node: samples(settings, data()[0][node["partition-id"]]),
        lambda settings: samples(settings, data()[1]),
    )


@dataclass(frozen=True)
class Remote:
    """An attack by the node of client 0."""

    what: str
    change: Change
    given: dict[str, Any] = field(default_factory=dict)  # settings
    expected = "the run has all its rounds, and loses less than 2 points"

    @property
    def name(self) -> str:
        return f"{', '.join(f'{k}={v}' for k, v in self.given.items())}: {self.what}"

    def run(self) -> Seen:
        honest, (accuracy, rounds, lost) = undisturbed(tuple(self.given.items())), trained(self.given, self.change)
        told = f"{100 * honest:.1f} to {100 * accuracy:.1f} %, {rounds} rounds, clients lost per round: {lost:g}"
        return Seen(rounds == ROUNDS and honest - accuracy <= POINTS, told)


@cache
def undisturbed(given: tuple[tuple[str, Any], ...]) -> float:
    """Return the accuracy without an attack."""
    return trained(dict(given), lambda reply, round: None)[0]


def trained(given: dict[str, Any], change: Change) -> tuple[float, int, float]:
    """Return accuracy, number of rounds, and lost clients per round."""
    options: dict[str, Any] = {"mse": False, "depth": 0, "algorithm": "fedavg(lr=0.3)", "batch_size": 20, **given}
    options |= {"clients": CLIENTS, "rounds": ROUNDS, "seed": 1, "local_steps": 10}
    made = project(options["mse"])
    grid = Grid(flower.client_app(made), {HOSTILE + i: {"partition-id": i} for i in range(CLIENTS)})

    def spoil(reply: Message) -> Message:
        about = reply.metadata
        if about.src_node_id == HOSTILE:
            change(reply, int(about.group_id) if about.message_type.startswith("train") else -1)
        return reply

    grid.spoil = spoil
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            run = flower.train(made, grid, options)
        finally:
            os.chdir(here)
    return accuracy_of(run), len(run.history), sum(run.history["lost"]) / len(run.history)


def accuracy_of(run: fs.Run) -> float:
    inputs, labels = data()[1]
    with torch.no_grad():
        return float((run.model(inputs).argmax(1) == labels).float().mean())


def vector(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Change a vector of every upload."""

    def apply(reply: Message, round: int) -> None:
        if round >= 0:
            upload = reply.content["upload"]
            upload[name] = Array(change(records.tensor_of(upload[name])).numpy()).data

    return apply


def smallest(lengths: float) -> Callable[[Tensor], Tensor]:
    """Replace the smallest entry by so many lengths of the vector."""

    def change(v: Tensor) -> Tensor:
        v = v.clone()
        v[v.argmin()] = lengths * v.norm()
        return v

    return change


def loss(of_round: Callable[[int], float], name: str = "metrics.train_loss") -> Change:
    def apply(reply: Message, round: int) -> None:
        if round >= 0:
            reply.content["upload"][name] = of_round(round)

    return apply


def claiming(count: int, then: Change = lambda reply, round: None) -> Change:
    """Claim this many samples at the roll call."""

    def apply(reply: Message, round: int) -> None:
        if round < 0:
            reply.content["about"]["samples"] = count
        then(reply, round)

    return apply


MSE, DEEP = {"algorithm": "auto", "mse": True}, {"algorithm": "auto", "depth": 2}
STOP = {"stop": "metric=train_loss, patience=5"}
ROBUST = {"algorithm": 'custom(step={part="Constant", lr=0.3}, aggregate={part="TrimmedMean", share=0.2})'}
MOST = 10**9
ATTACKS = [
    *(Remote(f"mean squares x {f}", vector("mean_squares", lambda v, f=f: f * v), MSE) for f in (0, 90, 900, 9000)),
    *(
        Remote(f"mean squares of one tensor {f} times the length of all", vector("mean_squares", smallest(f)), given)
        for given in (MSE, DEEP)
        for f in (1, 80)
    ),
    *(Remote(f"loss {v:g}", loss(lambda t, v=v: v, "fields.loss"), MSE) for v in (-5.0, -1e3, 900.0)),
    Remote("training loss grows tenfold in each round", loss(lambda t: 10.0 ** (t + 1)), STOP),
    Remote("training loss 0, then 1e4", loss(lambda t: 0.0 if t == 0 else 1e4), STOP),
    Remote("training loss -1e4, then 1", loss(lambda t: -1e4 if t == 0 else 1.0), STOP),
    Remote("10^9 samples and update x -1", claiming(MOST, vector("update", torch.neg)), ROBUST),
    Remote("10^9 samples", claiming(MOST), {"weights": "[1, 1, 1, 1, 1, 1]"}),
    Remote("10^9 samples", claiming(MOST), {"algorithm": "fednova(lr=0.3)"}),
    Remote("10^9 samples", claiming(MOST), {"algorithm": "auto"}),
]
