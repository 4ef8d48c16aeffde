"""Algorithms written as text or as tables: "fedavg(lr=0.1)", or {"name": "custom", "step": {"part": "Adam"}}."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from fedstride import wire
from fedstride.algorithm import Algorithm, parts, recipes
from fedstride.client import step
from fedstride.core.errors import InvalidInput, nearest

Table = dict[str, Any]
NOTHING = "none"  # stands for None, which TOML cannot express
OTHERS: dict[str, tuple[Any, str]] = {  # argument: module of its parts, and the method that identifies them
    "schedule": (step, "__call__"),
    "up": (wire, "compress"),
    "down": (wire, "compress"),
    "aggregate": (wire, "start"),
}


def algorithm_of(text: str) -> Algorithm:
    """Return the algorithm for NAME or NAME(key=value,...)."""
    return from_table(plain(parse_algorithm(text)), "algorithm")


def from_table(table: Mapping[str, Any], at: str = "algorithm.name") -> Algorithm:
    """Return the algorithm for the name of a recipe and its arguments, or for "custom" and its parts.

    A part is a table with its name: step = {part = "Adam", lr = 0.01}. `at` is the setting that errors name.
    """
    arguments = dict(table)
    name = arguments.pop("name")
    makers = {**recipes.RECIPES, "custom": Algorithm}
    if not isinstance(name, str) or name not in makers:
        raise InvalidInput(f"{at}={name!r} is unknown; {nearest(str(name), makers)}")
    made: Algorithm = call(makers[name], name, "algorithm", arguments)
    return made


def call(make: Callable[..., Any], name: str, at: str, arguments: Mapping[str, Any]) -> Any:
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
    return call(known[part], part, at, {k: v for k, v in value.items() if k != "part"})


def _parts(slot: str) -> dict[str, Any]:
    if slot not in OTHERS:
        return dict(parts.PARTS.get(slot, {}))
    module, method = OTHERS[slot]
    every = {name: getattr(module, name) for name in module.__all__}
    return {name: part for name, part in every.items() if is_dataclass(part) and method in dir(part)}


PARTS = {name: part for slot in (*parts.PARTS, *OTHERS) for name, part in _parts(slot).items()}


def parse_algorithm(text: str) -> Table:
    """Parse NAME or NAME(key=value,...) to a table; values as in parse_setting."""
    name, opened, rest = text.strip().partition("(")
    arguments = split(rest.removesuffix(")"))
    if (opened and not rest.endswith(")")) or not all("=" in argument for argument in arguments):
        raise InvalidInput(
            f"algorithm={text!r} is invalid: expected a name, or arguments by name, as in fedavg(lr=0.1)."
        )
    return {"name": name.strip(), **dict(map(parse_setting, arguments))}


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse key=value; the value is read as TOML if possible, else as text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(f"--set {text!r} is invalid: expected key=value, as in training.rounds=20.")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return key.strip(), value


def split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return [part.strip() for part in found if part.strip()]


def plain(value: Any) -> Any:
    """Replace "none" by None, in tables too."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return None if value == NOTHING else value


def text_of(algorithm: Algorithm) -> str:
    """Return an algorithm as text, for which algorithm_of() returns the same parts.

    Raises:
        InvalidInput: if a part is not one that a text can name, such as one with a function among its settings.
    """
    parts_of = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if f.name not in ("name", "privacy")}
    text = f"custom({', '.join(f'{name}={_toml(value)}' for name, value in parts_of.items())})"
    try:
        same = algorithm_of(text) == replace(algorithm, name="custom", privacy=None)
    except InvalidInput:
        same = False
    if not same:
        raise InvalidInput(
            f"algorithm={algorithm!r} cannot be sent to the clients: one of its parts is not part of fedstride, or has a setting "
            "that is neither a number nor a text. Use a recipe, or parts that `fedstride algorithms` lists."
        )
    return text


def _toml(value: Any) -> str:
    """Return a value of a setting as TOML, None as a text."""
    if is_dataclass(value) and not isinstance(value, type):
        settings = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        inside = [f'part = "{type(value).__name__}"', *(f"{name} = {_toml(v)}" for name, v in settings.items())]
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f'"{NOTHING}"' if value is None else repr(value) if isinstance(value, int | float) else json.dumps(str(value))
    )
