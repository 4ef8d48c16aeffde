"""Settings: the arguments of fs.train() that can be written as text, in TOML files, with --set, and in Flower apps.

The signature and the docstring of fs.train() are their only declaration. An argument becomes a setting if its type has a
part that TOML can express: numbers, texts, lists, and, as a table of its arguments, any dataclass.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedstride.algorithm.registry import arguments_of
from fedstride.algorithm.text import call
from fedstride.core.errors import InvalidInput
from fedstride.training.train import OF_THE_CALLER, train

Table = dict[str, Any]
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    name: str
    kind: Any  # type of its value in TOML
    default: Any
    description: str
    dataclass: type | None = None  # made from the value, which is a table of its arguments

    def checked(self, value: Any) -> Any:
        """Return the value, converted to the setting's type."""
        try:
            return TypeAdapter(self.kind).validate_python(value)
        except ValidationError as error:
            raise InvalidInput(f"{self.name}={value!r} is invalid: {reason(error)}") from error

    def argument(self, value: Any) -> Any:
        """Return the argument of fs.train() for a value."""
        if self.dataclass is None:
            return value
        if not value:
            return None  # an empty table is the default: EarlyStopping() with all of its own would stop a run
        return call(self.dataclass, self.dataclass.__name__, f"training.{self.name}", value)


def reason(error: ValidationError) -> str:
    """Return the first error as the end of a sentence, with the texts that the same setting may have instead."""
    first, *others = error.errors()
    texts = [
        e["ctx"]["expected"] for e in others if e["type"] == "literal_error" and e["loc"][:-1] == first["loc"][:-1]
    ]
    return ", or ".join([first["msg"].lower(), *texts]) + "."


def _settings() -> dict[str, Setting]:
    types, about = get_type_hints(train, include_extras=True), _descriptions(train)
    found = {}
    for name, parameter in inspect.signature(train).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY or name in OF_THE_CALLER:
            continue
        kinds = _plain(types[name])
        if not set(kinds) - {None, NoneType}:
            continue
        made = next((t for t in _members(types[name]) if is_dataclass(t)), None)
        default = {} if made else parameter.default
        kind = Union[tuple(kinds)] if made is None else Table  # noqa: UP007 (of a tuple)
        found[name] = Setting(name, kind, default, about.get(name, ""), made)  # type: ignore[arg-type]
    return found


def _members(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _plain(kind: Any) -> list[Any]:
    """Return the members of a type that TOML can express."""
    found: list[Any] = []
    for member in _members(kind):
        origin = get_origin(member)
        if (
            member in (int, float, bool, str, None, NoneType)
            or origin is Literal
            or is_dataclass(member)
            or (origin is Annotated and _plain(get_args(member)[0]))
        ):
            found.append(member)
        elif origin is Sequence and (items := _plain(get_args(member)[0])):
            found.append(list[Union[tuple(items)]])  # type: ignore[misc]  # noqa: UP007
    return found


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence about each argument, with values spelled as in TOML."""
    found = {}
    for name, text in arguments_of(function).items():
        sentence = re.split(r"\.(?: |$)", text)[0]
        found[name] = re.sub(r"\b(None|True|False)\b", lambda word: word[0].lower(), sentence)
    return found


SETTINGS: Mapping[str, Setting] = _settings()
