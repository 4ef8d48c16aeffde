"""Configuration of a run: task presets, a TOML file and single settings. Every key is checked and described."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedstride.algorithm import Algorithm
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.text import NOTHING, call, from_table
from fedstride.app.functions import is_function
from fedstride.app.presets import TASKS, check_exists, name_of, own_preset
from fedstride.app.settings import SETTINGS, Table, reason
from fedstride.core.errors import InvalidInput, nearest
from fedstride.core.normalise import Normalise
from fedstride.data.sources import SOURCES, is_raw_table
from fedstride.engine import Engine, torchrun
from fedstride.engine.faults import Faulty
from fedstride.training.checkpoint import Checkpoints


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Data(Part):
    source: str = Field(
        "digits", description="name from `fedstride data list`, path of a file or folder, or module:function"
    )
    folder: str | None = Field(None, description="folder with the raw files, searched in addition to the cache")
    options: dict[str, Any] = Field({}, description="reader options, such as label and client columns of a CSV file")
    partition: Literal["iid", "dirichlet", "dirichlet_split", "pathological", "shards", "quantity", "natural"] = Field(
        "shards", description="assignment of samples to clients"
    )
    clients: Annotated[int, Ge(1)] | None = Field(
        50, description="number of clients (natural: upper limit; none: all of them)"
    )
    samples: int | None = Field(None, ge=1, description="samples per client; none: all samples divided by clients")
    alpha: float = Field(0.1, gt=0, description="concentration of the Dirichlet partitions; smaller is more unequal")
    classes: int = Field(2, ge=1, description="classes (pathological) or shards (shards) per client")
    normalise: bool = Field(
        False, description="scale inputs to mean 0 and deviation 1 per channel, by the training set"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the partition")


class Model(Part):
    name: str = Field(
        "mlp",
        description="softmax, mlp, small_cnn, mcmahan_cnn, reddi_cnn, resnet18, resnet50, char_lstm, char_mlp, transformer, or module:function",
    )
    options: dict[str, Any] = Field({}, description="model options, such as hidden = 100 or dropout = 0")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the initial weights")
    loss: str | None = Field(None, description="name of the loss; none: cross_entropy for classes, else mse")


LARGEST = 2**20  # characters of a file of settings
MOST_DOTS = 200  # in a line of it
USUAL = {"rounds": 60, "cohort": 10, "batch_size": 10}  # defaults here that fs.train() does not have
MORE: dict[str, tuple[Any, Any]] = {  # settings here that are not arguments of fs.train(), or have another meaning
    "normalise": (
        bool | Literal["scale"] | None,
        Field(
            None,
            description="true: scale inputs to mean 0 and deviation 1 over all clients; scale: divide them by one number; "
            "none: true for raw tables, else as fs.train() decides",
        ),
    ),
    "checkpoints": (Table, Field({}, description="arguments of fs.Checkpoints, such as every = 10 or keep = 3")),
    "privacy": (Table, Field({}, description="arguments of fs.Privacy, such as noise = 1 and clip = 0.5; {}: off")),
    "faults": (Table, Field({}, description="arguments of fs.faults.Faulty, such as dropout = 0.3; {}: off")),
}
if TYPE_CHECKING:
    Training = Any
else:
    Training = create_model(
        "Training",
        __base__=Part,
        **{s.name: (s.kind, Field(USUAL.get(s.name, s.default), description=s.description)) for s in SETTINGS.values()}
        | MORE,
    )


class Config(Part):
    task: str = Field("digits", description="preset that this configuration is based on, or name of your data")
    algorithm: dict[str, Any] = Field(
        {"name": "auto"}, description="name of a recipe and its arguments; or custom and its parts"
    )
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()

    def make_algorithm(self) -> Algorithm:
        """Build the algorithm."""
        made, private = from_table(self.algorithm), self.training.privacy
        return replace(made, privacy=call(Privacy, "Privacy", "training.privacy", private)) if private else made

    @property
    def normalise(self) -> Normalise | None:
        """Argument of fs.train(): as configured, by default True for tables that are not scaled yet."""
        configured: Normalise | None = self.training.normalise
        if configured is not None or is_function(self.data.source):
            return configured
        raw = is_raw_table(self.data.source, self.data.folder, self.data.options)
        return True if raw and not self.data.normalise and not self.training.privacy else None

    def arguments(self, folder: Path | None) -> dict[str, Any]:
        """Return the arguments of fs.train() except model, loss, data and algorithm. `folder` is for checkpoints."""
        t = self.training
        when = call(Checkpoints, "Checkpoints", "training.checkpoints", {**t.checkpoints, "folder": folder or Path()})
        engine: str | Engine = "torchrun" if torchrun.launched() else "auto"
        if t.faults:
            engine = call(Faulty, "Faulty", "training.faults", {"engine": engine, **t.faults})
        return {
            **{name: setting.argument(getattr(t, name)) for name, setting in SETTINGS.items()},
            "normalise": self.normalise,
            "checkpoint": None if folder is None else when,
            "engine": engine,
            "device": torchrun.own_gpu() if t.device == "cuda" and torchrun.launched() else t.device,
        }


def resolve(task: str | None = None, file: Path | None = None, settings: dict[str, Any] | None = None) -> Config:
    """Merge the preset of a task, the file and the single settings (dotted names); later ones take precedence.

    The task is a preset, or the user's own data: a path, hf:NAME or module:function. By default it is that of the file.
    """
    given = read_toml(file) if file is not None else {}
    single = nested(settings or {})
    task, preset = _preset(task, given, single)
    values: dict[str, Any] = {"task": task}
    for layer in (preset, given, single):
        _drop_options_of_another(values, layer)
        _merge(values, layer)
    values["task"] = task
    _check_keys(values, Config)
    if "name" not in values.get("algorithm", {"name": ""}):
        values["algorithm"]["name"] = "auto"
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"][:2]))  # without the member of a union
        raise InvalidInput(f"{key}={first['input']!r} is invalid: {reason(error)}") from error
    config.make_algorithm()
    config.arguments(None)
    return config


def to_toml(config: Config, meanings: bool = False) -> str:
    """Return the configuration as TOML text that `resolve` can read."""
    plain = config.model_dump()
    lines = _lines(Config, {"task": plain["task"]}, meanings)
    lines += ["", "[algorithm]", *(f"{k} = {_toml(v)}" for k, v in plain["algorithm"].items())]
    for name, kind in (("data", Data), ("model", Model), ("training", Training)):
        lines += ["", f"[{name}]", *_lines(kind, plain[name], meanings)]
    return "\n".join(lines) + "\n"


def _lines(kind: type[Part], values: dict[str, Any], meanings: bool) -> list[str]:
    lines = {key: f"{key} = {_toml(value)}" for key, value in values.items()}
    return [f"{line:<32} # {kind.model_fields[key].description}" if meanings else line for key, line in lines.items()]


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(NOTHING if value is None else value)


def read_toml(file: Path) -> dict[str, Any]:
    """Read a file of settings."""
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"--config {file}: the file cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # text that is no TOML or no text, or a number of too many digits
        raise InvalidInput(f"--config {file}: not a valid TOML file: {error}.") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: if it is invalid, or if it could keep the parser busy for hours: that takes a time quadratic in the
            parts of a dotted name.
    """
    if len(text) > LARGEST or any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"expected at most {LARGEST} characters, and {MOST_DOTS} dots in a line")
    return tomllib.loads(text)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names as nested tables."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        _merge(found, value)
    return found


