"""fedstride data: list, download and describe data sets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from fedstride.app.cli.common import Json, errors_without_traceback
from fedstride.data import cache
from fedstride.data.fetch import Tell
from fedstride.data.sources import SOURCES, get, load

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List, download and describe data sets.")
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder with the raw files, if this machine cannot download them.", show_default=False),
]


def _there(name: str) -> str:
    """Return "embedded" for data in scikit-learn, else whether the data set is in the cache."""
    if SOURCES[name].shapes is None:
        return "embedded"
    return "yes" if cache.path(name).exists() else "no"


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the named data sets."""
    rows: list[dict[str, Any]] = [
        {"name": n, "train": s.train, "test": s.test, "classes": s.classes, "clients": s.clients}
        | {"cached": _there(n), "what": s.what, "licence": s.licence}
        for n, s in SOURCES.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    for title in ("training", "test", "classes", "natural clients"):
        table.add_column(title, justify="right")
    table.add_column("in cache?", no_wrap=True)
    for r in rows:
        numbers = [f"{r[k]:,}" if r[k] else "-" for k in ("train", "test", "classes", "clients")]
        table.add_row(r["name"], *numbers, r["cached"])
    console = Console()
    console.print(table)
    console.print(f"cache: {cache.folder()}", highlight=False, soft_wrap=True)
    console.print("Also: LIBSVM, CSV, Parquet and LEAF by path, and hf:NAME for Hugging Face.", highlight=False)


@app.command("get")
def get_(name: str, folder: Folder = None) -> None:
    """Download a data set into the cache and verify it; do nothing if it is already there."""
    start = time.perf_counter()
    with errors_without_traceback(), _progress(name) as tell:
        place = get(name, folder, tell)
    if place is None:
        typer.echo(f"{name} is embedded: nothing to download")
    else:
        size, seconds = place.stat().st_size / 1e6, time.perf_counter() - start
        typer.echo(f"{name}: {size:.1f} MB in {place}, {seconds:.1f} s")


@contextmanager
def _progress(name: str) -> Iterator[Tell]:
    """Report progress on stderr: a live line on a terminal, else one line per step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: typer.echo(f"{name}: {what}", err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda what: progress.update(task, description=f"{name}: {what}")


@app.command("info")
def info(name: str, folder: Folder = None, as_json: Json = False) -> None:
    """Show counts, labels, origin and licence of a data set; downloaded first if missing."""
    with errors_without_traceback(), _progress(name) as tell:
        if name in SOURCES:
            get(name, folder, tell)
        table = load(name, folder=folder)
    facts: dict[str, Any] = {"name": name, "about": table.about, "input": list(table.train[0].shape[1:])}
    for part, (inputs, targets) in (("train", table.train), ("test", table.test)):
        counts = None if table.classes is None else torch.bincount(targets, minlength=table.classes).tolist()
        facts[part] = {"samples": len(inputs), "labels": counts}
    facts["classes"] = table.classes
    facts["clients"] = None if table.groups is None else _clients(table.groups)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    console.print(f"[bold]{name}[/bold]: {table.about}", highlight=False, soft_wrap=True)
    clients = "{number} natural clients with {smallest} to {largest} samples, median {median}"
    there = "no natural clients" if table.groups is None else clients.format(**facts["clients"])
    console.print(f"inputs {tuple(facts['input'])}, {table.classes or 'no'} classes, {there}", highlight=False)
    shown = Table("label", "training", "test", box=box.SIMPLE_HEAD, pad_edge=False)
    if table.classes is not None:
        pairs = zip(facts["train"]["labels"], facts["test"]["labels"], strict=True)
        for label, (train, test) in enumerate(pairs):
            shown.add_row(str(label), f"{train:,}", f"{test:,}")
    shown.add_row("all", f"{len(table.train[0]):,}", f"{len(table.test[0]):,}", style="bold")
    console.print(shown)


def _clients(groups: Tensor) -> dict[str, int]:
    sizes = torch.unique(groups, return_counts=True)[1]
    ends = {"smallest": int(sizes.min()), "median": int(sizes.median()), "largest": int(sizes.max())}
    return {"number": len(sizes), **ends}
