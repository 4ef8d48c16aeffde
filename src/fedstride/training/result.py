"""The result of a run: model, training iterate and history; saved as safetensors and JSON lines, never pickle."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedstride.algorithm import Algorithm, spelled_out
from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.core.files import read_tensors, replace_file, write_tensors
from fedstride.core.losses import Loss
from fedstride.core.model import digest, frozen_of
from fedstride.core.normalise import Normalised
from fedstride.core.rows import Vec
from fedstride.data.describe import counted
from fedstride.data.federation import Federation, Lazy
from fedstride.training.checkpoint import files
from fedstride.training.history import History, Row, is_private, own_columns
from fedstride.training.personal import PersonalModels, load_personal
from fedstride.training.stop import larger_is_better

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Best:
    """The best round of a run with stop=fs.EarlyStopping(...)."""

    round: int
    metrics: Row  # the round's row of the history
    model: nn.Module


@dataclass(frozen=True, eq=False)
class RunSource:
    """The data and arguments of a run, for run.report() and fs.personal_report(). It is never saved or pickled."""

    clients: Federation | Lazy
    loss: Loss
    arguments: dict[str, Any] = field(default_factory=dict)  # of fs.train()


@dataclass(repr=False)
class Run:
    """The result of a run, also of one that diverged or was interrupted.

    Args:
        model: the trained model, the algorithm's read-out; with stop=, the best one if that was asked for.
        x: the last training iterate, a flat vector in the order of the model's parameters.
        history: one row per round.
        algorithm: the algorithm; None for a loaded run.
        engine: how gradients were computed, and by how many workers.
        facts: facts about the data: see app/diagnose/facts.py.
        ended: "finished", "stopped" by early stopping or a callback, "interrupted" by Ctrl-C, "diverged" or "given up".
        best: the best round, for stop=fs.EarlyStopping(...); of a loaded run only with keep="best", whose model is saved.
        settings: the settings of the run, as text.
        source: the data and the arguments of fs.train(); None for a loaded run.
        personal: each client's own model by number or name, for personal=, Ditto and buffers="local"; None without them,
            and where they are out of reach: on Flower, and in followers of torchrun.

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
    settings: dict[str, Any] = field(default_factory=dict)
    source: RunSource | None = field(default=None, compare=False)
    personal: PersonalModels | None = None

    def __repr__(self) -> str:
        return run_text(self)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the data from pickles."""
        return {**self.__dict__, "source": None}

    def save(self, folder: str | Path, frozen: bool = False) -> Path:
        """Write model, training iterate, history and settings to a folder; the clients' own models too, if any.

        Args:
            folder: the folder, created if missing.
            frozen: True = also write the parameters that are not trained, such as the pretrained ones below a LoRA. By
                default only their hash is written, and fs.load(folder, model) takes them from the model.

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
        left_out = {} if frozen else self._never_changed()
        weights = {name: v for name, v in weights.items() if name not in left_out}
        about: dict[str, Any] = {"names": list(weights), "trainable": trainable}
        if left_out:
            about["frozen"] = {"names": list(left_out), "sha256": digest(left_out)}
        if isinstance(self.model, Normalised):
            about["normalised"] = True
        write_tensors(folder / "model.safetensors", weights, about)
        algorithm = spelled_out(self.algorithm)
        meta: dict[str, Any] = {"algorithm": algorithm, "engine": self.engine, "facts": self.facts, "ended": self.ended}
        if self.best is not None and self.best.model is self.model:
            meta["best"] = self.best.round
        private = is_private(self.history)  # the counts are the operator's
        write_tensors(folder / "run.safetensors", {"x": self.x}, meta, private)
        replace_file(folder / "history.jsonl", self.history.text(), private)
        if self.settings:
            replace_file(folder / SETTINGS, json.dumps(self.settings, indent=2) + "\n", private)
        if self.personal is not None:
            self.personal.save(folder, private)
        return folder

    def report(self, folder: str | Path) -> Path:
        """Save the run in a folder, with the files and pages that `fedstride run` and `fedstride diagnose` write.

        Args:
            folder: a new folder, or that of an earlier report.

        Returns:
            The path of report.html. Beside it are the files of save(), environment.json, clients.json if the data is at
            hand, and diagnosis.html.

        Raises:
            InvalidInput: the folder is that of `fedstride run` or of a comparison, or no round is finished.

        Example:
            >>> run = fs.train(nn.Linear(3, 1), "mse", clients, rounds=10)
            >>> page = run.report("runs/first")
        """
        page: Path = import_module("fedstride.app.results").write_run(self, Path(folder))  # a later layer
        return page

    def _never_changed(self) -> dict[str, Tensor]:
        """Return the frozen parameters that are still those of the model that was given to fs.train()."""
        changed = self.facts.get("frozen", {}).get("changed", ())
        inside = "model." if isinstance(self.model, Normalised) else ""
        return {name: v for name, v in frozen_of(self.model).items() if name.removeprefix(inside) not in changed}


