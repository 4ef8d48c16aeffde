"""Imports point one way: a module imports only those that docs/architecture.md lists before it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import fedstride

ROOT = Path(fedstride.__file__).parent
PAGE = Path(__file__).parents[1] / "docs/architecture.md"


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def names(line: str) -> list[str]:
    """The modules of a layer, in order. Its package comes first unless the line gives it another place."""
    layer, *modules = line.split()
    within = [layer if name == layer else f"{layer}.{name}" for name in modules]
    return within if layer in within else [layer, *within]


LAYERS = re.findall(r"^```layers\n(.*?)^```$", PAGE.read_text(), flags=re.S | re.M)
ORDER = [name for block in LAYERS for line in block.splitlines() for name in names(line)]
APART = {"client.exchange", "engine.flower", "app.cli"}  # modules with a layer of their own, outside their package's
NETWORKS = (
    "core.batch",
    "core.losses",
    "core.metrics",
    "core.model",
    "core.pooling",
    "core.lora",
    "core.normalise",
    "models",
    "oracle",
    "client.objective.moon",
)  # of all parts, these may know torch.nn
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place(module: str) -> int:
    """Where a module stands: by the longest name in the order that it begins with."""
    known = [i for i, name in enumerate(ORDER) if module == name or module.startswith(name + ".")]
    assert known, f"{module} has no place in the order of imports; give it one in {PAGE.name}"
    return max(known, key=lambda i: len(ORDER[i]))


@cache
def imports(path: Path, at_once: bool = False) -> set[str]:
    """Full names of what a file imports when it runs; what only type checkers read does not count.

    at_once: nor does what functions import.
    """
    tree = ast.parse(path.read_text())
    typing_only = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    later = [n for n in ast.walk(tree) if at_once and isinstance(n, ast.FunctionDef)]
    skipped = {id(inner) for block in (*typing_only, *later) for inner in ast.walk(block)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write the whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own(path: Path, at_once: bool = False) -> set[str]:
    """What it imports of this package: the names of modules, with the imported name where that is a module too."""
    names = {n.removeprefix("fedstride.") for n in imports(path, at_once) if n.startswith("fedstride.")}
    return {n if exists(n) else n.rpartition(".")[0] for n in names}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_imports_only_what_comes_before(path):
    here = name_of(path)
    later = {name for name in own(path) if place(name) > place(here)}
    assert not later, f"{here} imports {later}, which come after it"


def below(*packages: str) -> list[Path]:
    return [p for p in FILES if name_of(p).split(".")[0] in packages]


@pytest.mark.parametrize("path", below("client", "wire", "server"), ids=name_of)
def test_parts_know_no_engine_no_data_and_no_run(path):
    known = {name.split(".")[0] for name in own(path)}
    assert known <= {"_moved", "core", "oracle", "client", "wire", "server"}
    assert "client.exchange" not in own(path)
    assert not {name for name in imports(path) if name.split(".")[0] in ("flwr", "pandas", "numpy")}


@pytest.mark.parametrize("path", below("core", "data", "models"), ids=name_of)
def test_core_data_and_models_stand_for_themselves(path):
    assert {name.split(".")[0] for name in own(path)} <= {"core", name_of(path).split(".")[0]}


@pytest.mark.parametrize("path", [p for p in FILES if not name_of(p).startswith("research")], ids=name_of)
def test_only_the_command_line_knows_research_and_only_when_asked(path):
    if name_of(path).startswith("app.cli"):
        assert not {name for name in own(path, at_once=True) if name.startswith("research")}
    else:
        assert not {name for name in own(path) if name.startswith("research")}


BEFORE_DATA = [p for p in FILES if place(name_of(p)) < ORDER.index("data") and not name_of(p).startswith(NETWORKS)]


@pytest.mark.parametrize("path", BEFORE_DATA, ids=name_of)
def test_only_a_few_modules_know_networks(path):
    assert not {name for name in imports(path) if name.startswith("torch.nn")}


def test_the_page_lists_every_layer_once_and_only_modules_that_exist():
    assert len(LAYERS) == 1 and len(ORDER) == len(set(ORDER))
    assert not [name for name in ORDER if not exists(name)]


def test_a_package_is_one_layer_with_few_exceptions():
    layers = [line.split()[0] for line in LAYERS[0].splitlines()]
    assert {layer for layer in layers if "." in layer} == APART
    assert {name for name in layers if "." not in name} == {name_of(path).split(".")[0] for path in FILES}
