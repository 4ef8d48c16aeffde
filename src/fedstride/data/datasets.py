"""Any torch Dataset as a Table, so that it can be partitioned."""

from __future__ import annotations

from typing import Any

import torch

from fedstride.core.errors import InvalidInput
from fedstride.data.federation import pair
from fedstride.data.table import Table


def from_datasets(train: Any, test: Any, *, name: str = "datasets", regression: bool = False) -> Table:
    """Map-style Datasets, or pairs of tensors, read into memory once; whole-number targets are classes."""
    parts = [pair(part, value).take() for part, value in (("train", train), ("test", test))]
    if regression:
        return Table(name, parts[0], parts[1], None)
    for part, (_, targets) in zip(("train", "test"), parts, strict=True):
        if targets.is_floating_point() or targets.dim() != 1 or not len(targets):
            raise InvalidInput(
                f"{part}: targets are {targets.dtype} {tuple(targets.shape)}; expected one class per sample (int64). regression=True?"
            )
    labels = [(inputs, targets.to(torch.int64)) for inputs, targets in parts]
    return Table(name, labels[0], labels[1], int(max(targets.max() for _, targets in labels)) + 1)
