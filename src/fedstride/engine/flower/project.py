"""A Flower project: the user's functions that build the model, load a node's data and load the test set."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flwr
import torch
from torch import Tensor, nn

import fedstride
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.text import algorithm_of, call, parse_setting, plain, split
from fedstride.app.settings import REQUIRED, SETTINGS
from fedstride.core.errors import InvalidInput, nearest
from fedstride.core.losses import Loss
from fedstride.core.model import digest

Settings = dict[str, Any]
NEAR = 0.8  # similarity of a misspelt name
# A run's configuration holds single values, not tables, and every machine has a device of its own.
KNOWN = {name: s for name, s in SETTINGS.items() if s.dataclass is None and name != "device"}
TABLES: dict[str, type] = {  # written as text, such as guard="norm=10, spread=50"
    **{name: s.dataclass for name, s in SETTINGS.items() if s.dataclass is not None},
    "privacy": Privacy,
}
OTHERS = ("algorithm", "clients", "out", "deadline", "quorum", "secure", "bound", "monitor", "audit")


@dataclass(frozen=True)
class Project:
    """Model, loss and data of a federation; the same code on the server and on all nodes.

    Args:
        model: a function settings -> nn.Module. Settings are the run's configuration.
        loss: as in fs.train().
        data: a function (settings, node) -> (inputs, targets) or a torch Dataset. It runs on the node; `node` is the
            node's own configuration.
        test: a function settings -> (inputs, targets). It runs on the server.
    """

    model: Callable[[Settings], nn.Module]
    loss: str | Loss
    data: Callable[[Settings, Settings], Any]
    test: Callable[[Settings], Any] | None = None

    def build(self, settings: Settings) -> nn.Module:
        """Build the model with initial weights from the run's seed: frozen parameters must be the same everywhere."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(settings.get("seed", 0)))
            model = self.model(settings)
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"model: the project makes a {type(model).__name__}; expected a torch.nn.Module.")
        return model


def arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of fs.train() among the settings, with defaults; dashes in names count as underscores."""
    given = plain({key.replace("-", "_"): value for key, value in settings.items()})
    algorithm = given.get("algorithm", "auto")
    if not isinstance(algorithm, str):
        raise InvalidInput(f'algorithm={algorithm!r} is invalid: expected a text, as in "fedexp(lr=0.1)".')
    check_names(given)
    tables = {name: _made(name, given[name]) for name in TABLES if given.get(name) is not None}
    made, privacy = algorithm_of(algorithm), tables.pop("privacy", None)
    found: dict[str, Any] = {"algorithm": made if privacy is None else replace(made, privacy=privacy), **tables}
    for name, setting in KNOWN.items():
        if name not in given and setting.default is REQUIRED:
            raise InvalidInput(f"{name} is missing from the run's configuration: it has no default.")
        found[name] = setting.checked(_listed(name, given[name])) if name in given else setting.default
    return found


def _listed(name: str, value: Any) -> Any:
    """Return a list that is written as text, such as weights="[120, 75, 90]", because Flower's settings are not lists."""
    return parse_setting(f"{name}={value}")[1] if isinstance(value, str) and value.startswith("[") else value


def check_names(given: Mapping[str, Any]) -> None:
    """Refuse a name that is nearly that of a setting. Others may be settings that the project's functions read.

    Raises:
        InvalidInput: if a name is probably misspelt.
    """
    known = {*KNOWN, *TABLES, *OTHERS}
    for name in given:
        table, dot, key = name.partition(".")
        if dot and table in TABLES:
            raise InvalidInput(f'{name} is not a setting; write {table}="{key}=..." as one text.')
        if name not in known and difflib.get_close_matches(name.lower(), known, cutoff=NEAR):
            raise InvalidInput(f"{name} is not a setting; {nearest(name, known)} Rename a setting of your own.")


def _made(name: str, value: Any) -> Any:
    """Return the value of a setting such as guard="norm=10, spread=50"."""
    if not isinstance(value, str):
        raise InvalidInput(f'{name}={value!r} is invalid: expected a text, as in {name}="key=value, key=value".')
    return call(TABLES[name], TABLES[name].__name__, name, plain(dict(map(parse_setting, split(value)))))


def identity(model: nn.Module, moving: tuple[str, ...]) -> dict[str, str]:
    """Return what server and nodes must have in common. Trainable parameters and moving buffers come from the server."""
    named = list(model.named_parameters())
    fixed: dict[str, Tensor] = {name: p for name, p in named if not p.requires_grad}
    fixed |= {name: b for name, b in model.named_buffers() if name not in moving}
    return {
        "fedstride": fedstride.__version__,
        "flwr": flwr.__version__,
        "parameters": json.dumps([[k, list(p.shape), str(p.dtype), p.requires_grad] for k, p in named]),
        "frozen parameters and buffers": digest(fixed),
    }