def _preset(task: str | None, *layers: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the task and its preset: a known one, or that of the user's own data."""
    named = task or (str(given) if (given := layers[0].get("task")) is not None else None)
    data: dict[str, Any] = {}
    for layer in layers:
        _merge(data, part if isinstance(part := layer.get("data"), dict) else {})
    source = data.get("source")
    if named in TASKS:
        return named, TASKS[named]
    if isinstance(source, str) and source not in SOURCES:
        return named or name_of(source), own_preset(source, data)
    if named is None:
        return "digits", TASKS["digits"]
    check_exists(named)
    return name_of(named), own_preset(named, data)


def _merge(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _merge({}, value) if isinstance(value, dict) else None if value == NOTHING else value
    return into


def _drop_options_of_another(values: dict[str, Any], layer: dict[str, Any]) -> None:
    """Drop the options of the previous model or algorithm if the layer names another one."""
    for part, usual in (("model", Model().name), ("algorithm", "auto")):
        before, new = values.get(part, {}), layer.get(part, {})
        if not isinstance(new, dict):
            raise InvalidInput(f"{part}={new!r} is invalid: expected a table of settings, as in {part}.name={usual}.")
        if isinstance(before, dict) and new.get("name", before.get("name")) != before.get("name", usual):
            for option in [key for key in before if part == "algorithm" or key == "options"]:
                del before[option]


def _check_keys(values: dict[str, Any], kind: type[Part], at: str = "") -> None:
    for key, value in values.items():
        field = kind.model_fields.get(key)
        if field is None:
            raise InvalidInput(f"{at}{key} is not a setting; {nearest(key, kind.model_fields)}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, Part):
            if not isinstance(value, dict):
                raise InvalidInput(f"{at}{key}={value!r} is invalid: expected a table of settings, as [{key}] in TOML.")
            _check_keys(value, field.annotation, f"{at}{key}.")
