"""The tasks of `fedstride bench painless`: small enough for a few seconds a run, in three groups.

Those that were looked at while `auto` was designed show how well it fits them. Those that were not show what to expect.
The third group holds what users bring: other models, losses, splits and schedules than papers use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from torch import Tensor, nn

from fedstride.bench import task_parts as parts
from fedstride.bench.task_parts import CNN, Data, LowRank, Samples, Transformer, normalised_cnn, tanh_mlp
from fedstride.data import partition
from fedstride.losses import Loss
from fedstride.models import MLP, CharLSTM, CharMLP, Softmax

LOOKED, UNSEEN, USERS = "looked", "unseen", "users"
GROUPS = {LOOKED: "looked at while designing", UNSEEN: "not looked at", USERS: "what users bring"}
ACCURACY = "accuracy"  # per cent
FIT = "fit"  # per cent of the way from the constant prediction's test loss to the best one that any run reached

Model = Callable[[], nn.Module]
Split = Callable[[Tensor, int], Sequence[Tensor]]  # from the training targets and a seed to indices by client


@dataclass(frozen=True)
class Setup:
    """What fs.train needs, but for the algorithm and the number of rounds."""

    model: nn.Module
    loss: str | Loss
    clients: list[Samples]
    test: Samples
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A federated learning problem, made anew for each seed."""

    name: str
    group: str
    what: str
    rounds: int
    score: str
    make: Callable[[int], Setup]
    source: str | None = None  # the data set that it needs from the cache


TASKS: dict[str, Task] = {}


def add(
    group: str,
    name: str,
    what: str,
    data: str | Data,  # the name of a source, or a function
    model: Model,
    split: Split,
    *,
    rounds: int = 40,
    loss: str | Loss = "cross_entropy",
    wrong: float = 0.0,
    source: str | None = None,
    pooled: bool = False,
    **arguments: Any,
) -> None:
    """Enter a task into the table.

    Args:
        wrong: Share of the training labels that are replaced by another class.
        source: The data set that the task needs from the cache, if `data` is a function.
        pooled: Use images of half the side, where `data` names a source of images.
        arguments: For fs.train; one epoch, 10 clients a round and batches of 20 where nothing is said.
    """
    given = {"cohort": 10, "batch_size": 20, **arguments}
    if "local_steps" not in given:
        given.setdefault("epochs", 1)

    def make(seed: int) -> Setup:
        (x, y), (z, t) = (parts.source(data, pooled) if isinstance(data, str) else data)(seed)
        random = torch.Generator().manual_seed(seed + 77)
        clients = [(x[part], _corrupted(y[part], y, wrong, random)) for part in split(y, seed)]
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            made = model()
        return Setup(made, loss, clients, (z[:2000], t[:2000]), given)

    score = ACCURACY if loss == "cross_entropy" else FIT
    needs = source or (data if isinstance(data, str) and data != "digits" else None)
    TASKS[name] = Task(name, group, what, rounds, score, make, needs)


def _corrupted(labels: Tensor, every: Tensor, wrong: float, random: torch.Generator) -> Tensor:
    if not wrong:
        return labels
    count = int(every.max()) + 1
    hit = torch.rand(len(labels), generator=random) < wrong
    others = (labels + torch.randint(1, count, (len(labels),), generator=random)) % count
    return torch.where(hit, others, labels)


def mixed(alpha: float, clients: int = 100, samples: int = 200) -> Split:
    """Class mixes from a Dirichlet distribution."""
    return lambda y, seed: partition.dirichlet(y, clients, seed, alpha, samples)


def classes(count: int, clients: int, samples: int | None = None) -> Split:
    """So many classes at each client."""
    return lambda y, seed: partition.pathological(y[: samples and samples * clients], clients, seed, count)


def alike(clients: int) -> Split:
    """All samples, dealt out at random."""
    return lambda y, seed: partition.iid(y, clients, seed)


def by_target(clients: int) -> Split:
    """All samples in the order of their targets: every client has two ranges of them."""

    def split(y: Tensor, seed: int) -> Sequence[Tensor]:
        pieces = torch.argsort(y).tensor_split(2 * clients)
        order = torch.randperm(2 * clients, generator=torch.Generator().manual_seed(seed)).tolist()
        return [torch.cat([pieces[i], pieces[j]]) for i, j in zip(order[::2], order[1::2], strict=True)]

    return split


def by_role(clients: int, samples: int) -> Split:
    """Speaking roles of Shakespeare that have enough text."""

    def split(y: Tensor, seed: int) -> Sequence[Tensor]:
        owned = [part for part in partition.natural(parts.roles()) if len(part) >= samples]
        random = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(owned), generator=random)[:clients].tolist()
        return [owned[i][torch.randperm(len(owned[i]), generator=random)[:samples]] for i in chosen]

    return split


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> Model:
    return lambda: MLP((inputs,), outputs, hidden)


