"""The public names: fs.train and the makers of its arguments, called with anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from tests.fuzz import junk
from tests.fuzz.configs import like, mostly
from tests.fuzz.law import Target
from tests.problems import classification, classifier

THINGS: list[Any] = [
    *(
        b"bytes",
        object(),
        int,
        print,
        lambda *a: None,
        lambda *a: 1,
        Path("/nowhere/x"),
        range(3),
        1j,
        date(2026, 1, 2),
        {1, 2},
    ),
    *(
        torch.tensor(2),
        torch.tensor([1.0, 2.0]),
        torch.zeros(0),
        torch.tensor(float("nan")),
        np.float64(0.5),
        np.int8(1),
    ),
    *(np.zeros((2, 2)), np.array("x"), (1, 2), (), [[], []], ..., NotImplemented, nn.ReLU(), nn.Linear(4, 3).double()),
    *(
        fs.Armijo(),
        fs.Armijo,
        fs.recipes.fedavg,
        fs.recipes.fedlin(),
        fs.Average(),
        fs.TopK(1),
        fs.Bernoulli(0.5),
        fs.Weighted(2),
    ),
    *(fs.Guard(), fs.Checkpoints("x"), fs.engine.Local(workers=1), fs.Privacy(1.0), fs.Median()),
]
anything = st.sampled_from(THINGS) | junk.values
CLIENTS, MODEL = classification(), classifier()
PAIR = CLIENTS[0]
GOOD: dict[str, list[Any]] = {
    "model": [MODEL, classifier(middle=nn.Dropout), classifier(middle=lambda: nn.BatchNorm1d(3))],
    "loss": ["cross_entropy", "nll", "mse", nn.CrossEntropyLoss(), lambda output, target: output.sum()],
    "clients": [CLIENTS, fs.data.federation.Federation(CLIENTS), [PAIR]],
    "algorithm": [*RECIPES],
    "cohort": [1, 2, 0.5, fs.Bernoulli(0.5), fs.Weighted(2)],
    "local_steps": [1, 2, [1, 2, 1, 3], lambda round, client: 1 + client],
    "epochs": [0.5, 1, 2],
    "batch_size": [1, 3, 100],
    "weights": ["uniform", "samples", [1, 2, 3, 4]],
    "test": [PAIR],
    "seed": [0, 7, 2**40],
    "engine": ["auto", "local", fs.engine.Local(workers=2)],
    "callbacks": [[], [lambda event: None]],
    "weight_decay": [0.0, 0.1],
    "clip_norm": [1.0, 0.001],
    "buffers": ["average", "local", "frozen"],
    "device": ["cpu", "cuda", "meta"],
    "precision": ["bfloat16"],
    "readout": ["server", "last", "average"],
    "evaluate_every": [1, 5, "auto"],
    "guard": [fs.Guard(), fs.Guard(norm=1.0), fs.Guard(quorum=4)],
    "rounds": [1, 2],
}
FOLDERS = [name for name in inspect.signature(fs.train).parameters if name not in GOOD]


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    """A call with up to four arguments, one of them odd now and then."""
    names = draw(st.lists(st.sampled_from([*GOOD, *FOLDERS]), max_size=4, unique=True))
    return {name: draw(mostly(st.sampled_from(GOOD[name])) if name in GOOD else anything) for name in names}


def trained(given: dict[str, Any]) -> None:
    """Numbers of rounds, steps and epochs are cut: training long is no mistake."""
    asked = {"model": MODEL, "loss": "cross_entropy", "clients": CLIENTS, "rounds": 1, "local_steps": 1, **given}
    if "epochs" in given and "local_steps" not in given:
        asked.pop("local_steps")
    for name, most in (("rounds", 2), ("local_steps", 5), ("epochs", 2.0)):
        value = asked.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            asked[name] = most
    with TemporaryDirectory() as folder:
        if isinstance(asked.get("checkpoint"), str | Path | fs.Checkpoints):
            asked["checkpoint"] = Path(folder) / "inside"
        positional = [asked.pop(name) for name in ("model", "loss", "clients")]
        run = fs.train(*positional, **asked)
    assert bool(torch.isfinite(run.x).all())
    assert len(run.history) == asked["rounds"]


MAKERS: dict[str, Callable[..., object]] = {
    **RECIPES,
    **{
        name: v
        for name, v in vars(fs).items()
        if inspect.isclass(v) and v.__module__.startswith("fedstride") and "Error" not in name
    },
}
for name in (
    "Corrupt",
    "Diverged",
    "FedstrideWarning",
    "GivenUp",
    "InvalidInput",
    "Refused",
    "TooFew",
    "Unsaved",
    "Event",
    "Run",
):
    MAKERS.pop(name, None)


@st.composite
def made(draw: Any) -> tuple[str, dict[str, Any]]:
    """A recipe or a part, with arguments like its defaults, or not."""
    name = draw(st.sampled_from([*MAKERS]))
    known = inspect.signature(MAKERS[name]).parameters
    wanted = draw(st.lists(st.sampled_from([*known]), max_size=3, unique=True)) if known else []
    needed = [key for key, p in known.items() if p.default is p.empty]
    keys = dict.fromkeys([*needed, *wanted])
    return name, {key: draw(like(known[key].default) | anything) for key in keys}


def make(given: tuple[str, dict[str, Any]]) -> None:
    name, arguments = given
    found = MAKERS[name](**arguments)
    if isinstance(found, fs.Algorithm):
        fs.train(MODEL, "cross_entropy", CLIENTS, found, rounds=1, local_steps=1)


TARGETS = [Target("arguments: train", calls(), trained, 4), Target("arguments: parts", made(), make, 4)]
