"""Tasks of `fedstride bench painless`: data, model, split and training arguments, created for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.core.losses import Loss
from fedstride.data import partition
from fedstride.models import MLP, Softmax
from fedstride.research.bench import task_parts as parts
from fedstride.research.bench.task_parts import Data, Samples

LOOKED, UNSEEN, USERS = "looked", "unseen", "users"
GROUPS = {LOOKED: "looked at while designing", UNSEEN: "not looked at", USERS: "what users bring"}
ACCURACY = "accuracy"  # per cent
FIT = "fit"  # per cent of the way from the constant prediction's test loss to the best one that any run reached

Model = Callable[[], nn.Module]
Split = Callable[[Tensor, int], Sequence[Tensor]]  # from the training targets and a seed to indices by client


@dataclass(frozen=True)
class Problem:
    """The arguments of fs.train(), except the algorithm and the number of rounds."""

    model: nn.Module
    loss: str | Loss
    clients: list[Samples]
    test: Samples
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BenchTask:
    """A federated learning problem, created for each seed."""

    name: str
    group: str
    what: str
    rounds: int
    score: str
    make: Callable[[int], Problem]
    source: str | None = None  # data set that must be in the cache


TASKS: dict[str, BenchTask] = {}


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
    """Add a task to the table.

    Args:
        wrong: Share of the training labels that are replaced by another class.
        source: The data set that must be in the cache, if `data` is a function.
        pooled: Use images of half the side, where `data` names a source of images.
        arguments: For fs.train(); by default one epoch, 10 clients per round and batches of 20.
    """
    given = {"cohort": 10, "batch_size": 20, **arguments}
    if "local_steps" not in given:
        given.setdefault("epochs", 1)

    def make(seed: int) -> Problem:
        (x, y), (z, t) = (parts.source(data, pooled) if isinstance(data, str) else data)(seed)
        random = torch.Generator().manual_seed(seed + 77)
        clients = [(x[part], _corrupted(y[part], y, wrong, random)) for part in split(y, seed)]
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            made = model()
        return Problem(made, loss, clients, (z[:2000], t[:2000]), given)

    score = ACCURACY if loss == "cross_entropy" else FIT
    needs = source or (data if isinstance(data, str) and data != "digits" else None)
    TASKS[name] = BenchTask(name, group, what, rounds, score, make, needs)


def _corrupted(labels: Tensor, every: Tensor, wrong: float, random: torch.Generator) -> Tensor:
    if not wrong:
        return labels
    count = int(every.max()) + 1
    hit = torch.rand(len(labels), generator=random) < wrong
    others = (labels + torch.randint(1, count, (len(labels),), generator=random)) % count
    return torch.where(hit, others, labels)


def mixed(alpha: float, clients: int = 100, samples: int = 200) -> Split:
    """Return a split with class distributions from a Dirichlet distribution."""
    return lambda y, seed: partition.dirichlet(y, clients, seed, alpha, samples)


def classes(count: int, clients: int, samples: int | None = None) -> Split:
    """Return a split with this number of classes per client."""
    return lambda y, seed: partition.pathological(y[: samples and samples * clients], clients, seed, count)


def alike(clients: int) -> Split:
    """Return a split of all samples at random."""
    return lambda y, seed: partition.iid(y, clients, seed)


def by_target(clients: int) -> Split:
    """Return a split by target: each client has two ranges of the sorted samples."""

    def split(y: Tensor, seed: int) -> Sequence[Tensor]:
        pieces = torch.argsort(y).tensor_split(2 * clients)
        order = torch.randperm(2 * clients, generator=torch.Generator().manual_seed(seed)).tolist()
        return [torch.cat([pieces[i], pieces[j]]) for i, j in zip(order[::2], order[1::2], strict=True)]

    return split


def by_role(clients: int, samples: int) -> Split:
    """Return a split by the speaking roles of Shakespeare that have enough text."""

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
