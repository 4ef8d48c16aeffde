"""Tables made of arrays: the split into training and test samples, checks, and classes numbered in the order of their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput
from fedstride.data.table import Table

Array = np.ndarray[Any, Any]
SHOWN = 20  # classes in Table.about
MOST_CLASSES = 20  # more different whole numbers are quantities, unless they count from 0 or 1


@dataclass(frozen=True)
class Origin:
    """Where a table comes from.

    Args:
        where: named in error messages: the path of a file, or "frame".
        name: name of the table.
        columns: names of the features.
        clients: names of the natural clients.
    """

    where: str
    name: str
    columns: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()


def split(
    origin: Origin,
    X: Array,
    y: Array,
    groups: Array | None,
    share: Any,
    seed: Any,
    regression: bool | None,
    other: str,
) -> Table:
    """Return the table of samples that are split with a seed; other: what `test` could be instead of a share."""
    regression = is_regression(y) if regression is None else regression
    train, test = split_rows(origin.where, y, groups, share, seed, regression, other)
    mine = None if groups is None else groups[train]
    return table(origin, (X[train], y[train]), (X[test], y[test]), regression, mine)


def split_rows(
    where: str, y: Array, groups: Array | None, share: Any, seed: Any, regression: bool, other: str
) -> tuple[Array, Array]:
    """Return the rows of the training and of the test set.

    With groups, every group is split in the same proportion. Without, the split is stratified by class if every class has
    enough samples. Every group and class keeps a training sample.
    """
    from sklearn.model_selection import train_test_split

    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise InvalidInput(f"{where}: test={share!r}; expected {other}, or a share strictly between 0 and 1.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidInput(f"{where}: seed={seed!r} is invalid: expected a whole number from 0 to {2**32 - 1}.")
    if len(y) < 2:
        raise InvalidInput(f"{where}: one sample cannot be split into training and test.")
    held = max(1, round(share * len(y)))
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    kinds = [] if regression else [codes]
    if groups is not None:
        chosen = _systematic(groups, codes if kinds else np.zeros_like(codes), held, seed)
        return _keep_one_of_each(chosen, [*kinds, groups])
    even = not regression and counts.min() >= 2 and len(counts) <= min(held, len(y) - held)
    train, test = train_test_split(
        np.arange(len(y)), test_size=held, random_state=seed, stratify=codes if even else None
    )
    if not regression and len(np.unique(codes[train])) < len(counts):
        return _keep_one_of_each(test, kinds)
    return train, test


def _systematic(groups: Array, codes: Array, held: int, seed: int) -> Array:
    """Choose rows at equal distances in the order of groups and classes, so that each has its share of them."""
    random = np.random.default_rng(seed)
    order = np.lexsort((random.random(len(codes)), codes, groups))
    places = (np.arange(held) + random.random()) * len(codes) / held
    chosen: Array = order[places.astype(np.int64)]
    return chosen


def _keep_one_of_each(test: Array, kinds: list[Array]) -> tuple[Array, Array]:
    """Move a row of each kind that would have no training row from the test to the training set."""
    held = np.zeros(len(kinds[0]), bool)
    held[test] = True
    for kind in kinds:
        missing = np.setdiff1d(kind[held], kind[~held])
        held[[np.flatnonzero(held & (kind == m))[0] for m in missing]] = False
    if not held.any():
        held[test] = True  # too few samples: table() names the label that the training samples lack
    return np.flatnonzero(~held), np.flatnonzero(held)


def is_regression(y: Array) -> bool:
    """Whether labels look like quantities: numbers with fractions, or many whole numbers that do not count from 0 or 1."""
    if y.dtype.kind not in "iuf":
        return False
    values = np.unique(y)
    if (values != np.round(values)).any():
        return True
    codes = values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1
    return len(values) > MOST_CLASSES and not codes


def table(
    origin: Origin, train: tuple[Array, Array], test: tuple[Array, Array], regression: bool, groups: Array | None = None
) -> Table:
    """Return the table of a training and a test set; labels that are not numbers become class numbers."""
    where, (X, y), (Z, z) = origin.where, train, test
    _check(where, train, test)
    inputs = tensor(X, np.float32), tensor(Z, np.float32)
    owners = None if groups is None else tensor(groups, np.int64)
    people = origin.clients
    if regression:
        both = (inputs[0], _numbers(where, y)), (inputs[1], _numbers(where, z))
        return Table(origin.name, *both, None, owners, where, origin.columns, (), people)
    classes = _classes(where, y, z)
    codes = tensor(np.searchsorted(classes, y), np.int64), tensor(np.searchsorted(classes, z), np.int64)
    named = tuple(f"{n:g}" if classes.dtype.kind == "f" else str(n) for n in classes)
    about = f"{where}; classes: {', '.join(named[:SHOWN])}{', ...' if len(named) > SHOWN else ''}"
    both = (inputs[0], codes[0]), (inputs[1], codes[1])
    return Table(origin.name, *both, len(classes), owners, about, origin.columns, named, people)


def tensor(values: Array, kind: type) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=kind, order="C"))


def _check(where: str, train: tuple[Array, Array], test: tuple[Array, Array]) -> None:
    for part, (values, labels) in (("training", train), ("test", test)):
        if values.ndim < 2 or labels.ndim != 1 or labels.dtype.kind not in "iufbU":
            raise InvalidInput(
                f"{where}: {part} inputs {values.shape} and labels {labels.shape} of type {labels.dtype} are invalid: "
                "expected numbers for each sample, and one number or word as its label."
            )
        if not np.isfinite(values).all():
            raise InvalidInput(f"{where}: {part} features contain NaN or infinite values; expected finite numbers.")
    mine, theirs = train[0].shape[1:], test[0].shape[1:]
    if mine != theirs:
        raise InvalidInput(f"{where}: training inputs are {mine}, test inputs {theirs}; expected the same.")


def _numbers(where: str, labels: Array) -> Tensor:
    """Return the targets of a regression."""
    try:
        with np.errstate(over="ignore"):  # values that are too large become infinite, and are refused below
            targets = tensor(labels.astype(np.float32), np.float32)
    except ValueError as error:
        raise InvalidInput(f"{where}: regression=True, but labels are not numbers ({error}).") from error
    if not bool(torch.isfinite(targets).all()):
        raise InvalidInput(f"{where}: labels contain NaN or infinite values; expected finite numbers.")
    return targets


def _classes(where: str, train: Array, test: Array) -> Array:
    """Return the labels that occur in the training samples, sorted."""
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise InvalidInput(f"{where}: training labels are {train.dtype}, test labels {test.dtype}; expected the same.")
    names: Array = np.unique(train)
    if np.issubdtype(names.dtype, np.floating) and (names != names.round()).any():
        raise InvalidInput(
            f"{where}: labels such as {names[names != names.round()][0]} are not classes; use regression=True."
        )
    unknown = np.setdiff1d(test, names)
    if len(unknown):
        raise InvalidInput(f"{where}: the test label {str(unknown[0])!r} does not occur in the training samples.")
    return names
