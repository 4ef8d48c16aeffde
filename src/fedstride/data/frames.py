"""Tables made of pandas frames, with the names of columns, classes and clients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.arrays import Array, Origin, is_regression, split_rows, table
from fedstride.data.encode import encoded, labelled
from fedstride.data.table import Table

if TYPE_CHECKING:
    import pandas as pd  # slow to import

LISTED = 20  # columns in an error message


def from_frame(
    frame: pd.DataFrame,
    label: str = "label",
    client: str | None = None,
    *,
    features: Sequence[str] | None = None,
    test: pd.DataFrame | float = 0.2,
    seed: int = 0,
    regression: bool | None = False,
    encode: bool = False,
    name: str = "frame",
) -> Table:
    """Convert a pandas frame to a Table. Missing values and text in feature columns are refused, unless encode is True.

    Args:
        frame: one row per sample.
        label: the column of the labels. Labels that are not numbers become class numbers, in the order of their names.
        client: the column that names the client of each row; None if rows have no natural clients.
        features: the columns of the inputs; None = all others. They must be numbers, unless encode is True.
        test: the share of the rows that are held out as test samples, or another frame with the same columns.
        seed: seed of the split, which takes the same share of every client, or else of every class.
        regression: if True, keep labels as numbers; None = decide by the labels.
        encode: if True, a text column becomes one input per value, missing numbers become the median, with another input
            that marks them, and rows without label or client are left out. Medians and values are those of the training
            rows. Row numbers, dates, and text with many different values are left out, with a warning.
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
    return table_of(frame, Origin(name, name), FrameArguments(label, client, features, test, seed, regression, encode))


@dataclass(frozen=True)
class FrameArguments:
    """The arguments of from_frame(), and the words for the test set in error messages."""

    label: str
    client: str | None
    features: Sequence[str] | None
    test: Any
    seed: int
    regression: bool | None
    encode: bool = False
    test_is: str = "test"
    test_may_be: str = "another frame"


def is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def table_of(frame: pd.DataFrame, origin: Origin, choice: FrameArguments) -> Table:
    """Return the table of a frame."""
    label, client = choice.label, choice.client
    chosen = _features(origin.where, frame, choice)
    frame = _checked(origin.where, frame, choice, chosen, client)
    y = _labels(frame[label])
    groups, people = (None, ()) if client is None else frame[client].factorize(sort=True)
    regression = is_regression(y) if choice.regression is None else choice.regression
    if is_frame(choice.test):
        held = _checked(choice.test_is, choice.test, choice, chosen, None)
        z = _labels(held[label])
    else:
        given = (choice.test, choice.seed, regression, choice.test_may_be)
        rows, others = split_rows(origin.where, y, groups, *given)
        held, z = frame.iloc[others], y[others]
        frame, y, groups = frame.iloc[rows], y[rows], None if groups is None else groups[rows]
    if choice.encode:
        names, X, Z = encoded(origin.where, frame[chosen], held[chosen])
    else:
        names = tuple(map(str, chosen))
        X, Z = (part[chosen].to_numpy(np.float32) for part in (frame, held))
    origin = replace(origin, columns=names, clients=tuple(map(str, people)))
    return table(origin, (X, y), (Z, z), regression, groups)


def _features(where: str, frame: pd.DataFrame, choice: FrameArguments) -> list[Any]:
    if choice.features is None:
        return [c for c in frame.columns if c not in (choice.label, choice.client)]
    if isinstance(choice.features, str) or not isinstance(choice.features, Iterable):
        raise InvalidInput(f"{where}: features={choice.features!r} is invalid: expected a list of columns.")
    return list(choice.features)


def _checked(
    where: str, frame: pd.DataFrame, choice: FrameArguments, chosen: list[Any], client: str | None
) -> pd.DataFrame:
    """Return the rows that are usable; refuse a frame whose columns are not."""
    label = choice.label
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
    if choice.encode:
        return labelled(where, frame, [label, *([] if client is None else [client])])
    for column in (label, *(c for _, c in person), *chosen):
        _refuse_missing(where, frame, column)
    for column in chosen:
        if frame[column].dtype.kind not in "iufb":
            raise InvalidInput(
                f"{where}: column {column!r} contains {frame[column].iloc[0]!r}; expected numbers. Use encode=True, or exclude "
                "it with features=[...]."
            )
    return frame


def _exists(where: str, frame: pd.DataFrame, option: str, column: Any) -> None:
    """Refuse a column that does not exist."""
    if not isinstance(column, Hashable) or column is None or column not in frame.columns:
        known = list(map(str, frame.columns))
        near = nearest(str(column), known)
        listed = f"expected one of: {', '.join(known[:LISTED])}{', ...' if len(known) > LISTED else '.'}"
        hint = f"{near} E{listed[1:]}" if near.startswith("did you mean") else listed
        if option == column == "label":  # the default
            hint = f"name the column to predict, as label (--label on the command line): {listed}"
        raise InvalidInput(f"{where}: {option}={column!r} is not a column; {hint}")


def _refuse_missing(where: str, frame: pd.DataFrame, column: Any) -> None:
    missing = frame[column].isna()
    if bool(missing.any()):
        row = int(missing.to_numpy().argmax())
        count = int(missing.sum())
        more = f", and in {count - 1} more" if count > 1 else ""
        raise InvalidInput(
            f"{where}: column {column!r} is empty in row {row}{more}; expected a value. Use encode=True, or clean it "
            "first, as with frame.dropna() or frame.fillna()."
        )


def _labels(column: pd.Series) -> Array:
    if column.dtype.kind not in "iufb":
        return column.to_numpy().astype(str)
    values: Array = column.to_numpy()
    return np.array(values.tolist()) if values.dtype == object else values  # pandas' own types of numbers
