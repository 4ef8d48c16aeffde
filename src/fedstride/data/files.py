"""Read the user's own files into a Table: LIBSVM, CSV, Parquet, and the JSON folders of LEAF.

Caldas et al. LEAF: a benchmark for federated settings. 2018.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.arrays import Array, Origin, is_regression, split, table, tensor
from fedstride.data.frames import FrameArguments, table_of
from fedstride.data.packed import DAMAGED, opened
from fedstride.data.table import Table

if TYPE_CHECKING:
    import pandas as pd  # like scikit-learn, slow to import, so only imported to read a file

DENSE_LIMIT = 16 * 2**30  # bytes; sparse files that would be larger as a dense table are refused


def own(what: str, path: str | Path) -> Path:
    """Expand a path of the user; refuse paths that the system cannot look up."""
    try:
        found = Path(path).expanduser()
        found.exists()
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # too long, unknown home, not a string
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{what}: {str(path)[:80]!r} is invalid ({why}); expected a file or a folder.") from error
    return found


def read(path: Path, **options: Any) -> Table:
    """Read a file or folder in the format of its name: folders are LEAF, then .csv and .parquet, all else LIBSVM."""
    if not path.is_file() and not path.is_dir():
        raise InvalidInput(f"{path}: no such file or folder.")
    reader = READERS[kind_of(path)]
    check_options(str(path), reader, options)
    return reader(path, **options)


def options_of(reader: Callable[..., object]) -> list[str]:
    """Return the names of a reader's options."""
    return [p.name for p in inspect.signature(reader).parameters.values() if p.kind is p.KEYWORD_ONLY]


def check_options(owner: str, reader: Callable[..., object], options: dict[str, Any]) -> None:
    """Refuse options that a reader does not have."""
    valid = options_of(reader)
    for option in options:
        if option not in valid:
            hint = nearest(option, valid) if valid else "it has no options."
            raise InvalidInput(f"{owner}: unknown option {option!r}; {hint}")


def kind_of(path: Path) -> str:
    """Return the format of a file or folder: leaf, csv, parquet or libsvm."""
    if path.is_dir():
        return "leaf"
    return next((s[1:] for s in path.suffixes if s in (".csv", ".parquet")), "libsvm")


def libsvm(
    path: Path,
    *,
    test: str | Path | float = 0.2,
    seed: int = 0,
    features: int | None = None,
    regression: bool | None = False,
) -> Table:
    """Read a LIBSVM file (also .gz or .bz2); `test` is another file, or the share of test samples."""
    X, y = _libsvm(path, features)
    if isinstance(test, str | Path):
        held = _libsvm(own("test", test), features)
        wide = max(X.shape[1], held[0].shape[1])  # one file may lack the last features
        X, Z = (np.pad(M, ((0, 0), (0, wide - M.shape[1]))) for M in (X, held[0]))
        regression = is_regression(y) if regression is None else regression
        return table(Origin(str(path), path.name), (X, y), (Z, held[1]), regression)
    return split(Origin(str(path), path.name), X, y, None, test, seed, regression, "a file")


def csv(
    path: Path,
    *,
    label: str = "label",
    client: str | None = None,
    features: Sequence[str] | None = None,
    test: str | Path | float = 0.2,
    seed: int = 0,
    regression: bool | None = False,
    encode: bool = False,
) -> Table:
    """Read a CSV or Parquet file with a label column and, optionally, a column that names the client of each row."""
    frame = _frame(path)
    choice = FrameArguments(label, client, features, test, seed, regression, encode, test_may_be="a file")
    if isinstance(test, str | Path):
        choice = replace(choice, test=_frame(own("test", test)), test_is=str(test))
    return table_of(frame, Origin(str(path), path.name), choice)


