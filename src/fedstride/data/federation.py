"""Federations: sequences of clients, whose samples are taken by index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedstride.core.errors import InvalidInput
from fedstride.data.table import Table

Batch = tuple[Tensor, Tensor]
Check = Callable[[str, Tensor, Tensor], None]  # takes a client's name, inputs and targets
BLOCK = 2**20  # numbers that are checked together, because calls for many small clients are expensive


@dataclass(frozen=True)
class TensorClient:
    """A client whose samples are two tensors."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor | None = None) -> Batch:
        """Return the samples at these indices, all samples if None."""
        if index is None:
            return self.inputs, self.targets
        index = index.to(self.inputs.device)
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)  # twice as fast as [index]

    def put(self, index: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Copy samples into existing tensors on the same device."""
        torch.index_select(self.inputs, 0, index, out=inputs)
        torch.index_select(self.targets, 0, index, out=targets)


@dataclass(frozen=True)
class DatasetClient:
    """A client whose samples are read from a torch Dataset when needed."""

    dataset: Any
    name: str = "clients"

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, index: Tensor | None = None) -> Batch:
        chosen = range(len(self)) if index is None else index.tolist()
        batch = default_collate([self.dataset[i] for i in chosen])
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(v, Tensor) for v in batch)):
            raise InvalidInput(
                f"{self.name}: its Dataset returns {type(self.dataset[0]).__name__} items that are not (input, target) pairs; "
                "expected a pair, each a tensor, an array or a number."
            )
        return batch[0], batch[1]


Client = TensorClient | DatasetClient


class Federation(Sequence[Client]):
    """The clients of a federation. All data is checked once at construction.

    Args:
        clients: one (inputs, targets) pair of tensors, or one map-style torch Dataset, per client.

    Raises:
        InvalidInput: if a client is empty or has non-finite values, or if shapes or types differ between clients.

    Example:
        >>> clients = fs.data.Federation([(torch.randn(50, 20), torch.randint(0, 3, (50,))) for _ in range(10)])
        >>> clients.sizes[0]
        50
    """

    columns: tuple[str, ...] = ()  # names of the features, if they have any

    def __init__(self, clients: Sequence[Any]) -> None:
        if isinstance(clients, Tensor | str | bytes | dict) or not hasattr(clients, "__len__"):
            raise InvalidInput(
                f"clients: got {type(clients).__name__}; expected a sequence with one (inputs, targets) pair of tensors, "
                "or one torch Dataset, per client."
            )
        if len(clients) == 0:
            raise InvalidInput("clients: the federation is empty; expected at least one client.")
        self._clients = [_client(i, c) for i, c in enumerate(clients)]
        self.sizes = [len(c) for c in self._clients]
        first = _kind(_sample(self._clients[0]))
        for block, batches in self._blocks():
            for i, batch in zip(block, batches, strict=True):
                _same(f"clients[{i}]", batch, first)
            _together(block, batches, finite)

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, i: Any) -> Any:
        return self._clients[i]

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def checked(self, check: Check) -> Federation:
        """Apply a check that tests each number separately, and return self."""
        for block, batches in self._blocks():
            _together(block, batches, check)
        return self

    def _blocks(self) -> Iterator[tuple[range, list[Batch]]]:
        """Yield consecutive clients with their data, in blocks of at most BLOCK numbers."""
        width = sum(t.numel() for t in _sample(self._clients[0]))
        start, numbers = 0, 0
        for i, n in enumerate(self.sizes):
            if i > start and numbers + n * width > BLOCK:
                yield range(start, i), [c.take() for c in self._clients[start:i]]
                start, numbers = i, 0
            numbers += n * width
        yield range(start, len(self)), [c.take() for c in self._clients[start:]]


@dataclass(frozen=True)
class Found:
    """Results of a trial run of the model, made where the data is."""

    reduction: str | None  # reduction of the loss over a batch
    moving: tuple[str, ...]  # buffers that change in training
    random: bool  # whether the model draws random numbers
    features: int = 0  # number of features of an input: see core/normalise.py


class Lazy(Sequence[Client]):
    """A federation whose clients are loaded on demand, whenever they take part.

    Args:
        sizes: sample counts of all clients.
        load: a function that returns the (inputs, targets) pair of client i. It is called from worker threads, and must
            return the same data every time. The data is checked after each call.
        checks: further checks of each loaded client.

    Raises:
        InvalidInput: if `sizes` or `load` is invalid.

    Example:
        >>> def load(i):
        ...     source = torch.Generator().manual_seed(i)
        ...     return torch.randn(20, 8, generator=source), torch.randint(0, 3, (20,), generator=source)
        >>> many = fs.data.Lazy([20] * 100_000, load)
    """

    found: Found | None = None  # not None: the data is remote, and was tried and checked there

    def __init__(self, sizes: Sequence[int], load: Callable[[int], Any], checks: Sequence[Check] = ()) -> None:
        if not callable(load):
            raise InvalidInput(
                f"load={load!r} is invalid: expected a function of a client's number that returns (inputs, targets)."
            )
        self.sizes, self.load, self.checks = _sizes(sizes), load, tuple(checks)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(len(self))[i]]
        i = range(len(self))[i]
        client = self._load(i)
        batch = client.take()
        _same(f"clients[{i}]", batch, self._first)
        for check in (finite, *self.checks):
            check(f"clients[{i}]", *batch)
        return client

    def checked(self, check: Check) -> Lazy:
        """Return a federation that also applies this check to each loaded client."""
        return Lazy(self.sizes, self.load, (*self.checks, check))

    @cached_property
    def _first(self) -> tuple[Any, ...]:
        return _kind(_sample(self._load(0)))

    def _load(self, i: int) -> Client:
        try:
            client = _client(i, self.load(i))
        except Exception as error:
            error.add_note(f"fedstride: while loading clients[{i}]")
            raise
        if len(client) != self.sizes[i]:
            raise InvalidInput(
                f"clients[{i}]: load returned {len(client)} samples; expected {self.sizes[i]}, as in sizes[{i}]."
            )
        return client


def elsewhere(sizes: Sequence[int], found: Found) -> Lazy:
    """Return a federation whose data stays on other machines."""

    def load(i: int) -> Any:
        raise InvalidInput(f"clients[{i}]: its data is on another machine; only the engine of this run can use it.")

    clients = Lazy(sizes, load)
    clients.found = found
    return clients


def federation(clients: Any) -> Federation | Lazy:
    """Convert the argument `clients` to a federation."""
    return clients if isinstance(clients, Federation | Lazy) else Federation(clients)


def pair(name: str, value: Any) -> Client:
    """Convert a pair of tensors or a Dataset to a client (also used for the test set)."""
    if isinstance(value, TensorClient | DatasetClient):
        return value
    if isinstance(value, TensorDataset) and len(value.tensors) == 2:
        value = value.tensors
    if isinstance(value, Dataset):
        if not hasattr(value, "__len__"):
            raise InvalidInput(
                f"{name}: an IterableDataset has no length; expected a map-style Dataset or two tensors."
            )
        return DatasetClient(value, name)
    if not (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, Tensor) for v in value)):
        raise InvalidInput(
            f"{name}: got {type(value).__name__}; expected a pair (inputs, targets) of tensors or a torch Dataset. "
            "Convert arrays with torch.as_tensor(...)."
        )
    inputs, targets = value
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise InvalidInput(
            f"{name}: {tuple(inputs.shape)} inputs and {tuple(targets.shape)} targets do not match; "
            "expected the same first dimension, the number of samples."
        )
    return TensorClient(inputs, targets)


def _client(i: int, value: Any) -> Client:
    client = pair(f"clients[{i}]", value)
    if len(client) == 0:
        raise InvalidInput(f"clients[{i}]: no samples; expected at least one. Remove empty clients.")
    return client


def finite(name: str, inputs: Tensor, targets: Tensor) -> None:
    """Refuse NaN and infinite values."""
    for part, values in (("inputs", inputs), ("targets", targets)):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
            raise InvalidInput(
                f"{name}: {part} contain NaN or infinite values (first in sample {bad}); expected finite numbers. "
                "Clean or impute them first."
            )


def _together(block: range, batches: list[Batch], check: Check) -> None:
    """Check many clients at once; if that fails, one by one, to name the invalid one."""
    if len(block) > 1:
        try:
            return check("clients", *(torch.cat(part) for part in zip(*batches, strict=True)))
        except (InvalidInput, RuntimeError):  # RuntimeError: clients on several devices
            pass
    for i, batch in zip(block, batches, strict=True):
        check(f"clients[{i}]", *batch)


def _sample(client: Client) -> Batch:
    return client.take(torch.zeros(1, dtype=torch.int64, device="cpu"))


def _kind(batch: Batch) -> tuple[Any, ...]:
    inputs, targets = batch
    return inputs.shape[1:], targets.shape[1:], inputs.dtype, targets.dtype


def _same(name: str, batch: Batch, first: tuple[Any, ...]) -> None:
    kind = _kind(batch)
    if kind == first:
        return
    for what, mine, theirs in zip(
        ("input shape", "target shape", "input dtype", "target dtype"), kind, first, strict=True
    ):
        if mine != theirs:
            shown = [tuple(v) if isinstance(v, torch.Size) else v for v in (mine, theirs)]
            raise InvalidInput(
                f"{name}: {what} {shown[0]} differs from {shown[1]} of clients[0]; expected the same in all clients."
            )


def _sizes(given: Any) -> list[int]:
    try:
        sizes = [operator.index(n) for n in (given.tolist() if hasattr(given, "tolist") else given)]
    except TypeError:
        sizes = []
    if not sizes or min(sizes) < 1:
        found = f"sizes[{sizes.index(min(sizes))}]={min(sizes)}" if sizes else f"sizes={given!r}"
        raise InvalidInput(f"{found} is invalid: expected the number of samples of every client, at least one.")
    return sizes


def federate(table: Table, parts: Sequence[Tensor]) -> Federation:
    """Split the training samples of a table into clients.

    Args:
        table: the data set.
        parts: one tensor of sample indices per client, such as from fs.data.partition.

    Returns:
        The federation.

    Raises:
        InvalidInput: if indices are out of range, or if a client is empty.

    Example:
        >>> table = fs.data.Table("mine", train=(inputs, targets), test=(inputs, targets), classes=3)
        >>> clients = fs.data.federate(table, fs.data.partition.iid(targets, 4, seed=0))
        >>> clients.sizes
        [2, 2, 2, 2]
    """
    inputs, targets = table.train
    for i, part in enumerate(parts):
        if (
            part.is_floating_point()
            or part.dim() != 1
            or (len(part) and not 0 <= part.min() <= part.max() < len(inputs))
        ):
            raise InvalidInput(
                f"parts[{i}]: expected a tensor of whole numbers from 0 to {len(inputs) - 1}, indices of training samples of "
                f"{table.name}; create parts with fs.data.partition."
            )
    clients = Federation([(inputs[part], targets[part]) for part in parts])
    clients.columns = table.columns
    return clients
