"""What is trained: short runs of every algorithm, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.engine import Engine, Local, store
from fedstride.models.network import Network
from tests.problems import classification, seeded

COMPOSITIONS = {
    "armijo-fedexp-scaffold": fs.Algorithm(fs.Armijo(), fs.FedExP(), drift=fs.Scaffold()),
    "fedlin-compressed": fs.recipes.fedlin(up=fs.TopK(0.2), down=fs.TopK(0.3)),
    "polyak-scaffold-topk": fs.Algorithm(fs.Polyak(lr_max=1.0, growth=2.0), drift=fs.Scaffold(), up=fs.TopK(0.2)),
    "quantised": fs.Algorithm(up=fs.Quantize(4), error_feedback=False),
    "private": fs.Algorithm(privacy=fs.Privacy(noise=0.3, quantile=0.5).drawn_from("crash")),
    "random-k": fs.Algorithm(up=fs.RandomK(0.5)),
    "trimmed": fs.Algorithm(aggregate=fs.TrimmedMean()),
}
FAULTS = dict.fromkeys(("dropout", "crash", "nan", "exploding", "stale", "duplicate", "corrupt"), 0.03)
ALGORITHMS = {name: make() for name, make in RECIPES.items()} | COMPOSITIONS
REMEMBERING = [name for name, a in ALGORITHMS.items() if a.memory(torch.zeros(1))]


@dataclass(frozen=True)
class Scenario:
    """One run. Its bits may depend on all of this but the last three."""

    algorithm: str
    data: str = "generated"
    oracle: str = "loop"
    statistics: bool = False  # BatchNorm's, which each client keeps for itself, and dropout
    clients: int = 8
    cohort: float | None = 0.5
    batch_size: int | None = 16
    local_steps: int = 4
    rounds: int = 12
    faults: bool = False  # of every kind, now and then
    seed: int = 0
    on_disk: bool = False  # what clients remember
    every: int = 1
    keep: int = 2

    def train(
        self, folder: Path | None, workers: int, engine: Callable[[Local], Engine] = lambda local: local
    ) -> fs.Run:
        """The run, saved in this folder, and gone on with if it is there already."""
        if self.on_disk:
            store.LIMIT = 0
        clients, test = self._data()
        features, classes = test[0][0].numel(), int(test[1].max()) + 1
        middle = [nn.BatchNorm1d(16), nn.Dropout(0.2)] if self.statistics else []
        body = nn.Sequential(nn.Flatten(), nn.Linear(features, 16), *middle, nn.Tanh())
        chosen = engine(Local(workers, self.oracle, chunk=2))
        return fs.train(
            seeded(lambda: Network(body, nn.Linear(16, classes)), torch.float32, self.seed),
            "cross_entropy",
            clients,
            ALGORITHMS[self.algorithm],
            rounds=self.rounds,
            cohort=self.cohort,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            test=None if self.statistics else test,
            seed=self.seed,
            buffers="local" if self.statistics else "average",
            engine=fs.faults.Faulty(chosen, seed=self.seed, **FAULTS) if self.faults else chosen,
            checkpoint=None if folder is None else fs.Checkpoints(folder, every=self.every, keep=self.keep),
        )

    def _data(self) -> tuple[Any, tuple[Tensor, Tensor]]:
        if self.data == "generated":
            made = classification(range(20, 20 + self.clients), torch.float32)
            return made, made[0]
        table = fs.data.load(self.data)
        return fs.data.federate(table, fs.data.partition.iid(table.train[1], self.clients, self.seed)), table.test


def draw(algorithm: str, random: Random) -> Scenario:
    """A run of this algorithm, with what it allows."""
    a = ALGORITHMS[algorithm]
    statistics = random.random() < 0.3 and not a.exchanges_gradients and a.gradient.batches
    return Scenario(
        algorithm,
        data=random.choice(["digits", "breast_cancer"]),
        oracle="loop" if statistics else random.choice(["auto", "loop"]),
        statistics=statistics,
        clients=random.randint(5, 9),
        cohort=None if isinstance(a.objective, fs.FedSplitProx) else random.choice([0.4, 0.7, None]),
        batch_size=random.choice([8, 16]) if a.gradient.batches and not statistics else None,  # never of one sample
        local_steps=random.randint(2, 5),
        rounds=random.randint(8, 16),
        faults=random.random() < 0.3 and not isinstance(a.objective, fs.FedSplitProx),
        seed=1 + random.randrange(1000),
        on_disk=(statistics or algorithm in REMEMBERING) and random.random() < 0.7,
        every=random.randint(1, 3),
        keep=random.randint(1, 3),
    )
