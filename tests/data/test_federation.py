"""Federations: valid and invalid clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedstride as fs
from tests.problems import classification, learn, same_bits


class Numpy(Dataset):
    """A map-style data set whose items are numpy arrays and integers."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs.numpy(), targets.numpy()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], int(self.targets[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


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
        fs.data.Lazy([6, 9, 5, 8], PAIRS.__getitem__),
    ],
    ids=["tuple", "lists", "TensorDataset", "numpy items", "Subset", "Federation", "mixed", "Lazy"],
)
def test_every_kind_of_client_trains_to_the_same_bits(clients):
    assert same_bits(learn(clients=clients, batch_size=3), learn(batch_size=3))


@pytest.mark.parametrize("federation", [fs.data.Federation(PAIRS), fs.data.Lazy([6, 9, 5, 8], PAIRS.__getitem__)])
def test_a_federation_is_a_sequence(federation):
    assert len(federation) == 4
    assert federation.sizes == [6, 9, 5, 8]
    assert [len(client) for client in federation[-3:3]] == [9, 5]
    assert len(federation[-1]) == 8
    with pytest.raises(IndexError):
        federation[4]
    assert [len(client) for client in federation] == federation.sizes
    assert torch.equal(federation[1].take(torch.tensor([2, 0]))[0], PAIRS[1][0][[2, 0]])
    assert torch.equal(federation[1].take()[1], PAIRS[1][1])


X, y = PAIRS[0]
BAD = {
    "empty federation": ([], "clients: the federation is empty"),
    "a tensor": (X, "clients: got Tensor"),
    "a generator": ((pair for pair in PAIRS), "clients: got generator"),
    "one pair": ((X, y), r"clients: got one \(inputs, targets\) pair; .* use \[\(inputs, targets\)\]"),
    "one data set": (TensorDataset(X, y), r"clients: got TensorDataset; .* use \[dataset\]"),
    "one loader": (DataLoader(TensorDataset(X, y)), "clients: got DataLoader"),
    "None": (None, "clients: got NoneType"),
    "texts": ([(X.numpy(), y.numpy().astype(str))], r"clients\[0\]: got an array of type <U.*Encode texts"),
    "not a pair": ([(X, y), (X, y, y)], r"clients\[1\]: .* differs from .* of clients\[0\]"),
    "empty client": ([(X, y), (X[:0], y[:0])], r"clients\[1\]: no samples"),
    "empty data set": ([(X, y), TensorDataset(X[:0], y[:0])], r"clients\[1\]: no samples"),
    "lengths": ([(X, y), (X, y[:-1])], r"clients\[1\].*do not match"),
    "scalars": ([(torch.tensor(1.0), torch.tensor(1))], r"clients\[0\].*do not match"),
    "stream": ([Stream()], r"clients\[0\]: an IterableDataset has no length"),
    "input shape": ([(X, y), (X[:, :3], y)], r"clients\[1\]: input shape \(3,\) differs from \(4,\)"),
    "target shape": ([(X, y), (X, y[:, None])], r"clients\[1\]: target shape"),
    "input dtype": ([(X, y), (X.float(), y)], r"clients\[1\]: input dtype torch.float32 differs"),
    "target dtype": ([(X, y), (X, y.double())], r"clients\[1\]: target dtype"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_data_is_refused_with_the_client(case):
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


@pytest.mark.parametrize("block", [1, 2**7, 2**20])
@pytest.mark.parametrize("culprit", [0, 49, 50, 99])
def test_the_invalid_client_is_named_whatever_the_block(culprit, block, monkeypatch):
    monkeypatch.setattr("fedstride.data.federation.BLOCK", block)
    pairs = classification([1 + i % 7 for i in range(100)])
    fs.data.Federation(pairs)
    pairs[culprit][0][-1, 2] = float("nan")
    with pytest.raises(fs.InvalidInput, match=rf"clients\[{culprit}\]: inputs .* sample {len(pairs[culprit][0]) - 1}"):
        fs.data.Federation(pairs)


def test_every_client_is_checked_once(monkeypatch):
    monkeypatch.setattr("fedstride.data.federation.BLOCK", 64)
    seen = []
    fs.data.Federation(PAIRS).checked(lambda name, inputs, targets: seen.append(inputs))
    assert len(seen) > 1
    assert torch.equal(torch.cat(seen), torch.cat([inputs for inputs, _ in PAIRS]))


def loaded(sizes=(6, 9, 5, 8), pairs=PAIRS):
    """Return a lazy federation, and the list of loaded clients."""
    calls = []

    def load(i):
        calls.append(i)
        return pairs[i]

    return fs.data.Lazy(sizes, load), calls


def test_clients_are_loaded_on_first_use():
    federation, calls = loaded()
    assert (len(federation), calls) == (4, [])
    assert torch.equal(federation[2].take()[0], PAIRS[2][0])
    assert set(calls) == {0, 2}  # the first tells what the others must look like
    calls.clear()
    assert len(federation[3]) == 8
    assert calls == [3]


@pytest.mark.parametrize("sizes", [np.array([6, 9, 5, 8]), torch.tensor([6, 9, 5, 8]), (6, 9, np.int64(5), 8)])
def test_sizes_may_be_an_array(sizes):
    assert fs.data.Lazy(sizes, PAIRS.__getitem__).sizes == [6, 9, 5, 8]


@pytest.mark.parametrize("sizes", [[], None, 4, [6, 9, 5.0, 8], [6, 0, 5, 8], [6, -1, 5, 8], "6958"])
def test_invalid_sizes_are_refused(sizes):
    with pytest.raises(fs.InvalidInput, match=r"sizes(\[1\])?=.* is invalid"):
        fs.data.Lazy(sizes, PAIRS.__getitem__)


def test_a_loader_that_is_not_callable_is_refused():
    with pytest.raises(fs.InvalidInput, match=r"load=\[\] is invalid"):
        fs.data.Lazy([6, 9], [])


LOADED = {case: given for case, given in BAD.items() if isinstance(given[0], list) and given[0]}


@pytest.mark.parametrize("case", LOADED)
def test_invalid_data_is_refused_when_loaded(case):
    pairs, message = LOADED[case]
    federation = fs.data.Lazy([len(X)] * len(pairs), pairs.__getitem__)
    with pytest.raises(fs.InvalidInput, match=message):
        federation[len(pairs) - 1]


def test_loaded_clients_must_have_the_declared_size():
    federation, _ = loaded(sizes=(6, 9, 4, 8))
    with pytest.raises(fs.InvalidInput, match=r"clients\[2\]: load returned 5 samples; expected 4, as in sizes\[2\]"):
        federation[2]


def test_checks_apply_to_each_loaded_client():
    def refuse(name, inputs, targets):
        raise fs.InvalidInput(f"{name}: no")

    federation, _ = loaded()
    checked = federation.checked(refuse)
    with pytest.raises(fs.InvalidInput, match=r"clients\[3\]: no"):
        checked[3]
    assert len(federation[3]) == 8


def test_an_error_in_the_loader_names_the_client():
    with pytest.raises(IndexError) as caught:
        loaded(sizes=(6, 9, 5, 8, 7))[0][4]
    assert "clients[4]" in "".join(caught.value.__notes__)


def test_numpy_items_keep_their_type():
    client = fs.data.Federation([Numpy(X.float(), y)])[0]
    inputs, targets = client.take(torch.tensor([1, 0]))
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert np.array_equal(inputs.numpy(), X.float().numpy()[[1, 0]])
