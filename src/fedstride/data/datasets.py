"""Convert torch Datasets to a Table, which can be partitioned."""

from __future__ import annotations

from typing import Any

import torch

from fedstride.core.errors import InvalidInput
from fedstride.data.clients import client_of
from fedstride.data.table import Table


def from_datasets(train: Any, test: Any, *, name: str = "datasets", regression: bool = False) -> Table:
    """Convert map-style Datasets, or pairs of tensors, to a Table in memory.

    Args:
        train: the training samples, a map-style Dataset or an (inputs, targets) pair of tensors.
        test: the test samples, in the same form.
        name: name of the table, used in messages.
        regression: if True, keep targets as numbers; by default, integer targets are class labels.

    Returns:
        A Table without natural clients.

    Raises:
        InvalidInput: if targets are not class labels and `regression` is False.

    Example:
        >>> train_set = torch.utils.data.TensorDataset(inputs, targets)
        >>> table = fs.data.from_datasets(train_set, test=(inputs, targets))
        >>> clients = fs.data.federate(table, fs.data.partition.iid(table.train[1], 4, seed=0))
    """
    parts = [client_of(part, value).take() for part, value in (("train", train), ("test", test))]
    if regression:
        return Table(name, parts[0], parts[1], None)
    for part, (_, targets) in zip(("train", "test"), parts, strict=True):
        if targets.is_floating_point() or targets.dim() != 1 or not len(targets):
            raise InvalidInput(
                f"{part}: targets are {targets.dtype} {tuple(targets.shape)}; expected one class per sample (int64). "
                "Use regression=True for other targets."
            )
    labels = [(inputs, targets.to(torch.int64)) for inputs, targets in parts]
    return Table(name, labels[0], labels[1], int(max(targets.max() for _, targets in labels)) + 1)
