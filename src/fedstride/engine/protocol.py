"""The engine protocol: tasks and orders that an engine receives, and the replies that it returns."""

from __future__ import annotations

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
from fedstride.core.normalise import Normalise
from fedstride.core.rows import State, Vec
from fedstride.core.scores import Metric
from fedstride.data.federation import Federation, Lazy
from fedstride.engine.evaluation import Scores

BEFORE = -1  # round number of an exchange before the first round


@dataclass(frozen=True)
class Task:
    """The constants of a run: model, loss, clients and settings."""

    model: nn.Module
    loss: Loss
    reduction: str | None  # reduction of the loss over a batch: "mean", "sum" or None for neither
    clients: Federation | Lazy
    weights: Sequence[float]  # one per client; they need not sum to 1
    batch_size: int | None
    seed: int
    rounds: int
    moving: tuple[str, ...]  # names of the buffers that change in training, such as BatchNorm's statistics
    buffers: str  # treatment of these buffers: "average", "local" or "frozen"
    random: bool  # whether the model draws random numbers
    contrast: bool = False  # whether the objective compares the features of several models
    full: bool = False  # whether the algorithm needs full-batch gradients, whatever the batch size
    mixed: bool = False  # whether forward passes use bfloat16
    normalise: Normalise = False  # whether inputs are scaled, as given in each order: see core/normalise.py
    folder: Path | None = None  # folder of the checkpoints
    keep: int = 1  # number of checkpoints to keep
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # evaluated on the test set, beside loss and accuracy
    personal: Personal | None = None  # parameters that stay with their client
    tests: Sequence[Samples] = ()  # the test set, or one for each client
    plain: bool = True  # whether inputs, outputs and targets are single tensors


@dataclass(frozen=True)
class Order:
    """The server's request to a cohort in one exchange."""

    kind: str  # name of the exchange, such as "updates"
    x: Vec
    stats: Vec
    broadcast: State  # sent beside the model; includes the scaling of the inputs if they are normalised
    round: int
    cohort: Sequence[tuple[int, int]]  # (client, local steps), longest work first
    limits: Mapping[str, float] = field(default_factory=dict)  # largest norm of an admitted field, by name
    call: int = 0  # number of earlier exchanges of this round, including failed attempts


@dataclass(frozen=True)
class Reply:
    """The result of an exchange: the aggregate, metrics per client, and lost clients with reasons."""

    fields: State
    weight: float  # sum of the weights of the admitted clients
    metrics: dict[str, Tensor]  # one value per admitted client, in cohort order
    bytes_up: int
    lost: dict[int, str] = field(default_factory=dict)  # client: reason
    refused: Counter[str] = field(default_factory=Counter)  # number of messages left out, by reason


Recall = Callable[[int], State]  # a client's memory, with its own buffers as "stats"; {} before its first round
Contents = tuple[dict[str, Tensor], dict[str, Any]]  # tensors and JSON facts of a packed training state


class Clients(Protocol):
    """A federation that an engine has opened."""

    def exchange(self, order: Order) -> Reply:
        """Run an order on its cohort and aggregate the admitted uploads.

        The new memory of admitted clients is staged: the next exchange of the round uses it, and commit() keeps it.
        """
        ...

    def commit(self) -> None:
        """Keep this round's client memory."""
        ...

    def discard(self) -> None:
        """Roll back this round's client memory."""
        ...

    def evaluate(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None = None) -> Scores:
        """Return the scores of a model; scaling: that of its inputs, if normalised."""
        ...

    def recall(self) -> Recall | None:
        """Return a function that reads a client's memory, also after close(); None if this process cannot read it."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the clients' memory, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the clients' memory from state()."""
        ...

    def about(self) -> dict[str, Any]:
        """Describe how gradients are computed, and by how many workers."""
        ...

    def close(self, outcome: Contents | None = None) -> None:
        """End the run and release resources; outcome: the final state, sent to processes that follow."""
        ...


class Engine(Protocol):
    """Opens the federation of a task."""

    @property
    def leads(self) -> bool:
        """Whether this process holds the training state; others follow it: see engine/torchrun/engine.py."""
        ...

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        """Open the federation; fresh(x) returns the memory of a client before its first round."""
        ...
