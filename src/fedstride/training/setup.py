"""Setup: everything about a run that no round changes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol

from torch import Size

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler
from fedstride.client.chunk import Samples
from fedstride.client.local import LocalOptions
from fedstride.core.model import Replica
from fedstride.engine import Clients, Task
from fedstride.training.guard import Guard
from fedstride.training.stop import EarlyStopping
from fedstride.training.watch import Watch


class ModelTraits(Protocol):
    """Traits of model and loss that a forward pass on a few samples shows."""

    @property
    def reduction(self) -> str | None: ...
    @property
    def moving(self) -> tuple[str, ...]: ...
    @property
    def random(self) -> bool: ...


def task_of(algorithm: Algorithm, traits: ModelTraits, given: Mapping[str, Any]) -> Task:
    """Return the engine's task. Settings of fs.train() that a Task has a field for are taken from `given` by name."""
    return Task(
        **{f.name: given[f.name] for f in fields(Task) if f.name in given},
        reduction=traits.reduction,
        moving=traits.moving,
        random=traits.random,
        contrast=algorithm.needs_features,
        full=algorithm.exchanges_gradients or not algorithm.gradient.batches,
    )


@dataclass(frozen=True, eq=False)
class Setup:
    """The constants of a run: task, algorithm, clients, sampler and evaluation."""

    algorithm: Algorithm
    options: LocalOptions
    task: Task
    clients: Clients  # the federation, opened by an engine
    sampler: Sampler
    steps: Callable[[int, int], int]  # (round, client) -> local steps
    tests: Sequence[Samples] = ()  # the test set, or one for each client
    evaluate_every: int = 1
    guard: Guard = field(default_factory=Guard)
    stop: EarlyStopping | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # facts about the data, for run.facts
    arguments: dict[str, Any] = field(default_factory=dict)  # those of fs.train(), for run.source
    watch: Watch = field(default_factory=Watch)  # for callbacks

    @cached_property
    def weight(self) -> float:
        """Sum of the weights of all clients."""
        return sum(self.task.weights)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Number of samples per client, as an array: samplers convert it to a tensor without a copy per element."""
        return array("q", self.task.clients.sizes)

    @cached_property
    def shapes(self) -> tuple[Size, ...]:
        """Shapes of the model's trainable tensors."""
        return tuple(Replica(self.task.model).shapes)
