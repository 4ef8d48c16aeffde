"""The stratified split of scikit-learn's train_test_split, number for number, without its two seconds of imports."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def stratified(labels: Array, held: int, seed: int) -> tuple[Array, Array]:
    """Return the rows of the training samples and of the `held` test samples, with equal shares of every class."""
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])  # of each class
    source = np.random.RandomState(seed)
    kept = _shares(counts, len(labels) - held, source)
    left_out = _shares(counts - kept, held, source)
    mixed = [of[source.permutation(len(of))] for of in rows]
    train = np.concatenate([of[:n] for of, n in zip(mixed, kept, strict=True)])
    test = np.concatenate([of[n : n + m] for of, n, m in zip(mixed, kept, left_out, strict=True)])
    return source.permutation(train), source.permutation(test)


def _shares(counts: Array, wanted: int, source: np.random.RandomState) -> Array:
    """Split a number in proportion to the counts; the largest remainders are rounded up, ties at random."""
    exact = counts / counts.sum() * wanted
    found = np.floor(exact)
    for remainder in np.unique(exact - found)[::-1]:
        missing = int(wanted - found.sum())
        if missing == 0:
            break
        (alike,) = np.where(exact - np.floor(exact) == remainder)
        found[source.choice(alike, size=min(len(alike), missing), replace=False)] += 1
    return np.asarray(found, int)
