"""Conversion of torch Datasets to tables."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fedstride as fs


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((2,), float(i * i)), i % 3


def test_a_dataset_becomes_a_table():
    table = fs.data.from_datasets(Squares(), TensorDataset(torch.ones(1, 2), torch.tensor([2], dtype=torch.int32)))
    assert table.train[0][:, 1].tolist() == [0, 1, 4, 9, 16, 25]
    assert table.train[1].tolist() == [0, 1, 2, 0, 1, 2]
    assert (table.test[1].dtype, table.classes) == (torch.int64, 3)
    parts = fs.data.partition.pathological(table.train[1], 3, 0, classes=1)
    assert fs.data.federate(table, parts).sizes == [2, 2, 2]


def test_regression_keeps_its_targets():
    pair = (torch.ones(2, 1), torch.tensor([0.5, 1.5]))
    table = fs.data.from_datasets(pair, pair, regression=True)
    assert table.classes is None
    assert torch.equal(table.train[1], pair[1])
    with pytest.raises(fs.InvalidInput, match=r"train: targets are torch.float32.*regression=True"):
        fs.data.from_datasets(pair, pair)


def test_invalid_tables_are_refused():
    X, y = torch.zeros(3, 1), torch.tensor([0, 1, 2])
    for arguments, message in [
        (((X, y[:2]), (X, y), 3), "train has 3 inputs but 2 targets"),
        (((X, y), (X, y), 2), "labels range from 0 to 2; expected 0 to 1"),
        (((X, y), (X, y - 1), 3), "test labels range from -1"),
        (((X, y), (X, y), 3, y[:1]), "1 groups for 3 training samples"),
    ]:
        with pytest.raises(fs.InvalidInput, match=message):
            fs.data.Table("t", *arguments)
