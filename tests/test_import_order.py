"""Imports point one way: a module knows only those before it, in the order of the data through a round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedstride

ROOT = Path(fedstride.__file__).parent
ORDER = [
    *("errors", "rows", "losses", "model", "models.network", "oracle"),
    *("client.plan", "client.site", "client.objective", "client.corrected", "client.gradient", "client.drift"),
    *("client.step", "client.local", "client"),
    *("wire", "server", "sampling", "privacy", "algorithm", "recipes", "normalise", "work"),
    *("data", "processor", "engine", "faults", "guard", "history", "checkpoint", "result", "snapshot", "session"),
    *("check", "run", "optim", "models"),
    *("loggers", "config", "live", "engine.flower", "job", "study"),
    *("verify", "report", "diagnose", "papers", "bench", "deploy", "cli"),
]
NETWORKS = (
    "losses",
    "model",
    "models",
    "normalise",
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
    assert known, f"{module} has no place in the order of imports; give it one in ORDER"
    return max(known, key=lambda i: len(ORDER[i]))


def imports(path: Path) -> set[str]:
    """Full names of what a file imports when it runs; what only type checkers read does not count."""
    tree = ast.parse(path.read_text())
    typing_only = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    skipped = {id(inner) for block in typing_only for inner in ast.walk(block)}
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


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def own(path: Path) -> set[str]:
    """What it imports of this package: the names of modules, with the imported name where that is a module too."""
    names = {n.removeprefix("fedstride.") for n in imports(path) if n.startswith("fedstride.")}
    return {n if exists(n) else n.rpartition(".")[0] for n in names}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_imports_only_what_comes_before(path):
    here = name_of(path)
    later = {name for name in own(path) if place(name) > place(here)}
    assert not later, f"{here} imports {later}, which come after it"


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p).startswith(("client", "wire", "server"))], ids=name_of)
def test_parts_know_no_engine_no_data_and_no_run(path):
    foreign = ("engine", "data", "run", "session", "work", "check", "algorithm", "recipes")
    assert not {name for name in own(path) if name.split(".")[0] in foreign}
    assert not {name for name in imports(path) if name.split(".")[0] in ("flwr", "pandas", "numpy")}


BEFORE_DATA = [p for p in FILES if place(name_of(p)) < ORDER.index("data") and not name_of(p).startswith(NETWORKS)]


@pytest.mark.parametrize("path", BEFORE_DATA, ids=name_of)
def test_only_a_few_modules_know_networks(path):
    assert not {name for name in imports(path) if name.startswith("torch.nn")}


def test_the_order_names_nothing_that_is_not_there():
    assert not [name for name in ORDER if not exists(name)]
