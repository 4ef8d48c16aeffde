"""The table of recipes. Their arguments are those of the parts, so the descriptions come from there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from fedstride.algorithm.compose import Algorithm
from fedstride.core.errors import InvalidInput, nearest

Make = TypeVar("Make", bound=Callable[..., Algorithm])
RECIPES: dict[str, Callable[..., Algorithm]] = {}
SLOTS = ("step", "server", "objective", "gradient", "drift")
OWN = {  # arguments of recipes that no part has under this name
    "fednova.beta": "momentum of the clients; 0 = none.",
    "fedadagrad.betas": "momentum of the server, and a number that is not used.",
    "fedexprox.gamma": "step of the proximal operator; larger values let clients go further from x.",
    "fedsplit.prox": "step s of the proximal operator.",
}
OF_THE_SERVER = {"server_lr": "lr", "server_lr_max": "lr_max"}  # an argument here, and its name in the server rule


def recipe(make: Make) -> Make:
    """Add a recipe to the table under the name of its function, with a docstring that describes its arguments.

    Args:
        make: a function that returns an Algorithm; its docstring is one sentence.

    Raises:
        InvalidInput: the name is taken.

    Example:
        >>> fs.recipes.recipe(fs.recipes.fedavg)
        Traceback (most recent call last):
        fedstride.core.errors.InvalidInput: recipe 'fedavg': the name is taken by another recipe. Rename one of them.
    """
    if make.__name__ in RECIPES:
        raise InvalidInput(f"recipe {make.__name__!r}: the name is taken by another recipe. Rename one of them.")
    RECIPES[make.__name__], make.__doc__ = make, described(make)
    return make


def get(name: str) -> Algorithm:
    """Return the algorithm of a recipe with its default arguments.

    Args:
        name: the name of the recipe.

    Raises:
        InvalidInput: the name is unknown.

    Example:
        >>> fs.recipes.get("fedavg").name
        'fedavg'
    """
    if name not in RECIPES:
        raise InvalidInput(f"algorithm={name!r} is unknown; {nearest(name, RECIPES)}")
    return RECIPES[name]()


def described(make: Callable[..., Algorithm]) -> str:
    """Return the docstring of a recipe: its summary, its arguments, and an example."""
    summary, algorithm = (make.__doc__ or "").strip(), make()
    kinds: list[Any] = [*(type(getattr(algorithm, slot)) for slot in SLOTS), Algorithm]
    parts = [arguments_of(kind) for kind in kinds]
    lines = [summary]
    names = list(inspect.signature(make).parameters)
    if names:
        lines += ["", "Args:"]
    for name in names:
        if name in OF_THE_SERVER:
            text = "of the server: " + parts[1].get(OF_THE_SERVER[name], "the step size.")
        else:
            text = next((part[name] for part in parts if name in part), "") or OWN[f"{make.__name__}.{name}"]
        lines.append(f"    {name}: {text}")
    lines += ["", "Example:", f"    >>> algorithm = fs.recipes.{make.__name__}()"]
    return "\n".join(lines)


def summary(item: Any) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(item) or "").split("\n\n")[0]


@cache  # recipes share most of their parts
def arguments_of(item: Any) -> dict[str, str]:
    """Return the descriptions in the Args section of a docstring, by name."""
    section = (inspect.getdoc(item) or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.finditer(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {match[1]: " ".join(match[2].split()) for match in found}