def leaf(path: Path, *, shape: Sequence[int] | None = None, regression: bool | None = False) -> Table:
    """Read a LEAF folder: train/*.json and test/*.json, with x and y of each user; `shape` is that of one input."""
    users: dict[str, int] = {}
    train, test = ([_leaf_file(f) for f in _leaf_files(path / part)] for part in ("train", "test"))
    alphabet = sorted({c for file in train for d in file.values() for x in d["x"] if isinstance(x, str) for c in x})
    owners: list[int] = []
    for file in train:
        for user, d in file.items():
            owners += [users.setdefault(user, len(users))] * len(d["y"])
    parts = [_leaf_arrays(path, part, alphabet, shape) for part in (train, test)]
    if alphabet:  # the next character, in the code of the inputs
        (X, y), (Z, z) = parts
        whole = (tensor(X, np.int64), tensor(y, np.int64)), (tensor(Z, np.int64), tensor(z, np.int64))
        people = torch.tensor(owners)
        return Table(path.name, *whole, len(alphabet), people, str(path), (), tuple(alphabet), tuple(users))
    regression = is_regression(parts[0][1]) if regression is None else regression
    return table(Origin(str(path), path.name, (), tuple(users)), parts[0], parts[1], regression, np.array(owners))


READERS: dict[str, Callable[..., Table]] = {"libsvm": libsvm, "csv": csv, "parquet": csv, "leaf": leaf}


def _libsvm(path: Path, features: int | None) -> tuple[Array, Array]:
    from sklearn.datasets import load_svmlight_file

    try:
        with opened(path) as file:
            X, y = load_svmlight_file(file, n_features=features)
    except DAMAGED as error:
        raise InvalidInput(f"{path}: not a readable LIBSVM file ({error}).") from error
    if X.shape[0] == 0:
        raise InvalidInput(f"{path}: the file has no samples.")
    if 4 * math.prod(X.shape) > DENSE_LIMIT:
        raise InvalidInput(
            f"{path}: {X.shape[0]} x {X.shape[1]} would need {4 * math.prod(X.shape) / 2**30:.0f} GiB as a dense table; "
            "expected fewer features. Hash or select them first."
        )
    return X.astype(np.float32).toarray(), y


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        if kind_of(path) == "parquet":
            frame = pd.read_parquet(path)
        else:
            with opened(path) as file:
                frame = pd.read_csv(file)
    except ImportError as error:
        raise InvalidInput(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save it as CSV.") from error
    except DAMAGED as error:
        raise InvalidInput(f"{path}: not a readable table ({error}).") from error
    if frame.empty:
        raise InvalidInput(f"{path}: the file has no rows.")
    return frame


def _leaf_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.json"))
    if not found:
        raise InvalidInput(f"{folder}: no .json files; expected a LEAF folder with train/*.json and test/*.json.")
    return found


def _leaf_file(path: Path) -> dict[str, dict[str, list[Any]]]:
    try:
        data = json.loads(path.read_text())
        users = {user: data["user_data"][user] for user in data["users"]}
        uneven = [user for user, d in users.items() if len(d["x"]) != len(d["y"])]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise InvalidInput(f"{path}: not a LEAF file ({type(error).__name__}: {error}).") from error
    if uneven:
        raise InvalidInput(f"{path}: user {uneven[0]!r} has different numbers of x and y.")
    return users


def _leaf_arrays(
    path: Path, files: list[dict[str, dict[str, list[Any]]]], alphabet: list[str], shape: Sequence[int] | None
) -> tuple[Array, Array]:
    x = [v for file in files for d in file.values() for v in d["x"]]
    y = [v for file in files for d in file.values() for v in d["y"]]
    code = {c: i for i, c in enumerate(alphabet)}
    try:
        if alphabet:
            return np.array([[code[c] for c in v] for v in x]), np.array([code[v] for v in y])
        X = np.array(x, np.float32)
        return (X if shape is None else X.reshape(len(X), *shape)), np.array(y)
    except KeyError as error:
        raise InvalidInput(f"{path}: the character {error} does not occur in the training inputs.") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{path}: its inputs do not form a table ({error}).") from error
