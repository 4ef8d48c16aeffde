"""One client's samples: tensors, arrays, data frames, Datasets and DataLoaders, behind one method, take(index)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from fedstride.core.batch import PAIR, Batch, Split, Tree, described, leaves, mapped, samples_of
from fedstride.core.errors import InvalidInput, tell

Collate = Callable[[list[Any]], Any]
EXPECTED = "expected (inputs, targets), a dict or another structure of tensors or arrays with one row per sample, or a torch Dataset"


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
        if split != PAIR:
            return TreeClient((inputs, targets), split)
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
        tell(
            f"{name}: of a DataLoader, the dataset and collate_fn are used; batch_size and order are those of fs.train()."
        )
        own = value.collate_fn if value.collate_fn is not default_collate else None
        return client_of(name, value.dataset, collate or own)
    if isinstance(value, TensorDataset) and collate is None:
        value = value.tensors
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


def _pure(name: str, value: Any) -> Tree:
    """Return a structure of tensors in tuples, lists and dicts; convert arrays and columns of data frames."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInput(f"{name}: got an empty dict; {EXPECTED}.")
        return {key: _pure(name, v) for key, v in value.items()}
    if isinstance(value, tuple | list) and value and not isinstance(value[0], int | float):
        parts = [_pure(name, v) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    array = value.to_numpy() if hasattr(value, "to_numpy") else value
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        native = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
        return torch.from_numpy(np.ascontiguousarray(native))
    what = f"an array of type {array.dtype}" if isinstance(array, np.ndarray) else type(value).__name__
    fix = " Encode texts and categories as numbers first." if isinstance(array, np.ndarray) else ""
    raise InvalidInput(f"{name}: got {what}; {EXPECTED}.{fix}")


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


def sets_of(data: Any, collate: Collate | None = None) -> tuple[list[str], list[Any]] | None:
    """Return the names (none in a list) and the values of several data sets; None for a single one.

    A dict is one set if its values are columns, else sets by name. A list is one set if it holds two columns or single items;
    an item differs from a set in that its parts do not all have one row for each of the same number of samples.
    """
    if isinstance(data, Mapping):
        return None if all(_is_column(v) for v in data.values()) else (list(map(str, data)), list(data.values()))
    if not isinstance(data, list) or not data or any(_is_column(v) for v in data):
        return None
    items = [v for v in data if isinstance(v, Mapping | tuple) and (collate is not None or not _is_whole(v))]
    return None if items else ([], data)


def _is_column(value: Any) -> bool:
    return hasattr(value, "dtype") or hasattr(value, "to_numpy")


def _is_whole(value: Any) -> bool:
    """Whether a structure holds many samples: all its parts are arrays with the same first dimension."""
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves(value)]
    return all(shapes) and len({shape[0] for shape in shapes}) == 1
