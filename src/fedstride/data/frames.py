"""Tables made of pandas frames, with the names of columns, classes and clients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.arrays import Array, Origin, split, table
from fedstride.data.table import Table

if TYPE_CHECKING:
    import pandas as pd  # slow to import

LISTED = 20  # columns in an error message
Columns = tuple[Array, Array]  # features and labels


def from_frame(
    frame: pd.DataFrame,
    label: str = "label",
    client: str | None = None,
    *,
    features: Sequence[str] | None = None,
    test: pd.DataFrame | float = 0.2,
    seed: int = 0,
    regression: bool = False,
    name: str = "frame",
) -> Table:
    """Convert a pandas frame to a Table. Missing values and text in feature columns are refused.

    Args:
        frame: one row per sample.
        label: the column of the labels. Labels that are not numbers become class numbers, in the order of their names.
        client: the column that names the client of each row; None if rows have no natural clients.
        features: the columns of the inputs; None = all others. They must be numbers.
        test: the share of the rows that are held out as test samples, or another frame with the same columns.
        seed: seed of the split, which is stratified by class if every class has enough samples.
        regression: if True, keep labels as numbers.
        name: name of the table, used in messages.

    Returns:
        A Table with the names of its columns, classes and clients. fs.data.federate(table) makes the federation.

    Raises:
        InvalidInput: if a column is missing, has missing values, or is text where numbers are expected.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [61.0, 47.0, 55.0, 38.0] * 10, "ward": ["A", "B"] * 20})
        >>> frame["diagnosis"] = ["ill" if age > 50 else "well" for age in frame["age"]]
        >>> table = fs.data.from_frame(frame, label="diagnosis", client="ward")
        >>> fs.data.federate(table).names
        ('A', 'B')
    """
    if not is_frame(frame):
        raise InvalidInput(f"{name}: got {type(frame).__name__}; expected a pandas DataFrame.")
    return table_of(frame, Origin(name, name), FrameArguments(label, client, features, test, seed, regression))


@dataclass(frozen=True)
class FrameArguments:
    """The arguments of from_frame(), and the words for the test set in error messages."""

    label: str
    client: str | None
    features: Sequence[str] | None
    test: Any
    seed: int
    regression: bool
    test_is: str = "test"
    test_may_be: str = "another frame"


def is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def table_of(frame: pd.DataFrame, origin: Origin, choice: FrameArguments) -> Table:
    """Return the table of a frame."""
    label, client = choice.label, choice.client
    chosen = _features(origin.where, frame, choice)
    X, y = _columns(origin.where, frame, label, client, chosen)
    groups, names = (None, ()) if client is None else frame[client].factorize(sort=True)
    origin = replace(origin, columns=tuple(map(str, chosen)), clients=tuple(map(str, names)))
    if is_frame(choice.test):
        held = _columns(choice.test_is, choice.test, label, None, chosen)
        return table(origin, (X, y), held, choice.regression, groups)
    return split(origin, X, y, groups, choice.test, choice.seed, choice.regression, choice.test_may_be)


def _features(where: str, frame: pd.DataFrame, choice: FrameArguments) -> list[Any]:
    if choice.features is None:
        return [c for c in frame.columns if c not in (choice.label, choice.client)]
    if isinstance(choice.features, str) or not isinstance(choice.features, Iterable):
        raise InvalidInput(f"{where}: features={choice.features!r} is invalid: expected a list of columns.")
    return list(choice.features)


def _columns(where: str, frame: pd.DataFrame, label: str, client: str | None, chosen: list[Any]) -> Columns:
    if frame.empty:
        raise InvalidInput(f"{where}: there are no rows.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InvalidInput(f"{where}: there are two columns {twice!r}; expected different names.")
    person = [] if client is None else [("client", client)]
    for option, column in (("label", label), *person, *(("features", f) for f in chosen)):
        _exists(where, frame, option, column)
    if not chosen:
        raise InvalidInput(f"{where}: there are no feature columns besides {label!r}.")
    for column in chosen:
        if frame[column].dtype.kind not in "iufb":
            raise InvalidInput(
                f"{where}: column {column!r} contains {frame[column].iloc[0]!r}; expected numbers. Encode it, as with "
                "pandas.get_dummies(frame, columns=[...]), or exclude it with features=[...]."
            )
    return frame[chosen].to_numpy(np.float32), _labels(frame[label])


def _exists(where: str, frame: pd.DataFrame, option: str, column: Any) -> None:
    """Refuse a column that does not exist or has missing values."""
    if not isinstance(column, Hashable) or column is None or column not in frame.columns:
        known = list(map(str, frame.columns))
        near = nearest(str(column), known)
        listed = f"expected one of: {', '.join(known[:LISTED])}{', ...' if len(known) > LISTED else '.'}"
        hint = f"{near} E{listed[1:]}" if near.startswith("did you mean") else listed
        raise InvalidInput(f"{where}: {option}={column!r} is not a column; {hint}")
    missing = frame[column].isna()
    if bool(missing.any()):
        row = int(missing.to_numpy().argmax())
        count = int(missing.sum())
        more = f", and in {count - 1} more" if count > 1 else ""
        raise InvalidInput(
            f"{where}: column {column!r} is empty in row {row}{more}; expected a value. Clean it first, as with "
            "frame.dropna() or frame.fillna()."
        )


def _labels(column: pd.Series) -> Array:
    if column.dtype.kind not in "iufb":
        return column.to_numpy().astype(str)
    values: Array = column.to_numpy()
    return np.array(values.tolist()) if values.dtype == object else values  # pandas' own types of numbers
