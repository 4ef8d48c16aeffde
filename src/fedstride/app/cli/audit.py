"""fedstride audit: check the audit log of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstride.app.cli.common import errors_without_traceback
from fedstride.core.errors import InvalidInput, printable

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Check the audit log of a run.")


@app.callback()
def main() -> None:
    """Check the audit log of a run."""


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run, with audit.jsonl.")],
    head: Annotated[
        str | None, typer.Option(help="Hash that an earlier check printed: the log must still contain that entry.")
    ] = None,
) -> None:
    """Check every entry of the log, and compare it with checkpoints, history and model; exit code 1 if something is wrong."""
    with errors_without_traceback():
        from fedstride.app import audit

        if not (folder / audit.FILE).is_file():
            raise InvalidInput(f"{folder} has no {audit.FILE}; expected the folder of a run with audit=true.")
        found = audit.verify(folder, head)
        if found.broken is not None:
            typer.echo(printable(f"BROKEN: {found.broken}"), err=True)
            typer.echo(f"{found.entries} entries before it are intact.", err=True)
            raise typer.Exit(1)
        typer.echo(f"intact: {found.entries} entries, {found.rounds} rounds\nhead: {found.head}")
