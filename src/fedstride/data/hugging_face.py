"""Data sets from the Hugging Face hub, through the optional package flwr-datasets."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from fedstride.core.errors import InvalidInput
from fedstride.data.table import Table

Array = np.ndarray[Any, Any]


def read(
    name: str,
    *,
    input: str = "image",
    label: str = "label",
    client: str | None = None,
    train: str = "train",
    test: str = "test",
    subset: str | None = None,
) -> Table:
    """Read the columns `input` and `label` of the splits `train` and `test`; `client` is the column of natural clients."""
    try:
        flwr_datasets = importlib.import_module("flwr_datasets")
    except ImportError as error:
        raise InvalidInput(f"hf:{name} needs flwr-datasets: pip install flwr-datasets") from error
    try:
        whole = flwr_datasets.FederatedDataset(dataset=name, subset=subset, partitioners={train: 1}, shuffle=False)
        splits = [whole.load_split(split) for split in (train, test)]
    except Exception as error:  # the hub's client raises many kinds of exception
        raise InvalidInput(f"hf:{name}: cannot be loaded: {type(error).__name__}: {error}") from error
    for split in splits:
        for column in (input, label, *((client,) if client and split is splits[0] else ())):
            if column not in split.column_names:
                raise InvalidInput(
                    f"hf:{name}: there is no column {column!r}; expected one of: {', '.join(split.column_names)}."
                )
    parts = [(_inputs(split[input]), torch.as_tensor(np.asarray(split[label]), dtype=torch.int64)) for split in splits]
    classes = int(max(targets.max() for _, targets in parts)) + 1
    about = f"Hugging Face, {name}; see its page for the licence"
    if client is None:
        return Table(f"hf:{name}", parts[0], parts[1], classes, None, about)
    people, groups = np.unique(splits[0][client], return_inverse=True)
    named = tuple(map(str, people))
    return Table(f"hf:{name}", parts[0], parts[1], classes, torch.from_numpy(groups), about, client_names=named)


def _inputs(values: Any) -> torch.Tensor:
    """Convert images to [n, channels, height, width] in [0, 1]; keep vectors unchanged."""
    array = np.stack([np.asarray(v) for v in values])
    if array.dtype == np.uint8 and array.ndim >= 3:
        array = array[:, None] if array.ndim == 3 else np.moveaxis(array, -1, 1)
        return torch.from_numpy(np.ascontiguousarray(array)).float().div_(255)
    return torch.from_numpy(array.astype(np.float32)).reshape(len(array), -1)
