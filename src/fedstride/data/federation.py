"""Federations: sequences of clients, whose samples are taken by index."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedstride.core.batch import Batch, Split, described, joined, leaves, signature_of
from fedstride.core.errors import InvalidInput
from fedstride.data.clients import Client, Collate, DatasetClient, check_clients, client_of, finite
from fedstride.data.describe import federation_text, structure_of
from fedstride.data.partition import natural
from fedstride.data.table import Table

Check = Callable[[str, Any, Any], None]  # takes a client's name, inputs and targets
BLOCK = 2**20  # numbers that are checked together, because calls for many small clients are expensive


class Federation(Sequence[Client]):
    """The clients of a federation. All data is checked once at construction.

    Args:
        clients: one element per client, or a dict of them by name. A client is (inputs, targets), or another structure of
            tensors, numpy arrays or pandas columns with one row per sample, such as a dict; or a torch Dataset, a list of
            items, or a DataLoader.
        collate: makes a batch of a list of items, for Datasets whose items differ in length.

    Raises:
        InvalidInput: if a client is empty or has non-finite values, or if shapes or types differ between clients.

    Example:
        >>> clients = fs.data.Federation([(torch.randn(50, 20), torch.randint(0, 3, (50,))) for _ in range(10)])
        >>> clients.sizes[0]
        50
    """

    columns: tuple[str, ...] = ()  # names of the features, if they have any
    classes: tuple[str, ...] = ()  # names of the classes, if they have any

    def __init__(self, clients: Sequence[Any] | Mapping[Any, Any], collate: Collate | None = None) -> None:
        check_clients(clients, collate)
        self.names = tuple(map(str, clients)) if isinstance(clients, Mapping) else ()
        values = list(clients.values()) if isinstance(clients, Mapping) else clients
        self._clients = [_client(self.label(i), c, collate) for i, c in enumerate(values)]
        if collate is not None and not self._loose:
            raise InvalidInput(
                "collate: it makes batches of lists of items, and the clients are tensors; expected Datasets or lists of items."
            )
        self.sizes = [len(c) for c in self._clients]
        first = _sample(self._clients[0])
        for block, batches in self._blocks():
            for i, batch in zip(block, batches, strict=True):
                _same(self.label(i), batch, first, self._loose, self.label(0))
            self._together(block, batches, finite)

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, i: Any) -> Any:
        return self._clients[i]

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def __repr__(self) -> str:
        first = self._clients[0].batch(torch.zeros(1, dtype=torch.int64, device="cpu"))
        return federation_text(self, f"sample   {structure_of(first)}")

    def label(self, i: int) -> str:
        """Return the name of a client for error messages."""
        return f"clients[{self.names[i]!r}]" if self.names else f"clients[{i}]"

    def checked(self, check: Check) -> Federation:
        """Apply a check that tests each number separately, and return self."""
        for block, batches in self._blocks():
            self._together(block, batches, check)
        return self

    def divided(self, split: Split, dtype: torch.dtype) -> Federation:
        """Return the federation with samples divided into inputs and targets, and floating point ones of this type."""
        like = copy.copy(self)
        like._clients = [client.divided(split, dtype) for client in self._clients]
        return like

    @property
    def _loose(self) -> bool:
        """Whether the lengths of samples may differ: a collate function pads each batch."""
        return any(isinstance(c, DatasetClient) and c.collate is not None for c in self._clients)

    def _blocks(self) -> Iterator[tuple[range, list[Batch]]]:
        """Yield consecutive clients with their data, in blocks of at most BLOCK numbers."""
        width = sum(v.numel() for v in leaves(_sample(self._clients[0])))
        start, numbers = 0, 0
        for i, n in enumerate(self.sizes):
            if i > start and numbers + n * width > BLOCK:
                yield range(start, i), [c.take() for c in self._clients[start:i]]
                start, numbers = i, 0
            numbers += n * width
        yield range(start, len(self)), [c.take() for c in self._clients[start:]]

    def _together(self, block: range, batches: list[Batch], check: Check) -> None:
        """Check many clients at once; if that fails, one by one, to name the invalid one."""
        if len(block) > 1:
            try:
                return check("clients", *(joined(list(part)) for part in zip(*batches, strict=True)))
            except (InvalidInput, RuntimeError):  # RuntimeError: several devices, or padded to several lengths
                pass
        for i, batch in zip(block, batches, strict=True):
            check(self.label(i), *batch)


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
        collate: makes a batch of a list of items, as in Federation.

    Raises:
        InvalidInput: if `sizes` or `load` is invalid.

    Example:
        >>> def load(i):
        ...     source = torch.Generator().manual_seed(i)
        ...     return torch.randn(20, 8, generator=source), torch.randint(0, 3, (20,), generator=source)
        >>> many = fs.data.Lazy([20] * 100_000, load)
    """

    found: Found | None = None  # not None: the data is remote, and was tried and checked there

    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    _divide: tuple[Split, torch.dtype] | None = None

    def __init__(
        self,
        sizes: Sequence[int],
        load: Callable[[int], Any],
        checks: Sequence[Check] = (),
        collate: Collate | None = None,
    ) -> None:
        if not callable(load):
            raise InvalidInput(
                f"load={load!r} is invalid: expected a function of a client's number that returns (inputs, targets)."
            )
        self.sizes, self.load, self.checks, self.collate = _sizes(sizes), load, tuple(checks), collate

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return federation_text(self, "clients are loaded on demand" if self.found is None else "the data is remote")

    def label(self, i: int) -> str:
        """Return the name of a client for error messages."""
        return f"clients[{i}]"

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(len(self))[i]]
        i = range(len(self))[i]
        client = self._load(i)
        batch = client.take()
        _same(f"clients[{i}]", batch, self._first, self.collate is not None)
        for check in (finite, *self.checks):
            check(f"clients[{i}]", *batch)
        return client

    def checked(self, check: Check) -> Lazy:
        """Return a federation that also applies this check to each loaded client."""
        like = copy.copy(self)
        like.checks = (*self.checks, check)
        return like

    def divided(self, split: Split, dtype: torch.dtype) -> Lazy:
        """Return the federation with samples divided into inputs and targets, and floating point ones of this type."""
        like = copy.copy(self)
        like.__dict__.pop("_first", None)
        like._divide = (split, dtype)
        return like

    @cached_property
    def _first(self) -> Batch:
        return _sample(self._load(0))

    def _load(self, i: int) -> Client:
        try:
            client = _client(self.label(i), self.load(i), self.collate)
        except Exception as error:
            error.add_note(f"fedstride: while loading clients[{i}]")
            raise
        if len(client) != self.sizes[i]:
            raise InvalidInput(
                f"clients[{i}]: load returned {len(client)} samples; expected {self.sizes[i]}, as in sizes[{i}]."
            )
        return client if self._divide is None else client.divided(*self._divide)


