"""The command line."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fedstride
from fedstride.algorithm import Algorithm
from fedstride.errors import Diverged, FedstrideError, InvalidInput
from fedstride.recipes import RECIPES

if TYPE_CHECKING:
    from fedstride.verify import Finding

app = typer.Typer(name="fedstride", no_args_is_help=True, add_completion=False)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


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


@contextmanager
def _errors_without_traceback() -> Iterator[None]:
    """Exit code 1 for a run that diverged, 2 for arguments that cannot be used."""
    try:
        yield
    except FedstrideError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, Diverged) else 2) from error


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms by name, with their arguments."""
    arguments = {
        name: {p.name: p.default for p in inspect.signature(make).parameters.values()} for name, make in RECIPES.items()
    }
    if as_json:
        rows = [{"name": n, "what": inspect.getdoc(make), "arguments": arguments[n]} for n, make in RECIPES.items()]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it is", ratio=1)
    table.add_column("arguments", ratio=1, style="cyan")
    for name, make in RECIPES.items():
        table.add_row(name, inspect.getdoc(make), ", ".join(f"{k}={v!r}" for k, v in arguments[name].items()))
    Console().print(table)


@app.command()
def verify(
    as_json: Json = False,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Check the fs.Algorithm that this function returns instead."),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help='Only the laws that mention this, such as "004", "Thm 9", fedlin.')
    ] = "",
) -> None:
    """Check the theory: run every law of the papers and compare what is measured with its bound.

    The exit code is 1 if a law is broken, and 2 if the arguments are unusable.
    """
    start = time.perf_counter()
    with _errors_without_traceback():
        laws = _laws(only) if algorithm is None else _laws_of(_load(algorithm), only)
        found = [*_quietly(laws)] if as_json else [*_shown(laws)]
    seconds = time.perf_counter() - start
    broken = sum(not f.kept for f in found)
    counts = {"findings": len(found), "kept": len(found) - broken, "broken": broken, "seconds": round(seconds, 1)}
    if as_json:
        typer.echo(json.dumps({**counts, "findings": [f.json() for f in found]}, indent=2))
    else:
        typer.echo("{findings} findings: {kept} kept, {broken} broken, in {seconds} s".format(**counts))
    raise typer.Exit(1 if broken else 0)


Laws = list[Iterable["Finding"]]


def _laws(only: str) -> Laws:
    from fedstride.verify import law

    chosen = law.select(only)
    if not chosen:
        sources = "; ".join(dict.fromkeys(source for source, _ in law.LAWS))
        raise InvalidInput(f"--only {only!r} matches no law; the sources are: {sources}.")
    return [law.run(source, check) for source, check in chosen]


def _laws_of(algorithm: Algorithm, only: str) -> Laws:
    from fedstride.verify import custom

    return [_matching(custom.check(algorithm), only)]


def _matching(found: Iterable[Finding], only: str) -> Iterator[Finding]:
    none = True
    for finding in found:
        if only.lower() in f"{finding.source} {finding.law}".lower():
            none = False
            yield finding
    if none:
        raise InvalidInput(f"--only {only!r} matches none of the laws of a custom algorithm.")


def _load(path: str) -> Algorithm:
    """The algorithm that module:function returns; modules of the current folder count."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise InvalidInput(f"--algorithm {path!r} is not usable; expected module:function, as in mine:my_algorithm.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InvalidInput(f"--algorithm {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(make):
        raise InvalidInput(f"--algorithm {path!r} is no function but {make!r}; expected one that returns fs.Algorithm.")
    try:
        made = make()
    except FedstrideError:
        raise
    except Exception as error:
        raise InvalidInput(f"--algorithm {path!r} fails when called: {type(error).__name__}: {error}") from error
    if not isinstance(made, Algorithm):
        raise InvalidInput(f"--algorithm {path!r} returns {made!r}; expected an fs.Algorithm.")
    return made


def _quietly(laws: Laws) -> Iterator[Finding]:
    for law in laws:
        yield from law


def _shown(laws: Laws) -> Iterator[Finding]:
    """The findings, shown as they come: as a growing table on a terminal, else as lines."""
    console = Console()
    if not console.is_terminal:
        for finding in _quietly(laws):
            typer.echo("  ".join(_cells(finding)))
            yield finding
        return
    found: list[Finding] = []
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


def _cells(f: Finding) -> tuple[str, ...]:
    return ("kept" if f.kept else "BROKEN", f.source, f.law, f"{f.measured:.6g}", f"{f.relation} {f.bound:.6g}")


def _table(found: list[Finding]) -> Table:
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


bench = typer.Typer(no_args_is_help=True, help="Measure, on this machine; every figure is a ratio within one run.")
app.add_typer(bench, name="bench")


@bench.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved pairs of rounds.")] = 15, as_json: Json = False
) -> None:
    """What the library adds to a hand-written PyTorch loop: a CNN of 582,026 parameters, batch 64, one thread."""
    from fedstride.bench.overhead import measure

    *_, last = measure(repeats)
    if as_json:
        typer.echo(json.dumps(asdict(last), indent=2))
        return
    typer.echo(f"by hand {last.by_hand:.3f} s, fedstride {last.fedstride:.3f} s, median of {repeats} interleaved pairs")
    typer.echo(f"ratio {last.ratio:.3f}; relative difference of the two models {last.difference:.1e}")