def run_text(run: Run) -> str:
    """Describe a run in a few lines."""
    rows, settings = list(run.history), run.settings
    name = run.algorithm.name if run.algorithm is not None else settings.get("name", "an algorithm")
    planned = settings.get("training", {}).get("rounds", len(rows))
    of = counted(len(rows), "round") if planned == len(rows) else f"{len(rows)} of {planned} rounds"
    seconds = sum(row.get("seconds") or 0.0 for row in rows)
    lines = [f"Run of {name}: {run.ended} after {of}, {seconds:.3g} s"]
    if rows:
        lines.append(f"last  {_scores_text(rows, len(rows) - 1)}")
        best = _best_round(run, rows)
        lines += [] if best is None else [f"best  {_scores_text(rows, best)}"]
    lines.append('see   run.model, run.history.frame(), run.save("folder"), run.report("folder")')
    return "\n  ".join(lines)


def _scores_text(rows: list[Row], i: int) -> str:
    row = rows[i]
    names = ["train_loss", "test_loss", "test_accuracy", *own_columns(rows)]
    known = {name: row[name] for name in names if isinstance(row.get(name), int | float)}
    scores = ", ".join(f"{name} {value:.4g}" for name, value in known.items())
    return f"round {row.get('round', i + 1)}: {scores or 'no scores'}"


def _best_round(run: Run, rows: list[Row]) -> int | None:
    """Return the index of the best round, by the metric of early stopping or else by the test scores."""
    if run.best is not None:
        return run.best.round - 1
    for name in ("test_accuracy", "test_loss"):
        known = {i: v for i, row in enumerate(rows) if (v := row.get(name)) is not None and not math.isnan(v)}
        if known:
            return max(known, key=lambda i: known[i] if larger_is_better(name) else -known[i])
    return None


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
            Frozen parameters are taken from this model, unless run.save(folder, frozen=True) wrote them; their hash is
            compared with that of the run's.

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
            saved = os.path.isdir(folder) and files(folder)
            hint = " It has checkpoints: call fs.train() again with this folder, and save the run." if saved else ""
            raise InvalidInput(
                f"load: {folder} does not contain {name}; expected a folder written by run.save().{hint}"
            )
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
            weights = {**_frozen(own, meta, folder), **weights}
        own.load_state_dict(weights)
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise InvalidInput(f"load: the weights in {folder} do not fit the model: {error}") from error
    tensors, about = read_tensors(folder / "run.safetensors")
    x, engine, facts = tensors.get("x"), about.get("engine", {}), about.get("facts", {})
    described = isinstance(engine, dict) and isinstance(facts, dict)
    if x is None or x.dim() != 1 or not x.is_floating_point() or not described:
        raise Corrupt(f"load: {folder / 'run.safetensors'} does not contain the model of a run.")
    own, history, best = own.eval(), History(_rows(folder / "history.jsonl")), about.get("best")
    return Run(
        own,
        x,
        history,
        engine=engine,
        facts=facts,
        ended=str(about.get("ended", "finished")),
        best=Best(best, history[best - 1], own) if isinstance(best, int) and 1 <= best <= len(history) else None,
        settings=_settings(folder / SETTINGS),
        personal=load_personal(folder, own),
    )


def _frozen(model: nn.Module, meta: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    """Return the model's own frozen parameters that the file leaves out, if they are those of the run."""
    told = meta.get("frozen", {"names": []})
    if not isinstance(told, dict) or not isinstance(told.get("names"), list):
        raise Corrupt(f"load: {folder / 'model.safetensors'} does not say which parameters were frozen.")
    own = model.state_dict()
    found = {str(name): own[name] for name in told["names"]}
    if found and digest(found) != told.get("sha256"):
        raise InvalidInput(
            f"load: the frozen parameters of the model are not those that the run in {folder} was trained on. Give the model "
            "as it was given to fs.train(), with the same pretrained weights in the same type."
        )
    return found


def _rows(path: Path) -> list[Row]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise Corrupt(f"load: {path} is not readable ({error}).") from error
    if not all(isinstance(row, dict) for row in rows):
        raise Corrupt(f"load: {path} is not a history; expected one JSON object per line.")
    return rows


def _settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run; empty if there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise Corrupt(f"load: {path} is not readable ({error}).") from error
    if not isinstance(found, dict):
        raise Corrupt(f"load: {path} is not a JSON object; expected the settings of a run.")
    return found
