"""Read the user's own files into a Table: LIBSVM, CSV, Parquet, and the JSON folders of LEAF.

Caldas et al. LEAF: a benchmark for federated settings. 2018.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.packed import DAMAGED, opened
from fedstride.data.table import Table

if TYPE_CHECKING:
    import pandas as pd  # like scikit-learn, slow to import, so only imported to read a file

Array = np.ndarray[Any, Any]
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
    reader = READERS[_kind(path)]
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


def _kind(path: Path) -> str:
    if path.is_dir():
        return "leaf"
    return next((s[1:] for s in path.suffixes if s in (".csv", ".parquet")), "libsvm")


def libsvm(
    path: Path, *, test: str | Path | float = 0.2, seed: int = 0, features: int | None = None, regression: bool = False
) -> Table:
    """Read a LIBSVM file (also .gz or .bz2); `test` is another file, or the share of test samples."""
    X, y = _libsvm(path, features)
    if isinstance(test, str | Path):
        held = _libsvm(own("test", test), features)
        wide = max(X.shape[1], held[0].shape[1])  # one file may lack the last features
        X, Z = (np.pad(M, ((0, 0), (0, wide - M.shape[1]))) for M in (X, held[0]))
        return _table(path, (X, y), (Z, held[1]), regression)
    return _split(path, X, y, None, test, seed, regression)


def csv(
    path: Path,
    *,
    label: str = "label",
    client: str | None = None,
    features: Sequence[str] | None = None,
    test: str | Path | float = 0.2,
    seed: int = 0,
    regression: bool = False,
) -> Table:
    """Read a CSV or Parquet file with a label column and, optionally, a column that names the client of each row."""
    frame = _frame(path)
    X, y = _columns(path, frame, label, client, features)
    groups = None if client is None else _numbers(frame[client])
    columns = tuple(features or _features(frame, label, client))
    if isinstance(test, str | Path):
        test = own("test", test)
        held = _columns(test, _frame(test), label, None, columns)
        return replace(_table(path, (X, y), held, regression, groups), columns=columns)
    return replace(_split(path, X, y, groups, test, seed, regression), columns=columns)


def leaf(path: Path, *, shape: Sequence[int] | None = None, regression: bool = False) -> Table:
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
        whole = (_tensor(X, np.int64), _tensor(y, np.int64)), (_tensor(Z, np.int64), _tensor(z, np.int64))
        return Table(path.name, *whole, len(alphabet), torch.tensor(owners), str(path))
    return _table(path, parts[0], parts[1], regression, np.array(owners))


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
        if _kind(path) == "parquet":
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


def _features(frame: pd.DataFrame, label: str, client: str | None) -> list[str]:
    return [c for c in frame.columns if c not in (label, client)]


def _columns(
    path: Path, frame: pd.DataFrame, label: str, client: str | None, features: Sequence[str] | None
) -> tuple[Array, Array]:
    if isinstance(features, str) or not isinstance(features, Iterable | None):
        raise InvalidInput(f"{path}: features={features!r} is invalid: expected a list of columns.")
    chosen = _features(frame, label, client) if features is None else list(features)
    person = [] if client is None else [("client", client)]
    for option, column in (("label", label), *person, *(("features", f) for f in chosen)):
        if not isinstance(column, str) or column not in frame.columns:
            raise InvalidInput(
                f"{path}: {option}={column!r} is not a column; expected one of: {', '.join(map(str, frame.columns))}."
            )
        if bool(frame[column].isna().any()):
            row = int(frame[column].isna().to_numpy().argmax())
            raise InvalidInput(f"{path}: column {column!r} is empty in row {row}; expected a value. Clean it first.")
    if not chosen:
        raise InvalidInput(f"{path}: there are no feature columns besides {label!r}.")
    for column in chosen:
        if frame[column].dtype.kind not in "iufb":
            raise InvalidInput(
                f"{path}: column {column!r} contains {frame[column].iloc[0]!r}; expected numbers. Encode it, or exclude it "
                "with features=[...]."
            )
    return frame[chosen].to_numpy(np.float32), _labels(frame[label])


def _labels(column: pd.Series) -> Array:
    return column.to_numpy() if column.dtype.kind in "iufb" else column.to_numpy().astype(str)


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
        return (X if shape is None else X.reshape(-1, *shape)), np.array(y)
    except KeyError as error:
        raise InvalidInput(f"{path}: the character {error} does not occur in the training inputs.") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{path}: its inputs do not form a table ({error}).") from error


def _split(path: Path, X: Array, y: Array, groups: Array | None, share: float, seed: int, regression: bool) -> Table:
    """Split with a seed, stratified by class if every class has enough samples."""
    from sklearn.model_selection import train_test_split

    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise InvalidInput(f"{path}: test={share!r}; expected a file, or a share strictly between 0 and 1.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidInput(f"{path}: seed={seed!r} is invalid: expected a whole number from 0 to {2**32 - 1}.")
    if len(y) < 2:
        raise InvalidInput(f"{path}: one sample cannot be split into training and test.")
    held = max(1, round(share * len(y)))
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    even = not regression and counts.min() >= 2 and len(counts) <= min(held, len(y) - held)
    train, test = train_test_split(
        np.arange(len(y)), test_size=held, random_state=seed, stratify=codes if even else None
    )
    mine = None if groups is None else groups[train]
    return _table(path, (X[train], y[train]), (X[test], y[test]), regression, mine)


def _table(
    path: Path, train: tuple[Array, Array], test: tuple[Array, Array], regression: bool, groups: Array | None = None
) -> Table:
    (X, y), (Z, z) = train, test
    for part, values, labels in (("training", X, y), ("test", Z, z)):
        if values.ndim < 2 or labels.ndim != 1 or labels.dtype.kind not in "iufbU":
            raise InvalidInput(
                f"{path}: {part} inputs {values.shape} and labels {labels.shape} of type {labels.dtype} are invalid: "
                "expected numbers for each sample, and one number or word as its label."
            )
        if not np.isfinite(values).all():
            raise InvalidInput(f"{path}: {part} features contain NaN or infinite values; expected finite numbers.")
    if X.shape[1:] != Z.shape[1:]:
        raise InvalidInput(f"{path}: training inputs are {X.shape[1:]}, test inputs {Z.shape[1:]}; expected the same.")
    owners = None if groups is None else _tensor(groups, np.int64)
    inputs = _tensor(X, np.float32), _tensor(Z, np.float32)
    if regression:
        try:
            with np.errstate(over="ignore"):  # values that are too large become infinite, and are refused below
                targets = _tensor(y.astype(np.float32), np.float32), _tensor(z.astype(np.float32), np.float32)
        except ValueError as error:
            raise InvalidInput(f"{path}: regression=True, but labels are not numbers ({error}).") from error
        if not all(bool(torch.isfinite(t).all()) for t in targets):
            raise InvalidInput(f"{path}: labels contain NaN or infinite values; expected finite numbers.")
        return Table(path.name, (inputs[0], targets[0]), (inputs[1], targets[1]), None, owners, str(path))
    if (y.dtype.kind == "U") != (z.dtype.kind == "U"):
        raise InvalidInput(f"{path}: training labels are {y.dtype}, test labels {z.dtype}; expected the same.")
    names = np.unique(y)
    if np.issubdtype(names.dtype, np.floating) and (names != names.round()).any():
        raise InvalidInput(
            f"{path}: labels such as {names[names != names.round()][0]} are not classes; use regression=True."
        )
    unknown = np.setdiff1d(z, names)
    if len(unknown):
        raise InvalidInput(f"{path}: the test label {unknown[0]} does not occur in the training samples.")
    codes = _tensor(np.searchsorted(names, y), np.int64), _tensor(np.searchsorted(names, z), np.int64)
    shown = [f"{n:g}" if names.dtype.kind == "f" else str(n) for n in names[:20]]
    about = f"{path}; classes: {', '.join(shown)}{', ...' if len(names) > 20 else ''}"
    return Table(path.name, (inputs[0], codes[0]), (inputs[1], codes[1]), len(names), owners, about)


def _numbers(column: pd.Series) -> Array:
    """Number the clients in the order of their names."""
    return column.factorize(sort=True)[0]


def _tensor(values: Array, kind: type) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=kind, order="C"))
