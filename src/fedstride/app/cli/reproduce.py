"""fedstride reproduce: run the experiments of the papers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedstride.app.cli.common import Json, errors_without_traceback, kept_on_interrupt, wide_console
from fedstride.core.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from fedstride.app.sweep import Tell
    from fedstride.research.papers import Experiment, Lab

STYLES = {
    "agrees": "green",
    "in kind": "cyan",
    "differs": "bold red",
    "undecided": "yellow",
    "no information": "dim",
    "not run": "dim",
}


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of an experiment, such as fedexp-synthetic; a paper (fedsls, delta-sgd, fedexp or fedlin) for all of its "
            "experiments; or `all`. Lists the experiments if omitted."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="`small`: minutes on two cores; `medium`: the paper's rounds, clients and local work, with a CNN instead of "
            "ResNet; `paper`: the paper's own size."
        ),
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Only these tasks of an experiment on several, such as mnist,fashion_mnist, or columns and rows, such as mnist-0.1."
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Rates to use without a search, such as SGD=0.1,SGDM=0.1,Adam=0.001,Adagrad=0.01."),
    ] = None,
    augment: Annotated[
        bool, typer.Option("--augment", help="Crop and flip the images of CIFAR-10 at random in training.")
    ] = False,
    residual: Annotated[
        bool, typer.Option("--residual", help="At medium scale, use a ResNet-18 of width 16 instead of a CNN.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for records, pages and intermediate results.")] = Path(
        "runs/reproduce"
    ),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown tables of all records in --out instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Reproduce an experiment of a paper and compare the figures.

    Completed results are kept: the same command continues after an interruption. The exit code is 0 even if a figure
    differs from the paper's, and 2 for invalid arguments.
    """
    from fedstride.research.papers import Lab, page, select
    from fedstride.research.papers.experiment import SCALES, check_tasks, given_rates

    with errors_without_traceback():
        if scale not in SCALES:
            raise InvalidInput(f"--scale {scale!r} is unknown; {nearest(scale, SCALES)}")
        if name is None and not markdown:
            _list(as_json)
            return
        chosen = select(name) if name else []
        some, given = check_tasks(tasks, rates, chosen), given_rates(rates)
        lab = Lab(scale, seeds, out, tasks=some, rates=given, augment=augment, residual=residual)
        with kept_on_interrupt(f"{lab.command(name or '')} --out {out}"):
            records = [_measured(experiment, lab, quiet=as_json or markdown) for experiment in chosen]
        if as_json:
            typer.echo(json.dumps(records, indent=2, ensure_ascii=False))
        elif markdown:
            typer.echo(page.markdown(page.read(out)))


def _list(as_json: bool) -> None:
    from fedstride.research.papers import select

    every = select("all")
    if as_json:
        typer.echo(json.dumps([{"name": e.name, "title": e.title} for e in every], indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("experiment", no_wrap=True, style="bold")
    table.add_column("description")
    for experiment in every:
        table.add_row(experiment.name, experiment.title)
    wide_console().print(table)
    typer.echo(
        "Run one with `fedstride reproduce NAME`, all of a paper by its name "
        "(fedsls, delta-sgd, fedexp or fedlin), or `all`."
    )


def _measured(experiment: Experiment, lab: Lab, quiet: bool) -> dict[str, Any]:
    """Run an experiment, write its record and page, and print its table."""
    from fedstride.research.papers import page

    with _progress(experiment.name) as tell:
        lab = replace(lab, tell=tell, used=set())
        outcome = experiment.measure(lab)
    found = page.record(experiment, lab, outcome)
    paths = page.write(found, outcome.pictures, lab.folder)
    if not quiet:
        console = wide_console()
        console.print(f"\n{experiment.title} ({experiment.name}, {lab.scale} scale)", style="bold", highlight=False)
        console.print(_table(found["claims"]))
        typer.echo(f"Written: {' and '.join(map(str, paths))}")
    return found


def _table(claims: list[dict[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("claim", "paper", "ours"):
        table.add_column(title, ratio=1)
    table.add_column("verdict", no_wrap=True)
    for claim in claims:
        words = [Text(claim[key]) for key in ("what", "paper", "ours")]
        table.add_row(*words, Text(claim["verdict"], STYLES[claim["verdict"]]))
    return table


@contextmanager
def _progress(name: str) -> Iterator[Tell]:
    """Report progress on stderr: a bar on a terminal, else one line per cell."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total, cell: console.print(
            f"{name}: {done} of {total} {cell}".strip(), markup=False, highlight=False, soft_wrap=True
        )
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[cell]}", markup=False))
    with Progress(TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None, cell="")
        yield lambda done, total, cell: bar.update(task, completed=done, total=total, cell=cell)
