"""The `fedstride` command."""

from __future__ import annotations

import gc
import sys
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

import fedstride

COMMANDS = {  # name: (module, first line of its help)
    "run": ("run", "Train a model on federated data; write model, history, configuration and report to a folder."),
    "compare": (
        "run",
        "Compare algorithms on the same data and seeds in a table and a report. Existing runs are kept.",
    ),
    "report": ("run", "Rewrite the report of a run or comparison."),
    "diagnose": (
        "diagnose",
        "Explain why a run is slow or stuck, suggest what to try, and write diagnosis.html to its folder.",
    ),
    "data": ("data", "List, download and describe data sets."),
    "algorithms": ("algorithms", "List the algorithms and their arguments."),
    "verify": ("verify", "Check the laws of the papers: compare each measured figure with its bound."),
    "reproduce": ("reproduce", "Reproduce an experiment of a paper and compare the figures."),
    "bench": ("bench", "Run benchmarks on this machine; every figure is a ratio within one run."),
    "audit": ("audit", "Check the audit log of a run."),
    "deploy": (
        "deploy",
        "Deploy with Flower: certificates, keys, start scripts, app and README; add, remove and watch nodes.",
    ),
}


class Commands(TyperGroup):
    """Imports a command when it is used: most of them need PyTorch, which takes two seconds to start."""

    listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        place, summary = COMMANDS[name]
        if self.listing:
            return click.Command(name, help=summary)
        path = f"fedstride.app.cli.{place}"
        first = path not in sys.modules
        module = fedstride._imported(path)
        if first:
            gc.freeze()  # modules are not garbage: later collections need not search them
        several = hasattr(module, "app")  # a group of commands
        chosen = module.app if several else typer.Typer(add_completion=False)
        if not several:
            chosen.command(name)(getattr(module, name))
        found = typer.main.get_command(chosen)
        found.name = name
        return found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.listing = True
        super().format_help(ctx, formatter)
        self.listing = False


app = typer.Typer(name="fedstride", no_args_is_help=True, add_completion=False, cls=Commands)


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
