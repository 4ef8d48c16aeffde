"""Configuration of a run: task presets, a TOML file and single settings. Every key is checked and described."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedstride import wire
from fedstride.algorithm import Algorithm, parts, recipes
from fedstride.algorithm.privacy import Privacy
from fedstride.client import step
from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.sources import is_raw_table
from fedstride.engine import Engine, torchrun
from fedstride.engine.faults import Faulty
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.guard import Guard

Options = dict[str, Any]
NOTHING = "none"  # stands for None, which TOML cannot express


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Data(Part):
    source: str = Field("digits", description="name from `fedstride data list`, or path of a file or folder")
    folder: str | None = Field(None, description="folder with the raw files, searched in addition to the cache")
    options: dict[str, Any] = Field({}, description="reader options, such as label and client columns of a CSV file")
    partition: Literal["iid", "dirichlet", "dirichlet_split", "pathological", "shards", "quantity", "natural"] = Field(
        "shards", description="assignment of samples to clients"
    )
    clients: int = Field(50, ge=1, description="number of clients (natural: upper limit)")
    samples: int | None = Field(None, ge=1, description="samples per client; none: all samples divided by clients")
    alpha: float = Field(0.1, gt=0, description="concentration of the Dirichlet partitions; smaller is more unequal")
    classes: int = Field(2, ge=1, description="classes (pathological) or shards (shards) per client")
    normalise: bool = Field(
        False, description="scale inputs to mean 0 and deviation 1 per channel, by the training set"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the partition")


class Model(Part):
    name: str = Field("mlp", description="softmax, mlp, small_cnn, mcmahan_cnn, resnet18, char_lstm or char_mlp")
    options: dict[str, Any] = Field({}, description="model options, such as hidden = 100 or dropout = 0")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the initial weights")


class Training(Part):
    rounds: int = Field(60, ge=1, description="number of communication rounds")
    cohort: int | float | None = Field(10, description="clients per round: a number, a fraction, or none for all")
    local_steps: int | None = Field(None, ge=1, description="local steps per round, instead of epochs")
    epochs: float | None = Field(None, gt=0, description="passes over a client's data per round; default 1")
    batch_size: int | None = Field(10, ge=1, description="samples per step; none: the full batch")
    weights: Literal["uniform", "samples"] = Field("uniform", description="weights of the clients in every mean")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of cohorts, batches and dropout")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty in every local loss")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of a gradient")
    buffers: Literal["average", "local", "frozen"] = Field("average", description="treatment of BatchNorm's statistics")
    device: str | None = Field(None, description="cpu, cuda, ...; none: cpu")
    precision: str | None = Field(None, description="bfloat16: mixed precision; none: float32")
    readout: Literal["server", "last", "average"] | None = Field(
        None, description="iterate that is evaluated and returned; none: the algorithm's default"
    )
    normalise: bool | None = Field(
        None, description="scale inputs to mean 0 and deviation 1 over all clients; none: true for raw tables"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations")
    guard: Options = Field({}, description="arguments of fs.Guard, such as quorum = 0.5 or norm = 10")
    checkpoints: Options = Field({}, description="arguments of fs.Checkpoints, such as every = 10 or keep = 3")
    privacy: Options = Field({}, description="arguments of fs.Privacy, such as noise = 1 and clip = 0.5; {}: off")
    faults: Options = Field({}, description="arguments of fs.faults.Faulty, such as dropout = 0.3; {}: off")


class Config(Part):
    task: str = Field("digits", description="preset that this configuration is based on")
    algorithm: dict[str, Any] = Field(
        {"name": "auto"}, description="name of a recipe and its arguments; or custom and its parts"
    )
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()

    def make_algorithm(self) -> Algorithm:
        """Build the algorithm. A part is given as a table with its name: step = {part = "Adam", lr = 0.01}."""
        made, private = _algorithm(self.algorithm), self.training.privacy
        return replace(made, privacy=_called(Privacy, "Privacy", "training.privacy", private)) if private else made

    @property
    def normalise(self) -> bool:
        """Whether fs.train() normalises inputs: as configured, by default for tables that are not scaled yet."""
        if self.training.normalise is not None:
            return self.training.normalise
        raw = is_raw_table(self.data.source, self.data.folder, self.data.options)
        return raw and not self.data.normalise and not self.training.privacy

    def arguments(self, folder: Path | None) -> dict[str, Any]:
        """Return the arguments of fs.train() except model, loss, data and algorithm. `folder` is for checkpoints."""
        t = self.training
        when = _called(
            Checkpoints, "Checkpoints", "training.checkpoints", {**t.checkpoints, "folder": folder or Path()}
        )
        engine: str | Engine = "torchrun" if torchrun.launched() else "auto"
        if t.faults:
            engine = _called(Faulty, "Faulty", "training.faults", {"engine": engine, **t.faults})
        return {
            **t.model_dump(exclude={"guard", "checkpoints", "privacy", "faults"}),
            "normalise": self.normalise,
            "guard": _called(Guard, "Guard", "training.guard", t.guard),
            "checkpoint": None if folder is None else when,
            "engine": engine,
            "device": torchrun.own_gpu() if t.device == "cuda" and torchrun.launched() else t.device,
        }


OTHERS: dict[str, tuple[Any, str]] = {  # argument: module of its parts, and the method that identifies them
    "schedule": (step, "__call__"),
    "up": (wire, "compress"),
    "down": (wire, "compress"),
    "aggregate": (wire, "combine"),
}


def _parts(slot: str) -> dict[str, Any]:
    if slot not in OTHERS:
        return dict(parts.PARTS.get(slot, {}))
    module, method = OTHERS[slot]
    every = {name: getattr(module, name) for name in module.__all__}
    return {name: part for name, part in every.items() if is_dataclass(part) and method in dir(part)}


PARTS = {name: part for slot in (*parts.PARTS, *OTHERS) for name, part in _parts(slot).items()}


def _algorithm(settings: Options) -> Algorithm:
    arguments = dict(settings)
    name = arguments.pop("name")
    makers = {**recipes.RECIPES, "custom": Algorithm}
    if not isinstance(name, str) or name not in makers:
        raise InvalidInput(f"algorithm.name={name!r} is unknown; {nearest(str(name), makers)}")
    made: Algorithm = _called(makers[name], name, "algorithm", arguments)
    return made


def _called(make: Callable[..., Any], name: str, at: str, arguments: dict[str, Any]) -> Any:
    """Call make(**arguments) with tables converted to parts, after checking the arguments against its signature."""
    known = inspect.signature(make).parameters
    for key in arguments:
        if key not in known:
            raise InvalidInput(
                f"{at}.{key} is not an argument of {name}; {nearest(key, known)}"
                if known
                else f"{at}.{key} is not an argument of {name}, which takes none."
            )
    missing = [key for key, p in known.items() if p.default is p.empty and key not in arguments]
    if missing:
        raise InvalidInput(f"{at}.{missing[0]} is missing; {name} requires it.")
    return make(**{key: _value(value, key, f"{at}.{key}") for key, value in arguments.items()})


def _value(value: Any, slot: str, at: str) -> Any:
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    known, part = _parts(slot), value.get("part")
    if not isinstance(part, str) or part not in known:
        known_ones = nearest(str(part), known) if known else "this argument takes no part."
        raise InvalidInput(f"{at}={value!r} does not name a valid part; {known_ones}")
    return _called(known[part], part, at, {k: v for k, v in value.items() if k != "part"})


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
        "training": {"batch_size": 20, "rounds": 100},
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
        "training": {"batch_size": 50, "rounds": 50, "local_steps": 20},
    },
}


def resolve(task: str = "digits", file: Path | None = None, settings: dict[str, Any] | None = None) -> Config:
    """Merge the preset of a task, the file and the single settings (dotted names); later ones take precedence."""
    given = _read(file) if file is not None else {}
    task = str(given.get("task", task)) if task == "digits" else task
    if task not in TASKS:
        raise InvalidInput(f"task={task!r} is unknown; {nearest(task, TASKS)}")
    values: dict[str, Any] = {"task": task}
    single: dict[str, Any] = {}
    for key, value in (settings or {}).items():
        _merge(single, _nested(key, value))
    for layer in (TASKS[task], given, single):
        _drop_what_belongs_to_another(values, layer)
        _merge(values, layer)
    values["task"] = task
    _check_keys(values, Config)
    if "name" not in values.get("algorithm", {"name": ""}):
        values["algorithm"]["name"] = "auto"
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{key}={first['input']!r} is invalid: {first['msg'].lower()}.") from error
    config.make_algorithm()
    config.arguments(None)
    return config


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse key=value; the value is read as TOML if possible, else as text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(f"--set {text!r} is invalid: expected key=value, as in training.rounds=20.")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return key.strip(), value


def parse_algorithm(text: str) -> Options:
    """Parse NAME or NAME(key=value,...) to settings; values as in parse_setting."""
    name, _, arguments = text.partition("(")
    return {"name": name.strip(), **dict(map(parse_setting, split(arguments.rstrip().removesuffix(")"))))}


def algorithm_of(text: str) -> Algorithm:
    """Return the algorithm for NAME or NAME(key=value,...)."""
    return _algorithm(_merge({}, parse_algorithm(text)))


def split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


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


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"--config {file}: the file cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"--config {file}: not a valid TOML file: {error}.") from error


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _merge(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _merge({}, value) if isinstance(value, dict) else None if value == NOTHING else value
    return into


def _drop_what_belongs_to_another(values: dict[str, Any], layer: dict[str, Any]) -> None:
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
