"""The API reference: an entry for every public name, with the docstring that it must have."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import fedstride as fs
import fedstride.flower as strategies
from docs.site.markdown import plain, table
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.registry import summary

FOLDER = "reference"
TOPICS = {  # page: title, and the modules whose public names it has
    "training": ("Training", ("fedstride.training", "fedstride.app")),
    "algorithm": ("Algorithm, samplers, privacy", ("fedstride.algorithm",)),
    "step": ("Client step rules", ("fedstride.client.step",)),
    "client": ("Objectives, gradients, drift", ("fedstride.client",)),
    "server": ("Server rules", ("fedstride.server",)),
    "wire": ("Compression and aggregation", ("fedstride.wire",)),
    "errors": ("Errors and warnings", ("fedstride.core.errors",)),
}
MODULES = ("recipes", "data", "models", "metrics", "loggers", "engine", "faults", "optim")  # those that are public
FIRST = ("train", "Algorithm")  # on their pages
CONSTANTS = {  # they have no docstring
    "fs.STOP": "A callback returns it to end the run after the current round.",
    "fs.data.SOURCES": "The named data sets, a dict of `fs.data.Source`; `fedstride data list` describes them.",
    "fs.models.MODELS": "The models that `fs.models.build` knows by name.",
}


def members(module: ModuleType) -> list[str]:
    """Return the public names of a module: its `__all__`, or the names that it defines."""
    own = [n for n, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__ and n[0] != "_"]
    return list(getattr(module, "__all__", own))


def public() -> list[str]:
    """Return the names of `fs.` that are not modules: those of fedstride, and of parts that discovery found."""
    found = [name for name in dir(fs) if name[0] != "_"]
    return [name for name in found if not isinstance(getattr(fs, name), ModuleType)]


def entry(name: str, item: Any, level: int = 2) -> str:
    """Return a public name's entry: its docstring, which mkdocstrings renders, or the text of a constant.

    Raises:
        ValueError: a public name has no docstring.
    """
    if name in CONSTANTS:
        return f"{'#' * level} `{name}`\n\n{CONSTANTS[name]}\n\n"
    if not inspect.getdoc(item) or not (isinstance(item, ModuleType) or vars(item).get("__doc__", item.__doc__)):
        raise ValueError(f"{name} is public and has no docstring. Write one.")
    if isinstance(item, ModuleType):
        inner = [entry(f"{name}.{n}", getattr(item, n), level + 1) for n in members(item)]
        return f"{'#' * level} `{name}`\n\n{inspect.getdoc(item)}\n\n" + "".join(inner)
    path = f"{item.__module__}.{item.__qualname__}"
    return f'::: {path}\n    options:\n      heading: "{name}"\n      toc_label: "{name}"\n      heading_level: {level}\n\n'


def topic(item: Any) -> str:
    """Return the page of a public name that is a class or function."""
    module = type(item).__module__ if item is fs.STOP else item.__module__
    return next(page for page, (_, prefixes) in TOPICS.items() if module.startswith(prefixes))


def recipes() -> str:
    """Return the page of fs.recipes, which leads to the pages of the algorithms."""
    rows = [(f"[`fs.recipes.{name}`](../algorithms/{name}.md)", plain(summary(make))) for name, make in RECIPES.items()]
    rest = [entry(f"fs.recipes.{name}", getattr(fs.recipes, name)) for name in ("get", "recipe")]
    return f"{inspect.getdoc(fs.recipes)}\n\n{table(['name', 'description'], rows)}\n" + "".join(rest)


def flower() -> str:
    """Return the page of fedstride.flower: one row per strategy, and the entries of what they share."""
    made = {name: getattr(strategies, name) for name in members(strategies)}
    rules = {name: item.recipe for name, item in made.items() if hasattr(item, "recipe")}
    rows = [
        (f"[`{name}`](../algorithms/{recipe}.md)", plain(summary(RECIPES[recipe]))) for name, recipe in rules.items()
    ]
    about = "Strategies for [existing Flower apps](../flower.md). Each takes the settings of its algorithm, and those of `Strategy`."
    return f"# `fedstride.flower`\n\n{about}\n\n{table(['strategy', 'description'], rows)}\n" + "".join(
        entry(f"fedstride.flower.{name}", item) for name, item in made.items() if name not in rules
    )


def pages() -> dict[str, str]:
    """Return the pages of the reference: by topic, then by module."""
    texts = {page: f"# {title}\n\n" for page, (title, _) in TOPICS.items()}
    for name in sorted(public(), key=lambda name: name not in FIRST):
        texts[topic(getattr(fs, name))] += entry(f"fs.{name}", getattr(fs, name))
    for name in MODULES:
        module = getattr(fs, name)
        body = recipes() if name == "recipes" else entry(f"fs.{name}", module, 1).partition("\n\n")[2]
        texts[f"fs.{name}"] = f"# `fs.{name}`\n\n{body}"
    texts["fedstride.flower"] = flower()
    head = "# API reference\n\nAll names below are those of `import fedstride as fs`, except `fedstride.flower`.\n\n"
    titles = {page: TOPICS[page][0] if page in TOPICS else f"`{page}`" for page in texts}
    index = head + "\n".join(f"- [{title}]({page}.md)" for page, title in titles.items()) + "\n"
    return {f"{FOLDER}/index.md": index} | {f"{FOLDER}/{page}.md": text for page, text in texts.items()}
