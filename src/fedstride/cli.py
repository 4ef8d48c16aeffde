"""The command line."""

from __future__ import annotations

import inspect

import typer
from rich.console import Console
from rich.table import Table

from fedstride.recipes import RECIPES

app = typer.Typer(name="fedstride", help="Federated learning that finds its own step sizes.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Federated learning that finds its own step sizes."""


@app.command()
def algorithms() -> None:
    """List the algorithms by name, with their arguments."""
    table = Table("name", "what it is", "arguments")
    for name, make in RECIPES.items():
        arguments = ", ".join(f"{p.name}={p.default!r}" for p in inspect.signature(make).parameters.values())
        table.add_row(name, inspect.getdoc(make), arguments)
    Console().print(table)
