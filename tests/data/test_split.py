"""The split is scikit-learn's, number for number."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedstride.data import convert
from fedstride.data.split import stratified


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_are_those_of_scikit_learn(seed):
    source = np.random.default_rng(seed)
    labels = source.permutation(np.repeat(np.arange(5), source.integers(2, 40, size=5)))
    held = int(source.integers(5, len(labels) - 5))
    expected = train_test_split(np.arange(len(labels)), test_size=held, random_state=seed, stratify=labels)
    assert all(map(np.array_equal, stratified(labels, held, seed), expected))


def test_the_digits_are_those_of_scikit_learn():
    found, expected = convert.digits(None, print), load_digits()
    parts = train_test_split(expected.images, expected.target, test_size=0.2, random_state=0, stratify=expected.target)
    train, test, train_labels, test_labels = parts
    for name, array in (("train", train[:, None]), ("test", test[:, None])):
        assert np.array_equal(found[name].numpy(), array) and found[name].numpy().dtype == array.dtype
    for name, array in (("train_labels", train_labels), ("test_labels", test_labels)):
        assert np.array_equal(found[name].numpy(), array) and found[name].numpy().dtype == array.dtype
