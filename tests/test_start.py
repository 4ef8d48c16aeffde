"""What starts without PyTorch, and without its compiler."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from fedstride.app.cli import COMMANDS, Commands, app, imported

SLOW = ("torch", "numpy", "pandas", "pydantic")
COMPILER = ("torch._dynamo", "sympy", "sklearn", "pandas")
TRAIN = """
import torch
import fedstride as fs
model, clients = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.GELU(), torch.nn.Linear(9, 10)), fs.data.load("digits")
run = fs.train(model, "cross_entropy", [clients.train], rounds=2)
"""


def loaded(program: str, names: tuple[str, ...]) -> list[str]:
    """The modules of these names that are loaded after a program."""
    code = f"import sys\n{program}\nprint('LOADED', *(n for n in {names!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.rpartition("LOADED")[2].split()


def helped(*arguments: str) -> str:
    return f"from fedstride.app.cli import app\ntry:\n    app({list(arguments)!r})\nexcept SystemExit:\n    pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["import fedstride", helped("--help"), helped("--version"), helped("bench", "--help")]
)
def test_help_needs_no_pytorch(program):
    assert loaded(program, SLOW) == []


@pytest.mark.slow
def test_training_imports_neither_the_compiler_nor_sympy_nor_scikit_learn():
    assert loaded(TRAIN, COMPILER) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(name):
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    real = group.get_command(typer.Context(group), name)
    assert real.name == name and real.help.split("\n\n")[0].split("\n")[0] == COMMANDS[name][1]


def test_unknown_commands_are_refused():
    assert CliRunner().invoke(app, ["nothing"]).exit_code == 2


def test_garbage_is_collected_again_after_a_command_is_imported():
    gc.enable()
    group = typer.main.get_command(app)
    assert group.get_command(typer.Context(group), "algorithms") is not None
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        imported("fedstride.app.cli.missing")
    assert gc.isenabled()
