"""Discovery of parts: a file in one of the folders below is enough to add one.

A part is a dataclass that declares the slot of its folder. Discovery makes it an attribute of its package and of
`fedstride`, and available in TOML files; a part that declares a recipe is also added to the table of recipes.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

from fedstride import server
from fedstride.client import drift, gradient, objective, step
from fedstride.core.errors import InvalidInput

FOLDERS: dict[str, ModuleType] = {
    "step": step,
    "server": server,
    "objective": objective,
    "gradient": gradient,
    "drift": drift,
}


def _in(folder: ModuleType, slot: str) -> dict[str, type]:
    found = {}
    for file in sorted(file.name for file in pkgutil.iter_modules(folder.__path__)):
        module = importlib.import_module(f"{folder.__name__}.{file}")
        own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        found.update({c.__name__: c for c in own if is_dataclass(c) and vars(c).get("slot") == slot})
    return found


def _discover() -> dict[str, dict[str, type]]:
    found = {slot: _in(folder, slot) for slot, folder in FOLDERS.items()}
    taken: dict[str, type] = {}
    for slot, parts in found.items():
        for name, part in parts.items():
            if taken.setdefault(name, part) is not part:
                raise InvalidInput(
                    f"{part.__module__}: the name {name} is taken by {taken[name].__module__}. Rename one of them."
                )
            setattr(FOLDERS[slot], name, part)
    return found


PARTS = _discover()  # slot -> name -> class


def export(names: dict[str, Any]) -> None:
    """Add the parts to the public names, which list the built-in ones already, for type checkers."""
    for name, part in ((name, part) for parts in PARTS.values() for name, part in parts.items()):
        if names.setdefault(name, part) is not part:
            raise InvalidInput(f"{part.__module__}: the name {name} is taken by fedstride.{name}. Rename the part.")


def halves(name: str) -> list[str]:
    """Return the parts that are half of this algorithm, as arguments of Algorithm."""
    found = [(slot, part) for slot, parts in PARTS.items() for part in parts.values()]
    return [f"{slot}={part.__name__}()" for slot, part in found if vars(part).get("half_of") == name]
