"""What a user brings: functions that make a model, the data of a node and the test set from the settings of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fedstride
from fedstride.app.config import NOTHING, algorithm_of
from fedstride.core.errors import InvalidInput
from fedstride.core.losses import Loss
from fedstride.training import validate

Settings = dict[str, Any]
ARGUMENTS = (  # of fs.train; a setting of such a name goes there, with dashes for underscores
    *("algorithm", "rounds", "cohort", "local_steps", "epochs", "batch_size", "weights", "seed", "weight_decay"),
    *("clip_norm", "buffers", "precision", "readout", "evaluate_every", "normalise"),
)


@dataclass(frozen=True)
class Project:
    """The same on the server and on all nodes. settings: the run's configuration; node: the node's own."""

    model: Callable[[Settings], nn.Module]
    loss: str | Loss
    data: Callable[[Settings, Settings], Any]  # (settings, node) -> (inputs, targets), or a Dataset; runs on the node
    test: Callable[[Settings], Any] | None = None  # settings -> (inputs, targets), or None; runs on the server

    def build(self, settings: Settings) -> nn.Module:
        """The model, with the initial weights of the run's seed: what is frozen in it must be the same everywhere."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(settings.get("seed", 0)))
            model = self.model(settings)
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"model: the project makes a {type(model).__name__}; expected a torch.nn.Module.")
        return model


def arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of the settings goes to fs.train."""
    given = {key.replace("-", "_"): None if value == NOTHING else value for key, value in settings.items()}
    known = {"algorithm": "auto", "seed": 0, **{name: given[name] for name in ARGUMENTS if name in given}}
    for name, least in (("rounds", 1), ("seed", 0), ("batch_size", 1)):
        if name != "batch_size" or known.get(name) is not None:
            known[name] = validate.whole(name, known.get(name), least)
    if not isinstance(known["algorithm"], str):
        raise InvalidInput(f'algorithm={known["algorithm"]!r} is not usable; expected a text, as in "fedexp(lr=0.1)".')
    return {**known, "algorithm": algorithm_of(known["algorithm"])}


def identity(model: nn.Module, moving: tuple[str, ...]) -> dict[str, str]:
    """What server and nodes must have in common. Trainable parameters and moving statistics come from the server."""
    named = list(model.named_parameters())
    fixed: dict[str, Tensor] = {name: p for name, p in named if not p.requires_grad}
    fixed |= {name: b for name, b in model.named_buffers() if name not in moving}
    digest = hashlib.sha256()
    for name, v in sorted(fixed.items()):
        digest.update(f"{name} {v.dtype} {list(v.shape)}".encode())
        digest.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return {
        "fedstride": fedstride.__version__,
        "parameters": json.dumps([[k, list(p.shape), str(p.dtype), p.requires_grad] for k, p in named]),
        "frozen parameters and buffers": digest.hexdigest(),
    }
