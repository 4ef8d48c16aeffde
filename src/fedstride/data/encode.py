"""Features made of the columns of a frame: text becomes one column per value, and missing values are filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedstride.core.errors import InvalidInput, tell
from fedstride.data.arrays import Array

if TYPE_CHECKING:
    import pandas as pd  # slow to import

MOST_VALUES = 50  # text columns with more different values are left out
FEW = 2  # rows per value below which a column of text identifies rows
MISSING = "missing"


def labelled(where: str, frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Leave out the rows without a value in one of the columns, and say so."""
    for column in columns:
        empty = frame[column].isna()
        if bool(empty.all()):
            raise InvalidInput(f"{where}: column {column!r} is empty; expected values.")
        if bool(empty.any()):
            tell(f"{where}: {int(empty.sum()):,} of {len(frame):,} rows have no {column} and are left out.")
            frame = frame[~empty]
    return frame


def encoded(where: str, train: pd.DataFrame, test: pd.DataFrame) -> tuple[tuple[str, ...], Array, Array]:
    """Return the names of the features, and the features of the training and the test rows.

    Numbers stay as they are; missing ones become the median of the training rows, and a further feature marks them. A text
    column becomes one feature per value that occurs in the training rows. Row numbers, dates and text columns with many
    different values are left out, with a warning.
    """
    names: list[str] = []
    parts: tuple[list[Array], list[Array]] = ([], [])
    odd: dict[str, str] = {}
    for column in train.columns:
        reason = _useless(train[column])
        if reason:
            odd[str(column)] = reason
            continue
        more, *values = _features(train[column], test[column])
        names += more
        for into, value in zip(parts, values, strict=True):
            into.append(value)
    if odd:
        why = "; ".join(f"{name} ({reason})" for name, reason in list(odd.items())[:6])
        tell(f"{where}: columns that are left out: {why}{'; ...' if len(odd) > 6 else '.'}")
    if not names:
        raise InvalidInput(f"{where}: no column is usable as a feature; expected numbers, or text with few values.")
    return tuple(names), np.concatenate(parts[0], 1), np.concatenate(parts[1], 1)


def _useless(column: pd.Series[Any]) -> str:
    """Return the reason why a column is not a feature; empty if it is one."""
    different = int(column.nunique())
    if different == 0:
        return "no values"
    if column.dtype.kind in "mM":
        return "dates and times"
    if column.dtype.kind in "iu":
        spread = int(column.max()) - int(column.min()) + 1
        numbered = different == len(column) > MOST_VALUES and spread <= 2 * len(column)
        return "row numbers" if numbered else ""
    if column.dtype.kind in "fb":
        return ""
    many = different > MOST_VALUES or (different > 2 and len(column) < FEW * different)
    return f"text with {different:,} different values" if many else ""


def _features(train: pd.Series[Any], test: pd.Series[Any]) -> tuple[list[str], Array, Array]:
    """Return names and values of the features of one column."""
    name, numbers = str(train.name), train.dtype.kind in "iufb"
    both = (train, test)
    if numbers:
        middle = float(train.astype(float).median())
        names, values = [name], [part.astype(float).fillna(middle).to_numpy(np.float32)[:, None] for part in both]
    else:
        known = sorted(train.dropna().astype(str).unique())
        names = [f"{name}={value}" for value in known]
        values = [_one_hot(part, known) for part in both]
    empty = [part.isna().to_numpy() for part in both]
    if any(e.any() for e in empty):
        names = [*names, f"{name} {MISSING}"]
        values = [np.column_stack([v, e]).astype(np.float32) for v, e in zip(values, empty, strict=True)]
    return names, values[0], values[1]


def _one_hot(column: pd.Series[Any], known: list[str]) -> Array:
    """Return a matrix with a column for each known value; rows with other values are zero."""
    texts = column.astype(str).to_numpy()
    found: Array = (texts[:, None] == np.array(known)[None, :]).astype(np.float32)
    return found