def linear(inputs: int, outputs: int) -> Model:
    return lambda: Softmax((inputs,), outputs)


FASHION, MNIST, CIFAR, COVTYPE, PLAYS = "fashion_mnist", "mnist", "cifar10", "covtype", "shakespeare"
CHARACTERS = 80  # of LEAF's alphabet

add(LOOKED, "digits", "digits, MLP, 2 classes a client", "digits", mlp(64, (50,), 10), classes(2, 50), batch_size=10)
add(LOOKED, "fashion-linear", "Fashion-MNIST, linear, alpha 0.1", FASHION, linear(784, 10), mixed(0.1), rounds=60)
add(LOOKED, "mnist-mlp", "MNIST, MLP, alpha 1", MNIST, mlp(784, (100,), 10), mixed(1.0))
add(
    *(LOOKED, "covtype-mlp", "covtype, MLP, alpha 0.1", COVTYPE, mlp(54, (64,), 7), mixed(0.1, samples=500)),
    batch_size=50,
)
add(
    *(LOOKED, "cifar-cnn", "CIFAR-10, CNN, alpha 10", CIFAR, lambda: CNN(3, 16), mixed(10.0)),
    batch_size=50,
    pooled=True,
)
add(
    *(LOOKED, "few", "Fashion-MNIST, MLP, 2 % of clients a round", FASHION, mlp(784, (50,), 10)),
    *(mixed(0.3, 200, 100),),
    rounds=60,
    cohort=4,
)
add(LOOKED, "one-class", "MNIST, MLP, 1 class a client", MNIST, mlp(784, (50,), 10), classes(1, 100, 100))
add(LOOKED, "noisy", "MNIST, MLP, 20 % wrong labels", MNIST, mlp(784, (100,), 10), mixed(1.0, 50), wrong=0.2)
add(
    *(LOOKED, "group-norm", "Fashion-MNIST, CNN with GroupNorm, alpha 1", FASHION),
    *(lambda: normalised_cnn(1, lambda n: nn.GroupNorm(2, n)), mixed(1.0, 50)),
)
add(
    *(LOOKED, "post-norm", "counting tokens, post-norm transformer", parts.generated(parts.counting, 1600)),
    *(lambda: Transformer(True, 12, 12, 2), alike(10)),
    rounds=30,
    cohort=None,
)
add(
    *(LOOKED, "regression", "generated, MLP, squared error", parts.generated(parts.ridges, 2000)),
    *(mlp(10, (32,), 1), alike(20)),
    loss="mse",
    cohort=5,
)
add(
    *(LOOKED, "nll", "generated, MLP, Gaussian likelihood", parts.generated(parts.ridges, 2000)),
    *(mlp(10, (32,), 2), alike(20)),
    loss=parts.gaussian_nll,
)
add(
    *(LOOKED, "low-rank", "MNIST, low-rank factors, alpha 1", MNIST, lambda: LowRank(784, 64, 10, 4)),
    *(mixed(1.0, 50),),
)
add(
    *(LOOKED, "imbalance", "covtype, MLP, one class of 6 %", parts.source(COVTYPE, positive=2)),
    *(mlp(54, (32,), 2), mixed(0.3, 50)),
    source=COVTYPE,
)

add(
    *(UNSEEN, "breast-cancer", "breast cancer, MLP, alpha 0.5", parts.halves(load_breast_cancer)),
    *(mlp(30, (16,), 2), mixed(0.5, 20, 14)),
    batch_size=7,
    cohort=5,
)
add(
    *(UNSEEN, "wine", "wine, MLP, alike", parts.halves(load_wine), mlp(13, (16,), 3), alike(10)),
    batch_size=5,
    cohort=5,
)
add(
    *(UNSEEN, "covtype-linear", "covtype, linear, alpha 0.3", COVTYPE, linear(54, 7), mixed(0.3, samples=500)),
    batch_size=50,
    rounds=60,
)
add(
    *(UNSEEN, "fashion-cnn-0.3", "Fashion-MNIST, CNN, alpha 0.3", FASHION, lambda: CNN(1, 14), mixed(0.3)),
    batch_size=50,
    pooled=True,
)
add(
    *(UNSEEN, "fashion-cnn-3", "Fashion-MNIST, CNN, 3 classes a client", FASHION, lambda: CNN(1, 14)),
    *(classes(3, 100, 200),),
    batch_size=50,
    pooled=True,
)
add(
    *(UNSEEN, "mnist-cnn", "MNIST, CNN, alpha 0.2", MNIST, lambda: CNN(1, 14, 8, 48), mixed(0.2)),
    batch_size=50,
    pooled=True,
)
add(
    *(UNSEEN, "shakespeare", "Shakespeare by role, MLP on 6 characters", parts.windows(6)),
    *(lambda: CharMLP((6,), CHARACTERS, 6, 8, 64), by_role(60, 300)),
    source=PLAYS,
    rounds=60,
)
add(
    *(UNSEEN, "fashion-tanh", "Fashion-MNIST, 2 tanh layers, alpha 0.3", FASHION),
    *(lambda: tanh_mlp(784, 64, 10), mixed(0.3)),
)
add(
    *(UNSEEN, "digits-cnn", "digits, CNN, alpha 0.3", "digits", lambda: CNN(1, 8, 8, 32), mixed(0.3, 40, 30)),
    batch_size=10,
)
add(UNSEEN, "cifar-mlp", "CIFAR-10, MLP, alpha 0.5", CIFAR, mlp(768, (64,), 10), mixed(0.5), pooled=True)
add(
    *(UNSEEN, "covtype-deep", "covtype, 3 hidden layers, alpha 1", COVTYPE, mlp(54, (48, 48, 48), 7)),
    *(mixed(1.0, samples=500),),
    batch_size=50,
)
add(
    *(UNSEEN, "fashion-5", "Fashion-MNIST, MLP, 5 epochs a round", FASHION, mlp(784, (50,), 10), mixed(0.3, 60, 100)),
    epochs=5,
)
add(UNSEEN, "mnist-0.05", "MNIST, MLP, alpha 0.05", MNIST, mlp(784, (50,), 10), mixed(0.05), rounds=60)

