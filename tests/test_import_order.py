"""Imports point one way: a module knows only those before it, in the order of the data through a round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedstride

ROOT = Path(fedstride.__file__).parent
ORDER = [  # of a package with several lines, the name alone comes first: a new module needs a place of its own
    *("_moved", "core", "core.errors", "core.capabilities", "core.rows", "core.losses", "core.model"),
    *("core.normalise", "core.message", "core.files", "models.network", "oracle"),
    *("client", "client.context", "client.chunk", "client.objective", "client.corrected", "client.gradient"),
    *("client.drift", "client.step", "client.local"),
    *("wire", "server", "client.exchange"),
    *("algorithm.sampling", "algorithm.privacy", "algorithm.parts", "algorithm.compatibility", "algorithm.compose"),
    *("algorithm", "algorithm.recipes", "data"),
    *("engine.processor", "engine.worker_count", "engine.store", "engine.admission", "engine.protocol"),
    *("engine.worker", "engine.local", "engine.torchrun.process_group", "engine.torchrun", "engine", "engine.faults"),
    *("training", "training.guard", "training.history", "training.checkpoint", "training.result", "training.setup"),
    *("training.state", "training.attempt", "training.round", "training.retry", "training.scaling", "training.resume"),
    *("training.scales", "training.probe", "training.validate", "training.train", "optim", "models"),
    *("app", "app.loggers", "app.config", "app.progress", "engine.flower", "app.run_folder", "app.sweep"),
    *("app.report", "app.diagnose", "app.deploy"),
    *("research", "research.verify", "research.papers", "research.bench", "app.cli"),
]
NETWORKS = (
    "core.losses",
    "core.model",
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
    assert known, f"{module} has no place in the order of imports; give it one in ORDER"
    return max(known, key=lambda i: len(ORDER[i]))


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


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


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
    assert known <= {"core", "oracle", "client", "wire", "server"}
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


def test_the_order_names_nothing_that_is_not_there():
    assert not [name for name in ORDER if not exists(name)]
