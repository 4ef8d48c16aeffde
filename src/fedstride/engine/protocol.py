"""What an engine is given, and what it gives back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from fedstride.client.chunk import Samples
from fedstride.client.exchange import Exchange
from fedstride.client.personal import Personal
from fedstride.core.losses import Loss
from fedstride.core.metrics import Metric
from fedstride.core.rows import State, Vec
from fedstride.data.federation import Federation, Lazy
from fedstride.engine.evaluation import Scores

BEFORE = -1  # the round of an exchange before the first


@dataclass(frozen=True)
class Task:
    """Everything about a run that does not change from round to round."""

    model: nn.Module
    loss: Loss
    reduction: str | None  # of the loss over a batch
    clients: Federation | Lazy
    weights: Sequence[float]  # one per client, not normalised
    batch_size: int | None
    seed: int
    rounds: int
    moving: tuple[str, ...]  # buffers that move in training
    buffers: str  # what happens to them: average, local or frozen
    random: bool  # the model draws random numbers
    contrast: bool = False  # the objective compares the features of several models
    full: bool = False  # the algorithm asks for gradients of all samples, whatever the batch size
    mixed: bool = False  # forward passes in bfloat16
    normalise: bool = False  # inputs are scaled before the model sees them, as orders say: see core/normalise.py
    folder: Path | None = None  # of the checkpoints
    keep: int = 1  # so many of them
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # beside loss and accuracy, of the test set
    personal: Personal | None = None  # parameters that stay with their client
    tests: Sequence[Samples] = ()  # test sets, in processes that evaluate them
    plain: bool = True  # inputs, outputs and targets are single tensors


@dataclass(frozen=True)
class Order:
    """What the server asks of a cohort."""

    kind: str  # name of the exchange
    x: Vec
    stats: Vec
    broadcast: State  # with the scaling of the inputs, where they are normalised
    round: int
    cohort: Sequence[tuple[int, int]]  # (client, steps), longest first
    limit: float = math.inf  # longer messages are refused
    call: int = 0  # exchanges of this round before this one, in all attempts at it


@dataclass(frozen=True)
class Reply:
    """The aggregate of an exchange, one number per client and metric, and who was lost and why."""

    fields: State
    weight: float  # of those who answered
    metrics: dict[str, Tensor]  # of those who answered, in the cohort's order
    bytes_up: int
    lost: dict[int, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)  # all that was left out, by reason


Recall = Callable[[int], State]  # a client's memory, with "stats" for its moving buffers; {} if it never took part
Contents = tuple[dict[str, Tensor], dict[str, Any]]  # of a training state: tensors and facts


class Clients(Protocol):
    """A federation at work."""

    def exchange(self, order: Order) -> Reply:
        """Let a cohort work, and aggregate.

        What those who answered remember counts for the next exchange, and for the next round after commit().
        """
        ...

    def commit(self) -> None: ...

    def discard(self) -> None:
        """Roll back this round's client state."""
        ...

    def evaluate(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None = None) -> Scores:
        """Return "loss", "accuracy" (or None) and the metrics of a model; scaling: of its inputs, if normalised."""
        ...

    def recall(self) -> Recall | None:
        """A look at what the clients remember now; None where this process cannot know. It may outlive close()."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What the clients remember, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None: ...

    def about(self) -> dict[str, Any]:
        """How gradients are computed, and by how many workers."""
        ...

    def close(self, outcome: Contents | None = None) -> None:
        """The run is over; its outcome, if it has one, for processes that followed."""
        ...


class Engine(Protocol):
    @property
    def leads(self) -> bool:
        """Whether this process holds the training state; one that does not, follows: see engine/torchrun/engine.py."""
        ...

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        """Bring a federation to work; fresh(x) = what a client that never took part remembers."""
        ...