def elsewhere(sizes: Sequence[int], found: Found) -> Lazy:
    """Return a federation whose data stays on other machines."""

    def load(i: int) -> Any:
        raise InvalidInput(f"clients[{i}]: its data is on another machine; only the engine of this run can use it.")

    clients = Lazy(sizes, load)
    clients.found = found
    return clients


def federation(clients: Any, collate: Collate | None = None) -> Federation | Lazy:
    """Return the clients as a federation."""
    if not isinstance(clients, Federation | Lazy):
        return Federation(clients, collate)
    if collate is not None:
        raise InvalidInput(f"collate: the clients are a {type(clients).__name__} already; give collate= to that.")
    return clients


def _client(name: str, value: Any, collate: Collate | None) -> Client:
    client = client_of(name, value, collate)
    if len(client) == 0:
        raise InvalidInput(f"{name}: no samples; expected at least one. Remove empty clients.")
    return client


def _sample(client: Client) -> Batch:
    return client.take(torch.zeros(1, dtype=torch.int64, device="cpu"))


def _same(name: str, batch: Batch, first: Batch, loose: bool = False, other: str = "clients[0]") -> None:
    """Refuse samples that differ in structure, shape or type from the first client's; loose: shapes may differ."""
    if signature_of(batch) == signature_of(first):
        return
    if loose or not all(isinstance(v, Tensor) for v in (*batch, *first)):
        kinds = [[(v.dtype, v.dim()) for v in leaves(b)] for b in (batch, first)]
        if not loose or kinds[0] != kinds[1]:
            raise InvalidInput(
                f"{name}: {described(batch)} differs from {described(first)} of {other}; expected samples of the same "
                "structure, shapes and types in all clients."
            )
        return
    for what, a, b in zip(("input", "target"), batch, first, strict=True):
        for of, mine, theirs in (("shape", tuple(a.shape[1:]), tuple(b.shape[1:])), ("dtype", a.dtype, b.dtype)):
            if mine != theirs:
                raise InvalidInput(
                    f"{name}: {what} {of} {mine} differs from {theirs} of {other}; expected the same in all clients."
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


def federate(table: Table, parts: Sequence[Tensor] | None = None) -> Federation:
    """Split the training samples of a table into clients.

    Args:
        table: the data set.
        parts: one tensor of sample indices per client, such as from fs.data.partition. None = the table's natural
            clients.

    Returns:
        The federation, with the names that the table has for features and classes, and for its natural clients if each
        client is one of them.

    Raises:
        InvalidInput: if indices are out of range, if a client is empty, or if the table has no natural clients.

    Example:
        >>> table = fs.data.Table("mine", train=(inputs, targets), test=(inputs, targets), classes=3)
        >>> clients = fs.data.federate(table, fs.data.partition.iid(targets, 4, seed=0))
        >>> clients.sizes
        [2, 2, 2, 2]
    """
    if parts is None:
        parts = natural(table.groups)
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
    clients.columns, clients.classes, clients.names = table.columns, table.class_names, _natural_names(table, parts)
    return clients


def _natural_names(table: Table, parts: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of the clients, if each is one of the table's natural clients."""
    if table.groups is None or not table.client_names:
        return ()
    owners = [torch.unique(table.groups[part]).tolist() for part in parts]
    first = [groups[0] for groups in owners]
    if any(len(groups) > 1 for groups in owners) or len(set(first)) < len(first):
        return ()
    return tuple(table.client_names[group] for group in first)
