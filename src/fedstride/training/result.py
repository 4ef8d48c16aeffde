"""What a run leaves: model, training iterate and history; on disk as safetensors and JSON lines, never pickle."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.core.files import read_tensors, replace_file, write_tensors
from fedstride.core.normalise import Normalised
from fedstride.core.rows import Vec
from fedstride.training.history import History, Row
from fedstride.training.personal import PersonalModels, load_personal


@dataclass(frozen=True)
class Best:
    """The best round of a run with stop=fs.EarlyStopping(...)."""

    round: int
    metrics: Row  # the round's row of the history
    model: nn.Module


@dataclass
class Run:
    """A finished run, or the part of it that an interruption or a divergence left."""

    model: nn.Module
    x: Vec
    history: History
    algorithm: Algorithm | None = None
    engine: dict[str, Any] = field(default_factory=dict)  # how gradients were computed, and by how many workers
    facts: dict[str, Any] = field(default_factory=dict)  # of the data: see app/diagnose/facts.py
    ended: str = "finished"  # "stopped" by early stopping or a callback, or "interrupted" by Ctrl-C
    best: Best | None = None  # for stop=
    personal: PersonalModels | None = None  # the clients' own models, for personal=, Ditto and buffers="local"
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)  # of fs.train()

    def save(self, folder: str | Path) -> Path:
        """Write model.safetensors, run.safetensors and history.jsonl into a folder, and personal.safetensors if there is one."""
        folder = Path(folder)
        weights = self.model.state_dict()
        trainable = [name for name, p in self.model.named_parameters() if p.requires_grad]
        about: dict[str, Any] = {"names": list(weights), "trainable": trainable}
        if isinstance(self.model, Normalised):
            about["normalised"] = True
        write_tensors(folder / "model.safetensors", weights, about)
        meta = {"algorithm": repr(self.algorithm), "engine": self.engine, "facts": self.facts, "ended": self.ended}
        write_tensors(folder / "run.safetensors", {"x": self.x}, meta)
        replace_file(folder / "history.jsonl", self.history.text())
        if self.personal is not None:
            self.personal.save(folder)
        return folder


class Weights(nn.Module):
    """The weights of a saved model, under their names; fs.load(folder, model) gives one that computes."""

    def __init__(self, tensors: dict[str, Tensor], trainable: Sequence[str]) -> None:
        super().__init__()
        for name, value in tensors.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            if name in trainable:
                owner.register_parameter(last, nn.Parameter(value))
            else:
                owner.register_buffer(last, value)

    def forward(self, *inputs: Any) -> Tensor:
        raise InvalidInput("this model has weights and no code; load the run with fs.load(folder, model) to compute.")


def load(folder: str | Path, model: nn.Module | None = None) -> Run:
    """A saved run. Its weights go into a copy of the model, if one is given; a file holds no code, so none is run.

    Of a run with normalise=True give the model that was trained: the result takes raw inputs, as run.model did.
    """
    if not isinstance(folder, str | Path):
        raise InvalidInput(f"load: folder={folder!r} is invalid: expected the folder of a run.")
    folder = Path(folder)
    for name in ("model.safetensors", "run.safetensors", "history.jsonl"):
        if not os.path.isfile(folder / name):  # which is False too for names that no file can have
            raise InvalidInput(f"load: {folder} holds no {name}; expected a folder that run.save() wrote.")
    found, meta = read_tensors(folder / "model.safetensors")
    names, trainable = meta.get("names"), meta.get("trainable")
    if not isinstance(names, list) or not isinstance(trainable, list) or sorted(map(str, names)) != sorted(found):
        raise Corrupt(f"load: {folder / 'model.safetensors'} does not say what its weights are.")
    weights = {name: found[name] for name in names}
    scale = weights.get("scale") if meta.get("normalised") else None
    if meta.get("normalised") and (scale is None or scale.dim() != 1):
        raise Corrupt(f"load: {folder / 'model.safetensors'} does not say how inputs are normalised.")
    try:
        if model is None:
            own: nn.Module = Weights(weights, trainable)
        else:
            own = copy.deepcopy(model) if scale is None else Normalised.around(model, len(scale))
        own.load_state_dict(weights)
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise InvalidInput(f"load: the weights in {folder} do not fit the model: {error}") from error
    tensors, about = read_tensors(folder / "run.safetensors")
    x, engine, facts = tensors.get("x"), about.get("engine", {}), about.get("facts", {})
    described = isinstance(engine, dict) and isinstance(facts, dict)
    if x is None or x.dim() != 1 or not x.is_floating_point() or not described:
        raise Corrupt(f"load: {folder / 'run.safetensors'} holds no model of a run.")
    own = own.eval()
    return Run(
        own,
        x,
        History(_rows(folder / "history.jsonl")),
        engine=engine,
        facts=facts,
        ended=str(about.get("ended", "finished")),
        personal=load_personal(folder, own),
    )


def _rows(path: Path) -> list[Row]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise Corrupt(f"load: {path} is not readable ({error}).") from error
    if not all(isinstance(row, dict) for row in rows):
        raise Corrupt(f"load: {path} is no history; expected one JSON object a line.")
    return rows
