"""Workloads of the speed benchmark. The data are random, because speed does not depend on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedstride.core.losses import LOSSES
from fedstride.core.rows import generator
from fedstride.models import MLP, CharLSTM, ResNet18, Transformer
from fedstride.research.bench.overhead import cnn

Shape = tuple[int, ...]
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": lambda shape, classes: nn.Linear(shape[0], classes, bias=False),
    "softmax": lambda shape, classes: nn.Linear(shape[0], classes),
    "mlp": lambda shape, classes: MLP(shape, classes, hidden=200),
    "cnn": lambda shape, classes: cnn(),
    "lstm": lambda shape, classes: CharLSTM(shape, classes, hidden=128, layers=1),
    "resnet18": ResNet18,
    "transformer": Transformer,
}
PEERS = ("pfl", "flower", "fedjax")


@dataclass(frozen=True)
class Workload:
    """A training problem that is timed."""

    name: str
    what: str
    model: str
    shape: Shape  # shape of one sample
    classes: int
    clients: int  # clients per round
    samples: int  # samples per client
    batch: int | None  # None: the full batch
    steps: int
    lr: float
    rounds: int  # rounds per repeat; in the workload that engines receive: all rounds
    algorithm: str = "fedavg"
    peers: tuple[str, ...] = ()
    federation: int | None = None  # total number of clients, generated on access; None: the clients of a round
    dtype: str = "float32"
    precision: str | None = None  # of fs.train()

    @property
    def loss(self) -> str:
        return "mse" if self.model == "linear" else "cross_entropy"

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return MODELS[self.model](self.shape, self.classes)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        source = generator(0, i, "bench")
        if self.model in ("lstm", "transformer"):
            X = torch.randint(self.classes, (self.samples, *self.shape), generator=source)
        else:
            X = torch.randn(self.samples, *self.shape, generator=source)
        if self.loss == "mse":
            return X, torch.randn(self.samples, self.classes, generator=source)
        return X, torch.randint(self.classes, (self.samples,), generator=source)

    def order(self, round: int, client: int) -> Tensor:
        """Return the sample indices of every step as fedstride draws them: [steps, batch]."""
        if self.batch is None:
            return torch.arange(self.samples).expand(self.steps, -1)
        epochs = -(-self.steps * self.batch // self.samples)
        parts = [
            torch.randperm(self.samples, generator=generator(0, round, client, "batches", e)) for e in range(epochs)
        ]
        return torch.cat(parts)[: self.steps * self.batch].view(self.steps, self.batch)

    def to_check(self) -> Workload:
        """Return two rounds of the same workload in float64, with fewer steps and, for the largest model, fewer clients."""
        large = self.model == "resnet18"
        return replace(
            self,
            dtype="float64",
            rounds=2,
            steps=min(self.steps, {"linear": 20, "softmax": 20, "mlp": 20, "resnet18": 1}.get(self.model, 2)),
            clients=min(self.clients, 2) if large else self.clients,
            samples=min(self.samples, 8) if large else self.samples,
            batch=min(self.batch or 8, 8) if large else self.batch,
        )

    def flops(self) -> int:
        """Return the FLOPs of the forward and backward passes of one round."""
        # On the meta device, nothing is computed, and an LSTM consists of operations that the counter supports.
        model, (X, y) = self.build().to("meta"), (t[: self.batch].to("meta") for t in self.client(0))
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(LOSSES[self.loss](model(X), y))
        return int(counter.get_total_flops()) * self.steps * self.clients

    def write(self, folder: Path) -> None:
        """Write the input of the engines: work.json and, unless clients are generated on access, data.npz."""
        folder.mkdir(parents=True)
        (folder / "work.json").write_text(json.dumps({**asdict(self), "loss": self.loss}))
        if self.federation is not None:
            return
        X, y = (torch.stack(part).numpy() for part in zip(*map(self.client, range(self.clients)), strict=True))
        order = [torch.stack([self.order(r, c) for c in range(self.clients)]) for r in range(self.rounds)]
        x = nn.utils.parameters_to_vector(self.build().parameters()).detach().numpy()
        np.savez(folder / "data.npz", X=X, y=y, order=torch.stack(order).numpy(), x=x)


_LINEAR = Workload(
    name="linear",
    what="linear regression, 1000 features, full batch of 30, 20 clients x 20 steps",
    model="linear",
    shape=(1000,),
    classes=1,
    clients=20,
    samples=30,
    batch=None,
    steps=20,
    lr=0.01,
    rounds=10,
    peers=PEERS,
)
_SOFTMAX = Workload(
    name="softmax",
    what="softmax regression 784-62, batch 50, 20 clients x 20 steps",
    model="softmax",
    shape=(784,),
    classes=62,
    clients=20,
    samples=500,
    batch=50,
    steps=20,
    lr=0.01,
    rounds=4,
    peers=PEERS,
)
_MLP = replace(
    _SOFTMAX,
    peers=PEERS[:2],
    name="mlp",
    what="MLP 784-200-10, batch 50, 20 clients x 20 steps",
    model="mlp",
    classes=10,
)
_CNN = Workload(
    name="cnn",
    what="CNN of 582,026 parameters, batch 64, 10 clients x 8 steps",
    model="cnn",
    shape=(1, 28, 28),
    classes=10,
    clients=10,
    samples=512,
    batch=64,
    steps=8,
    lr=0.05,
    rounds=1,
    peers=PEERS,
)
_LSTM = Workload(
    name="lstm",
    what="LSTM with 128 units on 80 characters, batch 50, 10 clients x 4 steps",
    model="lstm",
    shape=(80,),
    classes=90,
    clients=10,
    samples=200,
    batch=50,
    steps=4,
    lr=0.5,
    rounds=1,
    peers=PEERS[:2],
)
_RESNET = Workload(
    name="resnet18",
    what="ResNet-18 on 32 x 32, batch 50, 4 clients x 1 step",
    model="resnet18",
    shape=(3, 32, 32),
    classes=10,
    clients=4,
    samples=50,
    batch=50,
    steps=1,
    lr=0.01,
    rounds=1,
    peers=PEERS[:2],
)
_TRANSFORMER = replace(
    _LSTM,
    name="transformer",
    what="transformer of 114,266 parameters on 40 characters, batch 20, 10 clients x 4 steps",
    model="transformer",
    shape=(40,),
    batch=20,
    lr=0.05,
)
_ARMIJO = replace(
    _CNN, name="armijo", what="Armijo's line search (FedSLS) on the CNN, 4 steps", algorithm="fedsls", steps=4, peers=()
)
_SCAFFOLD = replace(
    _SOFTMAX, name="scaffold", what="SCAFFOLD on the softmax regression", algorithm="scaffold", peers=()
)
WORKLOADS = {w.name: w for w in (_LINEAR, _SOFTMAX, _MLP, _CNN, _LSTM, _TRANSFORMER, _RESNET, _ARMIJO, _SCAFFOLD)}

_SMALL = replace(_SOFTMAX, peers=(), samples=20, batch=20, steps=5, rounds=3)
GROWTH = {  # growing quantity -> {its value: the workload}
    "clients in a round": {n: replace(_SMALL, clients=n) for n in (10, 30, 100, 300, 1000)},
    "parameters": {
        10 * n: replace(_SMALL, clients=10, shape=(n,), classes=10, lr=1 / n) for n in (100, 1000, 10_000, 100_000)
    },
    "clients in all, 10 in a round": {
        n: replace(_SMALL, clients=10, federation=n) for n in (100, 1000, 10_000, 100_000, 1_000_000)
    },
    "clients in a round, 1,000,000 in all": {
        n: replace(_SMALL, clients=n, federation=1_000_000, rounds=1) for n in (100, 1000, 10_000)
    },
}
