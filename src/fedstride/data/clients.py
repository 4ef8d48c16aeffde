"""One client's samples: tensors, arrays, data frames, Datasets and DataLoaders, behind one method, take(index)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from fedstride.core.batch import PAIR, Batch, Split, Tree, as_labels, described, leaves, mapped, samples_of
from fedstride.core.errors import InvalidInput, tell
from fedstride.data.table import Table

Collate = Callable[[list[Any]], Any]
EXPECTED = "expected (inputs, targets), a dict or another structure of tensors or arrays with one row per sample, or a torch Dataset"


@dataclass(frozen=True)
class TensorClient:
    """A client whose samples are two tensors."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.inputs.shape[0]  # len() of a tensor takes ten times as long

    def take(self, index: Tensor | None = None) -> Batch:
        if index is None:
            return self.inputs, self.targets
        index = index.to(self.inputs.device)
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)  # twice as fast as [index]

    def put(self, index: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Copy samples into existing tensors on the same device."""
        torch.index_select(self.inputs, 0, index, out=inputs)
        torch.index_select(self.targets, 0, index, out=targets)

    def batch(self, index: Tensor) -> Tree:
        """Return samples before they are divided into inputs and targets."""
        return self.take(index)

    def divided(self, split: Split, dtype: torch.dtype) -> Client:
        inputs, targets = _converted((self.inputs, self.targets), dtype)
        if replace(split, labels=False) != PAIR:
            return TreeClient((inputs, targets), split)
        targets = as_labels(targets) if split.labels else targets
        return self if inputs is self.inputs and targets is self.targets else TensorClient(inputs, targets)


@dataclass(frozen=True)
class TreeClient:
    """A client whose samples are tensors in a structure of any kind."""

    data: Tree
    split: Split = PAIR

    def __len__(self) -> int:
        return samples_of(self.data)

    def take(self, index: Tensor | None = None) -> Batch:
        return self.split(self.data if index is None else self.batch(index))

    def batch(self, index: Tensor) -> Tree:
        return mapped(lambda v: v.index_select(0, index.to(v.device)), self.data)

    def divided(self, split: Split, dtype: torch.dtype) -> Client:
        return TreeClient(_converted(self.data, dtype), split)


@dataclass(frozen=True)
class DatasetClient:
    """A client whose samples are read from a Dataset when needed."""

    dataset: Any
    name: str = "clients"
    collate: Collate | None = None
    split: Split = PAIR
    dtype: torch.dtype | None = None  # floating point samples are converted to it

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, index: Tensor | None = None) -> Batch:
        return self.split(self.batch(torch.arange(len(self), device="cpu") if index is None else index))

    def batch(self, index: Tensor) -> Tree:
        items = [self.dataset[i] for i in index.tolist()]
        try:
            made = default_collate(list(map(_tensors, items))) if self.collate is None else self.collate(items)
        except Exception as error:
            how = "collate" if self.collate else "torch's default_collate"
            hint = (
                ""
                if self.collate
                else " Samples of different lengths need collate=, a function that pads a list of items."
            )
            raise InvalidInput(
                f"{self.name}: {how} fails on {len(items)} items of type {type(items[0]).__name__}: {error}.{hint}"
            ) from error
        tree = _pure(self.name, made)
        odd = [v for v in leaves(tree) if v.dim() == 0 or len(v) != len(items)]
        if odd:
            raise InvalidInput(
                f"{self.name}: {'collate' if self.collate else 'its Dataset'} makes {described(tree)} of {len(items)} items; "
                "expected tensors with one row per item."
            )
        return tree if self.dtype is None else _converted(tree, self.dtype)

    def divided(self, split: Split, dtype: torch.dtype) -> Client:
        return replace(self, split=split, dtype=dtype)


Client = TensorClient | TreeClient | DatasetClient


def client_of(name: str, value: Any, collate: Collate | None = None) -> Client:
    """Convert what a user gives for one client, or as test set.

    Args:
        name: the argument, for error messages.
        value: tensors, numpy arrays or pandas columns in any structure with one row per sample; a list of items; a torch
            Dataset or any other object with a length and items; or a DataLoader, whose dataset and collate_fn are used.
        collate: makes a batch of a list of items; None = torch's default_collate.

    Raises:
        InvalidInput: the value cannot be used, with the reason.
    """
    if isinstance(value, Client):
        return value
    if isinstance(value, DataLoader):
        own = value.collate_fn if value.collate_fn is not default_collate else None
        return client_of(name, value.dataset, collate or own)
    if isinstance(value, TensorDataset) and collate is None:
        value = value.tensors
    if isinstance(value, Table):
        raise InvalidInput(f"{name}: got a Table, which has two sets of samples; expected one, as in table.test.")
    if _is_frame(value):
        raise InvalidInput(
            f"{name}: a data frame does not say which column is the target; expected (inputs, targets), as in "
            '(frame.drop(columns="label"), frame["label"]), or use fs.data.from_frame(frame, label="label").'
        )
    if _has_items(value) or (collate is not None and isinstance(value, list)):
        if not hasattr(value, "__len__"):
            raise InvalidInput(f"{name}: an IterableDataset has no length; expected a map-style Dataset or tensors.")
        return DatasetClient(value, name, collate)
    data = _pure(name, value)
    lengths = [len(v) if v.dim() else None for v in leaves(data)]
    if len(set(lengths)) != 1 or None in lengths:
        what = (
            f"{tuple(data[0].shape)} inputs and {tuple(data[1].shape)} targets" if _is_pair(data) else described(data)
        )
        raise InvalidInput(f"{name}: {what} do not match; expected the same first dimension, the number of samples.")
    return TensorClient(*data) if _is_pair(data) else TreeClient(data)


def check_clients(clients: Any, collate: Collate | None) -> None:
    """Refuse what cannot be the clients of a federation."""
    refused = isinstance(clients, Tensor | str | bytes) or hasattr(clients, "columns") or _is_data_set(clients)
    if refused or not hasattr(clients, "__len__") or _is_one_pair(clients):
        what = "one (inputs, targets) pair" if _is_one_pair(clients) else type(clients).__name__
        raise InvalidInput(
            f"clients: got {what}; expected a sequence with one (inputs, targets) pair of tensors, or one torch Dataset, per "
            f"client.{_fix(clients)}"
        )
    if len(clients) == 0:
        raise InvalidInput("clients: the federation is empty; expected at least one client.")
    if collate is not None and not callable(collate):
        raise InvalidInput(
            f"collate={collate!r} is invalid: expected a function that makes a batch of a list of items."
        )
    if any(
        isinstance(client, DataLoader) for client in (clients.values() if isinstance(clients, Mapping) else clients)
    ):
        tell(
            "clients: only the dataset and the collate_fn of a DataLoader are used; fs.train() sets batch size and order."
        )


def _is_data_set(value: Any) -> bool:
    """Whether this is one Dataset, of torch or of Hugging Face."""
    rows = hasattr(value, "column_names") and not isinstance(value, Mapping)
    return rows or isinstance(value, Dataset | DataLoader)


def _is_one_pair(clients: Any) -> bool:
    """Whether these are the columns of one client: as many rows in both, of different shapes or types."""
    if not isinstance(clients, tuple | list) or len(clients) != 2 or not all(hasattr(v, "dtype") for v in clients):
        return False
    (rows, *shape), (others, *other) = ((*(v.shape or (0,)), v.dtype) for v in clients)
    return bool(rows == others and shape != other)


def _fix(clients: Any) -> str:
    if isinstance(clients, Table):
        return " For a table, use fs.data.federate(table, parts)."
    if _is_frame(clients):
        return ' For a data frame, use fs.data.from_frame(frame, label="...", client="...").'
    if _is_data_set(clients):
        return " For a single client, use [dataset]; to divide a data set, fs.data.from_datasets and fs.data.federate."
    return " For a single client, use [(inputs, targets)]." if _is_one_pair(clients) else ""


def finite(name: str, inputs: Tree, targets: Tree) -> None:
    """Refuse NaN and infinite values."""
    for part, tree in (("inputs", inputs), ("targets", targets)):
        for values in leaves(tree):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                bad = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
                raise InvalidInput(
                    f"{name}: {part} contain NaN or infinite values (first in sample {bad}); expected finite numbers. "
                    "Clean or impute them first."
                )


def _is_pair(data: Tree) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(v, Tensor) for v in data)


def _is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def _has_items(value: Any) -> bool:
    """Whether this is a data set of items rather than a structure of whole columns."""
    if isinstance(value, Dataset):
        return True
    if isinstance(value, Tensor | np.ndarray | Mapping | tuple | str | bytes) or hasattr(value, "to_numpy"):
        return False
    if isinstance(value, list):
        return len(value) > 0 and all(isinstance(item, Mapping | tuple) for item in value)
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _pure(name: str, value: Any, part: str = "") -> Tree:
    """Return a structure of tensors in tuples, lists and dicts; convert arrays and columns of data frames."""
    if isinstance(value, Tensor):
        return _usual(name, value)
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInput(f"{name}: got an empty dict; {EXPECTED}.")
        return {key: _pure(name, v, f"{part}[{key!r}]") for key, v in value.items()}
    if isinstance(value, tuple | list) and value and not isinstance(value[0], int | float):
        parts = [_pure(name, v, f"{part}[{i}]") for i, v in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    array = _array(value)
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
        return _usual(name, torch.from_numpy(np.ascontiguousarray(native)))
    what = f"an array of type {array.dtype}" if isinstance(array, np.ndarray) else type(value).__name__
    fix = " Encode texts and categories as numbers first, or remove them." if _is_text(array) else ""
    where = f" in batch{part}" if part else ""
    raise InvalidInput(f"{name}: got {what}{where}; {EXPECTED}.{fix}")


def _usual(name: str, value: Tensor) -> Tensor:
    """Return a tensor that torch can index and compute with: no graph, no sparse layout, no wide unsigned numbers."""
    if value.layout is not torch.strided or value.is_nested:
        raise InvalidInput(f"{name}: got a sparse or nested tensor; expected dense ones, as from tensor.to_dense().")
    if value.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return value.to(torch.int64)
    return value.detach() if value.requires_grad else value


def _array(value: Any) -> Any:
    """Return columns of a data frame as an array; those of different kinds of numbers as float64."""
    if not hasattr(value, "to_numpy"):
        return value
    kinds = {getattr(dtype, "kind", "O") for dtype in value.dtypes} if _is_frame(value) else set()
    return value.to_numpy(dtype="float64") if len(kinds) > 1 and kinds <= set("biuf") else value.to_numpy()


def _is_text(value: Any) -> bool:
    return isinstance(value, str | np.ndarray)


def _tensors(item: Any) -> Any:
    """Make tensors of lists of numbers, which torch's default_collate would transpose."""
    if isinstance(item, Mapping):
        return {key: _tensors(value) for key, value in item.items()}
    if isinstance(item, tuple):
        return tuple(map(_tensors, item))
    if isinstance(item, list) and item and all(isinstance(v, int | float) for v in item):
        return torch.tensor(item)
    return item


def _converted(tree: Tree, dtype: torch.dtype) -> Tree:
    return mapped(lambda v: v.to(dtype) if v.is_floating_point() else v, tree)
