"""The `fedstride` command."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import fedstride
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.registry import summary
from fedstride.app.cli.bench import app as bench
from fedstride.app.cli.common import Json
from fedstride.app.cli.data import app as data
from fedstride.app.cli.deploy import app as deploy
from fedstride.app.cli.diagnose import diagnose
from fedstride.app.cli.reproduce import reproduce
from fedstride.app.cli.run import compare, report, run
from fedstride.app.cli.verify import verify

app = typer.Typer(name="fedstride", no_args_is_help=True, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedstride {fedstride.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning that finds its own step sizes."""


for command in (run, compare, report, diagnose):
    app.command()(command)
app.add_typer(data, name="data")


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms and their arguments."""
    arguments = {
        name: {p.name: p.default for p in inspect.signature(make).parameters.values()} for name, make in RECIPES.items()
    }
    if as_json:
        rows = [{"name": n, "what": summary(make), "arguments": arguments[n]} for n, make in RECIPES.items()]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("description", ratio=1)
    table.add_column("arguments", ratio=1, style="cyan")
    for name, make in RECIPES.items():
        table.add_row(name, summary(make), ", ".join(f"{k}={v!r}" for k, v in arguments[name].items()))
    Console().print(table)


app.command()(verify)
app.command()(reproduce)
app.add_typer(bench, name="bench")
app.add_typer(deploy, name="deploy")
