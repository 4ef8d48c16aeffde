"""Public classes and functions are documented: their arguments, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import fedstride as fs
from tests.test_public_names import MODULES

AUTO = fs.recipes.auto()
FROZEN = {type(part).__module__ for part in (AUTO.step, AUTO.server)}  # stored benchmark runs are keyed by their source
NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def documented(item: Any) -> bool:
    module = getattr(item, "__module__", "")
    inside = module.startswith("fedstride.") and module not in FROZEN
    return inside and (inspect.isclass(item) or inspect.isfunction(item)) and not getattr(item, "_is_protocol", False)


def names(module: ModuleType) -> list[str]:
    own = [n for n, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__ and n[0] != "_"]
    return getattr(module, "__all__", own)


def public() -> dict[str, Any]:
    found = {f"fs.{name}": item for name, item in vars(fs).items() if name[0] != "_"}
    for module in sorted({*MODULES, "wire"}):
        found |= {f"fs.{module}.{name}": getattr(getattr(fs, module), name) for name in names(getattr(fs, module))}
    once = {id(item): name for name, item in reversed(found.items())}
    return {name: found[name] for name in sorted(once.values()) if documented(found[name])}


PUBLIC = public()


def arguments(item: Any) -> list[str]:
    try:
        signature = inspect.signature(item)
    except ValueError:  # exceptions without a constructor of their own
        return []
    return [name for name, parameter in signature.parameters.items() if parameter.kind in NAMED]


PARTS = tuple(f"fedstride.{layer}" for layer in ("client", "core", "models", "optim", "oracle", "server", "wire"))


def space(item: Any) -> dict[str, Any]:
    """The names that examples may use without defining them: regression for parts, classification for the rest."""
    source = torch.Generator().manual_seed(0)
    if item.__module__.startswith(PARTS):
        truth = torch.tensor([[1.0], [-2.0], [3.0]])
        clients = [(A, A @ truth) for A in torch.randn(4, 16, 3, generator=source)]
    else:
        clients = [(torch.randn(8, 4, generator=source), torch.arange(8) % 3)] * 4
    return {"torch": torch, "nn": nn, "fs": fs, "inputs": clients[0][0], "targets": clients[0][1], "clients": clients}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_described(name):
    doc = inspect.cleandoc(PUBLIC[name].__doc__)
    described = re.findall(r"^    (\w+): ", doc.partition("\nArgs:\n")[2].partition("\n\n")[0], flags=re.M)
    assert set(arguments(PUBLIC[name])) <= set(described)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs_and_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    doc = inspect.cleandoc(PUBLIC[name].__doc__)
    example = doctest.DocTestParser().get_doctest(doc, space(PUBLIC[name]), name, None, None)
    assert example.examples and "\nExample:\n" in doc
    report: list[str] = []
    with warnings.catch_warnings():
        failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append).failed
    assert not failed, "".join(report)
