"""What starts without PyTorch, and without its compiler."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import fedstride
from fedstride.app.cli import COMMANDS, Commands, app

SLOW = ("torch", "numpy", "pandas", "pydantic")
OPTIONAL = ("torch._dynamo", "sympy", "sklearn", "pandas", "plotly", "typer", "rich", "flwr", "pydantic", "PIL")
OUTSIDE = {"annotated_types", "platformdirs", "safetensors"}  # packages beside PyTorch's that the public names need
MOST = 220  # modules that the public names may add to PyTorch's: importing 194 takes about 0.2 s
NAMES = "import torch\nbefore = set(sys.modules)\nimport fedstride as fs\nfs.train"
DIGITS = """
import fedstride as fs
from torch import nn
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.GELU(), nn.Linear(9, 10))
fs.train(model, "cross_entropy", [fs.data.load("digits").train], rounds=1)
"""
EVERY_ORACLE = """
import torch
import fedstride as fs
from torch import nn
fs.train
before = set(sys.modules)
images, words, labels = torch.randn(8, 1, 8, 8), torch.randint(10, (8, 6)), torch.randint(10, (8,))
for model, inputs in (
    (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), images),
    (nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10)), images),
    (nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Dropout(), nn.Linear(9, 10)), images),
    (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)), images),
    (fs.models.CharLSTM((6,), 10, hidden=8), words),
    (fs.models.Transformer((6,), 10, width=8), words),
):
    fs.train(model, "cross_entropy", 2 * [(inputs, labels)], rounds=1, batch_size=4, test=(inputs, labels))
"""


def printed(program: str, expression: str) -> list[str]:
    """The strings of an expression after a program, in a process of its own."""
    code = f"import sys\n{program}\nprint('FOUND', *({expression}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.rpartition("FOUND")[2].split()


def loaded(program: str, names: tuple[str, ...]) -> list[str]:
    """The modules of these names that are loaded after a program."""
    return printed(program, f"n for n in {names!r} if n in sys.modules")


def added(program: str) -> set[str]:
    """The modules that a program loads after it has set `before`."""
    return set(printed(program, "set(sys.modules) - before"))


def helped(*arguments: str) -> str:
    return f"from fedstride.app.cli import app\ntry:\n    app({list(arguments)!r})\nexcept SystemExit:\n    pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["import fedstride", helped("--help"), helped("--version"), helped("bench", "--help")]
)
def test_help_needs_no_pytorch(program):
    assert loaded(program, SLOW) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [NAMES, DIGITS, EVERY_ORACLE], ids=["names", "digits", "every oracle"])
def test_training_imports_nothing_optional(program):
    assert loaded(program, OPTIONAL) == []


@pytest.mark.slow
def test_public_names_import_few_modules():
    found = added(NAMES)
    packages = {name.partition(".")[0] for name in found if not name.startswith("_")}
    assert packages - sys.stdlib_module_names <= OUTSIDE | {"fedstride", "torch"}
    assert len(found) <= MOST


@pytest.mark.slow
def test_the_first_rounds_import_next_to_nothing():
    assert len(added(EVERY_ORACLE)) <= 3


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(name):
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    real = group.get_command(typer.Context(group), name)
    assert real.name == name and real.help.split("\n\n")[0].split("\n")[0] == COMMANDS[name][1]


def test_unknown_commands_are_refused():
    assert CliRunner().invoke(app, ["nothing"]).exit_code == 2


@pytest.mark.parametrize("collecting", [True, False])
def test_imports_leave_the_garbage_collector_as_it_was(collecting):
    (gc.enable if collecting else gc.disable)()
    try:
        group = typer.main.get_command(app)
        assert group.get_command(typer.Context(group), "algorithms") is not None
        assert gc.isenabled() == collecting
        with pytest.raises(ModuleNotFoundError):
            fedstride._imported("fedstride.app.cli.missing")
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
