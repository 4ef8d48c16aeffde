"""A federation: a sequence of clients, each with samples that can be taken by index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from fedstride.data.table import Table
from fedstride.errors import InvalidInput

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TensorClient:
    """A client whose samples are two tensors."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor | None = None) -> Batch:
        if index is None:
            return self.inputs, self.targets
        return self.inputs[index], self.targets[index]


@dataclass(frozen=True)
class DatasetClient:
    """A client whose samples come from a torch Dataset, read when they are needed."""

    dataset: Any
    name: str = "clients"

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, index: Tensor | None = None) -> Batch:
        chosen = range(len(self)) if index is None else index.tolist()
        batch = default_collate([self.dataset[i] for i in chosen])
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(v, Tensor) for v in batch)):
            raise InvalidInput(
                f"{self.name}: its Dataset gives {type(self.dataset[0]).__name__} items that are no pair of an input and a "
                "target; expected (input, target), each a tensor, an array or a number."
            )
        return batch[0], batch[1]


Client = TensorClient | DatasetClient


class Federation(Sequence[Client]):
    """The clients of a federation; checked once, so that training meets no surprise."""

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
        _check(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, i: Any) -> Any:
        return self._clients[i]

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)


def federation(clients: Any) -> Federation:
    return clients if isinstance(clients, Federation) else Federation(clients)


def pair(name: str, value: Any) -> Client:
    """One client's or the test set's data, from a pair of tensors or a Dataset."""
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
            "expected the same number of samples first in both."
        )
    return TensorClient(inputs, targets)


def _client(i: int, value: Any) -> Client:
    client = pair(f"clients[{i}]", value)
    if len(client) == 0:
        raise InvalidInput(f"clients[{i}]: it has no samples; expected at least one. Drop empty clients.")
    return client


def finite(name: str, inputs: Tensor, targets: Tensor) -> None:
    for part, values in (("inputs", inputs), ("targets", targets)):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
            raise InvalidInput(
                f"{name}: {part} hold NaN or infinite values (first in sample {bad}); expected finite numbers. "
                "Clean or impute them first."
            )


def _check(clients: list[Client]) -> None:
    first: tuple[Any, ...] | None = None
    for i, client in enumerate(clients):
        inputs, targets = client.take()
        finite(f"clients[{i}]", inputs, targets)
        kind = (inputs.shape[1:], targets.shape[1:], inputs.dtype, targets.dtype)
        if first is None:
            first = kind
        for j, what in enumerate(("input shape", "target shape", "input dtype", "target dtype")):
            if kind[j] != first[j]:
                shown = [tuple(v) if isinstance(v, torch.Size) else v for v in (kind[j], first[j])]
                raise InvalidInput(
                    f"clients[{i}]: {what} {shown[0]} differs from {shown[1]} of clients[0]; "
                    "expected the same in all clients."
                )


def federate(table: Table, parts: Sequence[Tensor]) -> Federation:
    """The clients that a partition makes of a table's training samples."""
    inputs, targets = table.train
    for i, part in enumerate(parts):
        if (
            part.is_floating_point()
            or part.dim() != 1
            or (len(part) and not 0 <= part.min() <= part.max() < len(inputs))
        ):
            raise InvalidInput(
                f"parts[{i}]: expected a tensor of whole numbers from 0 to {len(inputs) - 1}, the training samples of "
                f"{table.name}; make parts with fs.data.partition."
            )
    return Federation([(inputs[part], targets[part]) for part in parts])
