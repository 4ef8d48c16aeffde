"""Overhead over a hand-written loop: a CNN on one thread, on the same batches, in interleaved rounds."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.algorithm import recipes
from fedstride.core.rows import generator
from fedstride.engine import Local
from fedstride.training.train import train

LR, BATCH, STEPS, CLIENTS = 0.05, 64, 8, 2


def cnn() -> nn.Module:
    """The CNN of McMahan et al. with half as wide a last layer: 582,026 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def by_hand(model: nn.Module, clients: list[tuple[Tensor, Tensor]], seed: int) -> Tensor:
    """Run one round of FedAvg as a hand-written loop, on the batches that fedstride draws."""
    total = torch.zeros_like(nn.utils.parameters_to_vector(model.parameters()))
    for client, (X, y) in enumerate(clients):
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=LR)
        order = torch.randperm(len(X), generator=generator(seed, 0, client, "batches", 0))
        for index in torch.split(order, BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(local(X[index]), y[index]))
            optimizer.step()
        total += nn.utils.parameters_to_vector(local.parameters()).detach()
    return total / len(clients)


@dataclass(frozen=True)
class Measured:
    """The result so far."""

    by_hand: float  # median seconds
    fedstride: float  # median seconds
    ratio: float  # median of the paired ratios
    difference: float  # relative difference of the two models in float64


def measure(repeats: int = 15) -> Iterator[Measured]:
    """Yield the result so far after each pair of rounds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model = cnn()
        data = [(torch.randn(BATCH * STEPS, 1, 28, 28), torch.randint(0, 10, (BATCH * STEPS,))) for _ in range(CLIENTS)]
        precise = [(X.double(), y) for X, y in data]
        _, _, difference = _pair(copy.deepcopy(model).double(), precise)  # also warms up
        hand, ours = [], []
        for _ in range(repeats):
            a, b, _ = _pair(model, data)
            hand.append(a)
            ours.append(b)
            ratios = [b / a for a, b in zip(hand, ours, strict=True)]
            middle = statistics.median
            yield Measured(middle(hand), middle(ours), middle(ratios), difference)
    finally:
        torch.set_num_threads(threads)


def _pair(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
    """Return the seconds by hand and by fedstride, and the relative difference of the two models."""
    start = time.perf_counter()
    expected = by_hand(model, data, seed=0)
    seconds = time.perf_counter() - start
    run = train(model, F.cross_entropy, data, recipes.fedavg(LR), rounds=1, batch_size=BATCH, engine=Local(workers=1))
    return seconds, run.history[0]["seconds"], float((run.x - expected).norm() / expected.norm())
