"""The result of a run: model, training iterate and history; saved as safetensors and JSON lines, never pickle."""

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
    """The result of a run, also of one that diverged or was interrupted.

    Args:
        model: the trained model, the algorithm's read-out; with stop=, the best one if that was asked for.
        x: the last training iterate, a flat vector in the order of the model's parameters.
        history: one row per round.
        algorithm: the algorithm; None for a loaded run.
        engine: how gradients were computed, and by how many workers.
        facts: facts about the data: see app/diagnose/facts.py.
        ended: "finished", "stopped" by early stopping or a callback, or "interrupted" by Ctrl-C.
        best: the best round, for stop=fs.EarlyStopping(...).
        personal: each client's own model by number or name, for personal=, Ditto and buffers="local"; None without them,
            and where they are out of reach: on Flower, and in followers of torchrun.
        arguments: the arguments of fs.train(), for fs.personal_report(); empty for a loaded run.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2)
        >>> run.model(inputs).shape
        torch.Size([8, 3])
        >>> losses = run.history["train_loss"]
    """

    model: nn.Module
    x: Vec
    history: History
    algorithm: Algorithm | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    ended: str = "finished"
    best: Best | None = None
    personal: PersonalModels | None = None
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)

    def save(self, folder: str | Path) -> Path:
        """Write model.safetensors, run.safetensors and history.jsonl to a folder; the clients' own models too, if any.

        Args:
            folder: the folder, created if missing.

        Returns:
            The folder.

        Raises:
            Unsaved: if a file cannot be written.

        Example:
            >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2)
            >>> folder = run.save("result")
        """
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
    """The weights of a saved model, without its code; fs.load(folder, model) returns a model that computes."""

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
        raise InvalidInput("this model has weights but no code; load the run with fs.load(folder, model) to compute.")


def load(folder: str | Path, model: nn.Module | None = None) -> Run:
    """Load a saved run. Files contain no code, so none is executed.

    Args:
        folder: a folder written by run.save() or `fedstride run`.
        model: a model of the trained kind; the weights are loaded into a copy of it. None: run.model has weights only.
            After normalise=True, pass the model that was trained; the result takes raw inputs, as run.model did.

    Returns:
        The run, without its algorithm.

    Raises:
        InvalidInput: if the folder does not contain a run, or if the weights do not fit the model.
        Corrupt: if a file is damaged.

    Example:
        >>> folder = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2).save("result")
        >>> run = fs.load(folder, nn.Linear(4, 3))
        >>> len(run.history)
        2
    """
    if not isinstance(folder, str | Path):
        raise InvalidInput(f"load: folder={folder!r} is invalid: expected the folder of a run.")
    folder = Path(folder)
    for name in ("model.safetensors", "run.safetensors", "history.jsonl"):
        if not os.path.isfile(folder / name):  # also False for invalid file names
            raise InvalidInput(f"load: {folder} does not contain {name}; expected a folder written by run.save().")
    found, meta = read_tensors(folder / "model.safetensors")
    names, trainable = meta.get("names"), meta.get("trainable")
    if not isinstance(names, list) or not isinstance(trainable, list) or sorted(map(str, names)) != sorted(found):
        raise Corrupt(f"load: {folder / 'model.safetensors'} does not describe its weights.")
    weights = {name: found[name] for name in names}
    scale = weights.get("scale") if meta.get("normalised") else None
    if meta.get("normalised") and (scale is None or scale.dim() != 1):
        raise Corrupt(f"load: {folder / 'model.safetensors'} does not contain the scaling of the inputs.")
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
        raise Corrupt(f"load: {folder / 'run.safetensors'} does not contain the model of a run.")
    ended = str(about.get("ended", "finished"))
    own, history = own.eval(), History(_rows(folder / "history.jsonl"))
    return Run(own, x, history, engine=engine, facts=facts, ended=ended, personal=load_personal(folder, own))


def _rows(path: Path) -> list[Row]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise Corrupt(f"load: {path} is not readable ({error}).") from error
    if not all(isinstance(row, dict) for row in rows):
        raise Corrupt(f"load: {path} is not a history; expected one JSON object per line.")
    return rows
