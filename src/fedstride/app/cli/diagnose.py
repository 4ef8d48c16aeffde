"""fedstride diagnose: explain why a run is slow or stuck, and suggest what to try."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from fedstride.app.cli.common import Json, errors_without_traceback

if TYPE_CHECKING:
    from fedstride.app.diagnose import Diagnosis, Finding

STYLES = {"cause": "bold red", "watch": "yellow", "fine": "green", "unknown": "dim"}


def diagnose(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder written by run or compare.")],
    as_json: Json = False,
) -> None:
    """Explain why a run is slow or stuck, suggest what to try, and write diagnosis.html to its folder."""
    from fedstride.app.diagnose import every, write

    with errors_without_traceback():
        found = every(folder)
        console = Console(width=None if Console().is_terminal else 110, highlight=False)
        if isinstance(found, dict):
            documents = {name: d.json() for name, d in found.items()}
            if as_json:
                typer.echo(json.dumps({"folder": str(folder), "runs": documents}, indent=2))
                return
            for name, one in found.items():
                _brief(console, name, one)
            typer.echo(f"details: fedstride diagnose {folder / next(iter(found))}")
            return
        page = write(folder, found)
        if as_json:
            typer.echo(json.dumps({"folder": str(folder), **found.json(), "page": str(page)}, indent=2))
            return
        _whole(console, found)
        typer.echo(f"diagnosis: {page}")


def _whole(console: Console, found: Diagnosis) -> None:
    first = found.findings[0] if found.findings[0].severity == "cause" else found.outcome
    console.print(Text(found.outcome.says, style="bold"), soft_wrap=True)
    if first.advice:
        console.print(Text.assemble("Try first: ", (first.advice[0], "bold")), soft_wrap=True)
    console.print()
    for finding in found.findings:
        if finding is not found.outcome or finding.severity == "cause":
            _print(console, finding)


def _print(console: Console, finding: Finding) -> None:
    style = STYLES[finding.severity]
    console.print(Text.assemble((f"{finding.severity:<8}", style), (finding.name, "bold")))
    _indented(console, finding.says)
    for advice in finding.advice if finding.severity != "fine" else ():
        _indented(console, f"* {advice}")


def _indented(console: Console, text: str) -> None:
    more = "  " if text.startswith("* ") else ""
    wrapped = fill(
        text, console.width, initial_indent=" " * 8, subsequent_indent=" " * 8 + more, break_on_hyphens=False
    )
    console.print(Text(wrapped), soft_wrap=True)


def _brief(console: Console, name: str, found: Diagnosis) -> None:
    console.print(Text.assemble((name, "bold"), "  ", found.outcome.says), soft_wrap=True)
    for finding in found.findings:
        if finding.severity == "cause" and finding is not found.outcome:
            _print(console, finding)
