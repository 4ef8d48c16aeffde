"""Functions of the user, named as module:function on the command line and in TOML files."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstride.core.errors import FedstrideError, InvalidInput

NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
HUGGING_FACE = "hf:"


def is_function(text: str) -> bool:
    """Whether a text names a function."""
    return NAMED.fullmatch(text) is not None and not text.startswith(HUGGING_FACE)


def function_of(option: str, path: str, returns: str) -> Callable[..., Any]:
    """Return the function for module:function; the module may be in the current folder.

    Args:
        option: what the user set, for error messages.
        path: module:function.
        returns: what the function is expected to return, for error messages.
    """
    if not is_function(path):
        raise InvalidInput(f"{option} {path!r} is invalid: expected module:function, as in mine:make.")
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InvalidInput(f"{option} {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(make):
        raise InvalidInput(
            f"{option} {path!r} is {make!r}, not a function; expected a function that returns {returns}."
        )
    found: Callable[..., Any] = make
    return found


def called(option: str, path: str, returns: str, *arguments: Any, **named: Any) -> Any:
    """Return what the function for module:function returns."""
    make = function_of(option, path, returns)
    try:
        return make(*arguments, **named)
    except FedstrideError:
        raise
    except Exception as error:
        raise InvalidInput(f"{option} {path!r} fails when called: {type(error).__name__}: {error}") from error