add(
    *(USERS, "transformer-post", "most frequent token, post-norm transformer", parts.generated(parts.majority, 2000)),
    *(lambda: Transformer(True, 6, 10, 3), alike(20)),
    cohort=5,
)
add(
    *(USERS, "transformer-pre", "most frequent token, pre-norm transformer", parts.generated(parts.majority, 2000)),
    *(lambda: Transformer(False, 6, 10, 3), mixed(1.0, 20, 100)),
    cohort=5,
)
add(
    *(USERS, "lstm", "Shakespeare by role, LSTM on 20 characters", parts.windows(20)),
    *(lambda: CharLSTM((20,), CHARACTERS, 8, 48, 1), by_role(40, 100)),
    source=PLAYS,
)
add(
    *(USERS, "raw-table", "age, income, ..., raw table, MLP", parts.generated(parts.people, 4000)),
    *(mlp(10, (32,), 2), mixed(0.5, 40, 80)),
    normalise=True,
)
add(
    *(USERS, "diabetes", "diabetes, raw table, MLP, squared error"),
    *(parts.halves(load_diabetes, standardise=False, unit=100, scaled=False), mlp(10, (16,), 1), by_target(10)),
    loss="mse",
    cohort=5,
    batch_size=10,
    normalise=True,
)
add(
    *(USERS, "friedman", "Friedman's function, 2 layers, squared error", parts.generated(parts.friedman, 3000)),
    *(mlp(10, (32, 32), 1), by_target(30)),
    loss="mse",
)
add(
    *(USERS, "gaussian", "waves, uneven noise, Gaussian likelihood", parts.generated(parts.waves, 3000)),
    *(mlp(4, (32, 32), 2), alike(30)),
    loss=parts.gaussian_nll,
)
add(
    *(
        USERS,
        "one-digit",
        "MNIST, MLP, one digit against the rest",
        parts.source(MNIST, positive=8),
        mlp(784, (50,), 2),
    ),
    *(mixed(0.3),),
    source=MNIST,
)
add(
    *(USERS, "wrong-labels", "Fashion-MNIST, MLP, 20 % wrong labels", FASHION, mlp(784, (50,), 10), mixed(0.5)),
    wrong=0.2,
)
add(
    *(USERS, "single-class", "Fashion-MNIST, linear, 1 class a client", FASHION, linear(784, 10), classes(1, 60, 100)),
    rounds=60,
)
add(
    *(USERS, "factors", "Fashion-MNIST, low-rank factors, alpha 0.5", FASHION, lambda: LowRank(784, 100, 10, 8)),
    *(mixed(0.5, 60),),
)
add(
    *(USERS, "batch-norm", "CIFAR-10, CNN with BatchNorm, alpha 1", CIFAR),
    *(lambda: normalised_cnn(3, nn.BatchNorm2d, 8), mixed(1.0, 50)),
    batch_size=40,
    pooled=True,
)
add(
    *(USERS, "two-per-cent", "MNIST, 2 layers, 2 % of clients a round", MNIST, mlp(784, (40, 40), 10)),
    *(mixed(0.3, 150, 100),),
    cohort=3,
    rounds=60,
)
add(
    *(USERS, "ten-epochs", "covtype, MLP, 10 epochs a round", COVTYPE, mlp(54, (32,), 7), mixed(0.5, 60, 100)),
    epochs=10,
)
add(
    *(USERS, "one-step", "Fashion-MNIST, MLP, 1 step a round", FASHION, mlp(784, (50,), 10), mixed(0.3, 60, 100)),
    local_steps=1,
    batch_size=100,
    rounds=60,
)
