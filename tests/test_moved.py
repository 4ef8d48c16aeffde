"""Modules that moved are found by their old names, with a warning, and are the same modules."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from fedstride._moved import MOVED

ROOT = Path(__file__).parents[1]
INSIDE = {  # of packages, at any depth
    "fedstride.bench.painless": "fedstride.research.bench.painless",
    "fedstride.bench.peers": "fedstride.research.bench.peers",
    "fedstride.cli.common": "fedstride.app.cli.common",
    "fedstride.report.theme": "fedstride.app.report.theme",
    "fedstride.verify.law": "fedstride.research.verify.law",
}


@pytest.fixture
def forgetful():
    """No old name is left for other tests, where it would warn nobody."""
    yield
    for name in [n for n in sys.modules if f"{n}.".startswith(tuple(f"{old}." for old in MOVED))]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package around a module
@pytest.mark.parametrize(("old", "new"), (MOVED | INSIDE).items())
def test_the_old_name_warns_and_gives_the_module_itself(old, new, forgetful):
    if old == "fedstride.deploy":
        pytest.importorskip("flwr")
    known = importlib.import_module(new)
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {new}; "):
        module = importlib.import_module(old)
    assert module is known
    assert (module.__name__, module.__spec__.name) == (new, new)
    with warnings.catch_warnings(action="error"):
        assert importlib.import_module(old) is module


SCRIPT = """
from fedstride.recipes import RECIPES
from fedstride import job, rows
from fedstride.bench.painless import shown
import fedstride as fs, fedstride.errors
from fedstride.app import run_folder
import fedstride.research.bench.painless as painless
assert RECIPES is fs.recipes.RECIPES and fedstride.errors.Refused is fs.Refused
assert job is run_folder and shown is painless.shown
"""


@pytest.mark.slow
def test_scripts_with_old_names_run_and_are_told_where():
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning:__main__", "-c", SCRIPT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stderr.splitlines() if line.startswith("<string>")] == [
        *("fedstride.recipes", "fedstride.job", "fedstride.rows"),
        *("fedstride.bench", "fedstride.bench.painless", "fedstride.errors"),
    ]


def test_a_plain_import_loads_no_command_line_and_no_research():
    code = "import sys, fedstride; print(*(n for n in sys.modules if n.startswith('fedstride.')))"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:fedstride", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not [n for n in done.stdout.split() if n.startswith(("fedstride.research", "fedstride.app.cli"))]


@pytest.mark.slow
def test_nobody_here_uses_an_old_name():
    found = []
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            found += [(path.name, n) for n in names if f"{n}.".startswith(tuple(f"{old}." for old in MOVED))]
    own = {"recipes", "faults", "loggers"}  # still names of fedstride itself
    assert not [(where, n) for where, n in found if n.removeprefix("fedstride.") not in own]


@pytest.mark.parametrize(("module", "old", "new"), [("context", "Plan", "Context"), ("chunk", "Site", "Chunk")])
def test_the_old_name_of_a_class_warns_and_gives_the_class(module, old, new):
    found = importlib.import_module(f"fedstride.client.{module}")
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {new}; "):
        assert getattr(found, old) is getattr(found, new)
    assert not hasattr(found, "Nothing")
