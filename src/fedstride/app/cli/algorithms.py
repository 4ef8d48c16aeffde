"""fedstride algorithms: list the recipes."""

from __future__ import annotations

import inspect
import json

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.registry import summary
from fedstride.app.cli.common import Json


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
