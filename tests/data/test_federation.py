"""Federations: what can be a client, and what cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import fedstride as fs
from tests.problems import classification, learn, same_bits


class Numpy(Dataset):
    """A map-style data set whose items are numpy arrays and whole numbers."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs.numpy(), targets.numpy()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], int(self.targets[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Triples(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.zeros(4), 0, 1


PAIRS = classification()


@pytest.mark.parametrize(
    "clients",
    [
        tuple(PAIRS),
        [list(pair) for pair in PAIRS],
        [TensorDataset(*pair) for pair in PAIRS],
        [Numpy(*pair) for pair in PAIRS],
        [Subset(TensorDataset(*pair), range(len(pair[0]))) for pair in PAIRS],
        fs.data.Federation(PAIRS),
        fs.data.Federation([TensorDataset(*PAIRS[0]), *map(Numpy, *zip(*PAIRS[1:], strict=True))]),
    ],
    ids=["tuple", "lists", "TensorDataset", "numpy items", "Subset", "Federation", "mixed"],
)
def test_every_kind_of_client_trains_to_the_same_bits(clients):
    assert same_bits(learn(clients=clients, batch_size=3), learn(batch_size=3))


def test_a_federation_is_a_sequence():
    federation = fs.data.Federation(PAIRS)
    assert len(federation) == 4
    assert federation.sizes == [6, 9, 5, 8]
    assert [len(client) for client in federation] == federation.sizes
    assert torch.equal(federation[1].take(torch.tensor([2, 0]))[0], PAIRS[1][0][[2, 0]])
    assert torch.equal(federation[1].take()[1], PAIRS[1][1])


X, y = PAIRS[0]
BAD = {
    "empty federation": ([], "clients: the federation is empty"),
    "a tensor": (X, "clients: got Tensor"),
    "a dict": ({0: (X, y)}, "clients: got dict"),
    "a generator": ((pair for pair in PAIRS), "clients: got generator"),
    "None": (None, "clients: got NoneType"),
    "numpy pairs": ([(X.numpy(), y.numpy())], r"clients\[0\]: got tuple.*torch.as_tensor"),
    "not a pair": ([(X, y), (X, y, y)], r"clients\[1\]: got tuple"),
    "empty client": ([(X, y), (X[:0], y[:0])], r"clients\[1\]: it has no samples"),
    "empty data set": ([(X, y), TensorDataset(X[:0], y[:0])], r"clients\[1\]: it has no samples"),
    "lengths": ([(X, y), (X, y[:-1])], r"clients\[1\].*do not match"),
    "scalars": ([(torch.tensor(1.0), torch.tensor(1))], r"clients\[0\].*do not match"),
    "stream": ([Stream()], r"clients\[0\]: an IterableDataset has no length"),
    "triples": ([Triples()], r"clients\[0\]"),
    "input shape": ([(X, y), (X[:, :3], y)], r"clients\[1\]: input shape \(3,\) differs from \(4,\)"),
    "target shape": ([(X, y), (X, y[:, None])], r"clients\[1\]: target shape"),
    "input dtype": ([(X, y), (X.float(), y)], r"clients\[1\]: input dtype torch.float32 differs"),
    "target dtype": ([(X, y), (X, y.double())], r"clients\[1\]: target dtype"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_by_name(case):
    clients, message = BAD[case]
    with pytest.raises(fs.InvalidInput, match=message):
        fs.data.Federation(clients)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1])
def test_the_first_sample_that_is_not_finite_is_named(part, value):
    pairs = [[t.double().clone() for t in pair] for pair in classification()]
    pairs[2][part][3] = value
    with pytest.raises(fs.InvalidInput, match=rf"clients\[2\]: {('inputs', 'targets')[part]} .* sample 3"):
        fs.data.Federation(pairs)


def test_numpy_items_keep_their_type():
    client = fs.data.Federation([Numpy(X.float(), y)])[0]
    inputs, targets = client.take(torch.tensor([1, 0]))
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert np.array_equal(inputs.numpy(), X.float().numpy()[[1, 0]])
