"""fedstride verify: check the algorithms against the theory of the papers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedstride.algorithm import Algorithm
from fedstride.app.cli.common import Json, errors_without_traceback
from fedstride.app.functions import called
from fedstride.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedstride.research.verify import Measurement


def verify(
    as_json: Json = False,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Check the fs.Algorithm returned by this function instead."),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help='Only laws whose source contains this, such as FedLin or "Thm 9".')
    ] = "",
) -> None:
    """Check the laws of the papers: compare each measured figure with its bound.

    The exit code is 1 if a law is broken, and 2 if an argument is invalid.
    """
    start = time.perf_counter()
    with errors_without_traceback():
        laws = _laws(only) if algorithm is None else _laws_of(_load(algorithm), only)
        found = [*_quietly(laws)] if as_json else [*_shown(laws)]
    seconds = time.perf_counter() - start
    broken = sum(not f.kept for f in found)
    counts = {"total": len(found), "kept": len(found) - broken, "broken": broken, "seconds": round(seconds, 1)}
    if as_json:
        typer.echo(json.dumps({**counts, "findings": [f.json() for f in found]}, indent=2))
    else:
        typer.echo("{total} measurements: {kept} kept, {broken} broken, in {seconds} s".format(**counts))
    raise typer.Exit(1 if broken else 0)


Laws = list[Iterable["Measurement"]]


def _laws(only: str) -> Laws:
    from fedstride.research.verify import law

    chosen = law.select(only)
    if not chosen:
        sources = "; ".join(dict.fromkeys(source for source, _ in law.LAWS))
        raise InvalidInput(f"--only {only!r} matches no law; the sources are: {sources}.")
    return [law.run(source, check) for source, check in chosen]


def _laws_of(algorithm: Algorithm, only: str) -> Laws:
    from fedstride.research.verify import custom

    return [_matching(custom.check(algorithm), only)]


def _matching(found: Iterable[Measurement], only: str) -> Iterator[Measurement]:
    none = True
    for finding in found:
        if only.lower() in f"{finding.source} {finding.law}".lower():
            none = False
            yield finding
    if none:
        raise InvalidInput(f"--only {only!r} matches none of the laws of a custom algorithm.")


def _load(path: str) -> Algorithm:
    """Return the algorithm of module:function."""
    made = called("--algorithm", path, "an fs.Algorithm")
    if not isinstance(made, Algorithm):
        raise InvalidInput(f"--algorithm {path!r} returns {made!r}; expected an fs.Algorithm.")
    return made


def _quietly(laws: Laws) -> Iterator[Measurement]:
    for law in laws:
        yield from law


def _shown(laws: Laws) -> Iterator[Measurement]:
    """Yield the measurements and show each one: in a live table on a terminal, else as a line."""
    console = Console()
    if not console.is_terminal:
        for finding in _quietly(laws):
            typer.echo("  ".join(_cells(finding)))
            yield finding
        return
    found: list[Measurement] = []
    bar = Progress(TextColumn("laws"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    done = bar.add_task("", total=len(laws))
    with Live(console=console) as live:
        for law in laws:
            for finding in law:
                found.append(finding)
                live.update(Group(_table(found[-max(1, console.height - 8) :]), bar))
                yield finding
            bar.advance(done)
        live.update(_table(found))


def _cells(f: Measurement) -> tuple[str, ...]:
    return ("kept" if f.kept else "BROKEN", f.source, f.law, f"{f.measured:.6g}", f"{f.relation} {f.bound:.6g}")


def _table(found: list[Measurement]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, options in _COLUMNS.items():
        table.add_column(title, **options)
    for f in found:
        table.add_row(*_cells(f), style=None if f.kept else "bold red")
    return table


_COLUMNS: dict[str, dict[str, Any]] = {
    "verdict": {"no_wrap": True},
    "source": {"no_wrap": True, "style": "cyan"},
    "law": {},
    "measured": {"no_wrap": True, "justify": "right"},
    "bound": {"no_wrap": True},
}
