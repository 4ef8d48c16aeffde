"""Presets: data, partition, model and training of the tasks that come with fedstride, and of the user's own data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstride.algorithm.text import NOTHING
from fedstride.app.functions import HUGGING_FACE, is_function
from fedstride.core.errors import InvalidInput, nearest
from fedstride.data import files

CNN = {"name": "small_cnn", "options": {"dropout": 0}}  # dropout would keep the clients from running in parallel
IMAGES = {"partition": "dirichlet", "clients": 100, "samples": 500, "normalise": True}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "breast_cancer": {
        "data": {
            "source": "breast_cancer",
            "partition": "dirichlet_split",
            "clients": 20,
            "alpha": 0.5,
            "normalise": True,
        },
        "model": {"name": "softmax"},
        "training": {"weights": "uniform"},
    },
    "mnist": {"data": {"source": "mnist", **IMAGES}, "model": CNN, "training": {"batch_size": 64}},
    "fashion_mnist": {
        "data": {"source": "fashion_mnist", **IMAGES},
        "model": CNN,
        "training": {"batch_size": 64, "rounds": 150},
    },
    "mnist_writers": {
        "data": {"source": "mnist_writers", "partition": "natural", "clients": 539, "normalise": True},
        "model": CNN,
        "training": {"batch_size": 20, "rounds": 100, "weights": "uniform"},
    },
    "cifar10": {
        "data": {"source": "cifar10", **IMAGES},
        "model": CNN,
        "training": {"batch_size": 64, "rounds": 100},
    },
    "covtype": {
        "data": {
            "source": "covtype",
            "partition": "dirichlet",
            "clients": 100,
            "samples": 1000,
            "alpha": 1.0,
            "normalise": True,
        },
        "model": {"name": "softmax"},
        "training": {"batch_size": 50, "rounds": 100},
    },
    "shakespeare": {
        "data": {"source": "shakespeare", "partition": "natural", "clients": 100},
        "model": {"name": "char_lstm"},
        "training": {"batch_size": 50, "rounds": 50, "local_steps": 20, "weights": "uniform"},
    },
}

CLIENTS = 10  # of the user's own data without a client column
ENDINGS = re.compile(r"\.(csv|parquet|libsvm|svm|txt|data|gz|bz2|xz|zip)$", re.IGNORECASE)


def own_preset(source: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset of the user's own data; data: the settings of it that the user gave."""
    folder = data.get("folder")
    path = files.own("the data's path", Path(folder if isinstance(folder, str) else "") / source)
    natural = True
    options: dict[str, Any] = {}
    if not is_function(source):
        options = {"regression": NOTHING}
        if source.startswith(HUGGING_FACE):
            options = {}
        elif files.kind_of(path) in ("csv", "parquet"):
            options["encode"] = True
        given = data.get("options")
        natural = path.is_dir() or bool(isinstance(given, dict) and given.get("client"))
    people = {"partition": "natural", "clients": NOTHING} if natural else {"partition": "iid", "clients": CLIENTS}
    return {"data": {"source": source, "options": options, **people}}


def name_of(source: str) -> str:
    """Return the name of the user's own data: that of the file, folder, module or Hugging Face data set."""
    if is_function(source):
        name = source.partition(":")[0]
        return name if name not in TASKS else source
    last = Path(source.removeprefix(HUGGING_FACE)).expanduser().absolute().name
    name = last
    while (shorter := ENDINGS.sub("", name)) not in ("", name):
        name = shorter
    return name if name not in TASKS else last


def check_exists(source: str) -> None:
    """Refuse a task that is neither a preset nor data."""
    if is_function(source) or source.startswith(HUGGING_FACE):
        return
    path = files.own("the data's path", source)
    if path.exists():
        return
    if path.suffix or len(path.parts) > 1:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, siblings) if siblings else ""
        hint = f"; {near}" if near.startswith("did you mean") else "."
        raise InvalidInput(f"{source}: no such file or folder{hint}")
    raise InvalidInput(
        f"task={source!r} is unknown; {nearest(source, TASKS)} Or give the path of a CSV, Parquet or LIBSVM file, or a LEAF folder."
    )
