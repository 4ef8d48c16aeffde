"""fedstride run, compare and report: train models, compare algorithms, and write reports."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from fedstride.algorithm.text import parse_algorithm, parse_setting, split
from fedstride.app.cli.common import errors_without_traceback
from fedstride.app.config import Config, resolve, to_toml
from fedstride.app.presets import TASKS
from fedstride.app.progress import Stopped, stop_after_round
from fedstride.app.results import folder_name
from fedstride.app.summary import table_of
from fedstride.core.errors import Ended, GivenUp, InvalidInput
from fedstride.core.files import replace_file
from fedstride.engine.torchrun import Torchrun, launched
from fedstride.engine.torchrun.process_group import LEADER, Link
from fedstride.training.history import Row
from fedstride.training.personal_report import personal_report
from fedstride.training.progress import line, shown

Task = Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Number of communication rounds.")]
File = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Single setting, such as training.batch_size=32.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder; by default a new one under runs/.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]


def run(
    task: Task = "digits",
    algorithm: Annotated[
        str | None, typer.Option(help="Name from `fedstride algorithms`, or NAME(key=value,...).")
    ] = None,
    rounds: Rounds = None,
    config: File = None,
    settings: Settings = [],  # noqa: B006 (typer reads it)
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's checkpoint.")] = False,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Also train every client alone; the report shows which clients gain from the federation."
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON line per round.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings with their descriptions, and exit.")
    ] = False,
) -> None:
    """Train a model on federated data; write model, history, configuration and report to a folder."""
    with errors_without_traceback():
        chosen = _resolve(task, config, settings, rounds, algorithm)
        if print_config:
            typer.echo(to_toml(chosen, meanings=True), nl=False)
            return
        folder = out or _new_folder(f"{chosen.task}-{chosen.algorithm['name']}")
        mode = "json" if as_json else "quiet" if quiet else "live"
        finished = _one(chosen, folder, resume, mode, alone=alone)
        if finished and not as_json:
            typer.echo(f"{finished}\nreport: {folder / 'report.html'}")


def compare(
    task: Task = "digits",
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas; with arguments as in fedavg(lr=0.03).")
    ] = "auto,fedavg",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per algorithm.")] = 3,
    target: Annotated[
        float | None, typer.Option(help="Target test accuracy; the table shows the rounds needed to reach it.")
    ] = None,
    rounds: Rounds = None,
    config: File = None,
    settings: Settings = [],  # noqa: B006 (typer reads it)
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data and seeds in a table and a report. Existing runs are kept."""
    from fedstride.app.report import write

    with errors_without_traceback():
        names = split(algorithms)
        jobs = {
            (name, seed): _resolve(task, config, [*settings, f"training.seed={seed}"], rounds, name)
            for name in names
            for seed in range(seeds)
        }
        folder = out or _new_folder(f"{task}-compare")
        for (name, seed), chosen in jobs.items():
            title = f"{name}, seed {seed}"
            try:
                _one(chosen, folder / folder_name(name, seed), True, "quiet" if quiet else "live", title)
            except GivenUp as error:
                typer.echo(f"{title}: {error}", err=True)
        if launched() and not Torchrun().leads:
            return
        listed: list[dict[str, Any]] = [{"folder": folder_name(n, s), "algorithm": n, "seed": s} for n, s in jobs]
        index = {
            "task": task,
            "target": target,
            "runs": [r for r in listed if (folder / r["folder"] / "history.jsonl").is_file()],
        }
        replace_file(folder / "compare.json", json.dumps(index, indent=2))
        width = None if sys.stdout.isatty() else 1000  # do not wrap the table in files
        Console(width=width).print(table_of(_histories(folder, index), target))
        typer.echo(f"report: {write(folder)}")


def report(folder: Annotated[Path, typer.Argument(help="Folder written by run or compare.")]) -> None:
    """Rewrite the report of a run or comparison."""
    from fedstride.app.report import write

    with errors_without_traceback():
        typer.echo(write(folder))


def _one(
    config: Config, folder: Path, resume: bool, mode: str, title: str | None = None, alone: bool = False
) -> str | None:
    """Run one job in its folder. Return its summary, or None in a process that does not lead."""
    from fedstride.app import run_folder
    from fedstride.app.report import write

    title = title or f"{config.task}, {config.algorithm['name']}"
    link = Link(torch.device(config.arguments(None)["device"] or "cpu")) if launched() else None
    if link is not None and link.rank != LEADER:
        _follow(config, link)
        return None
    found = run_folder.status(folder)
    if found != "new" and not resume:
        raise InvalidInput(
            f"--out {folder}: the folder already contains a run; continue it with --resume, or choose another folder."
        )
    if found != "new" and to_toml(resolve(file=folder / run_folder.CONFIG)) != to_toml(config):
        raise InvalidInput(
            f"--out {folder}: the folder contains a run with another configuration; choose another folder."
        )
    if link is not None:
        link.agree(found != "finished")
    if found == "finished":
        return f"{title}: already finished, nothing to do"
    console = Console(stderr=mode == "json")
    try:
        with shown(title, config.training.rounds, mode, console) as show, stop_after_round() as stop:
            job = run_folder.prepare(config)
            result = run_folder.execute(job, folder, [show, stop])
    except Stopped:
        again = f"fedstride run --config {folder / run_folder.CONFIG} --out {folder} --resume"
        typer.echo(f"{title}: stopped; the last round is saved. Continue with: {again}", err=True)
        raise typer.Exit(130) from None
    if alone:
        personal_report(result, job.own_tests).save(folder)
    write(folder)
    return f"{title}: {line(result.history[-1])}"


def _follow(config: Config, link: Link) -> None:
    """Work for the leading process, if it has anything to do. Only the leader handles Ctrl-C and prints."""
    from fedstride.app import run_folder

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if link.agree(False):
        with suppress(Ended):
            run_folder.follow(run_folder.prepare(config))


def _resolve(task: str, file: Path | None, settings: list[str], rounds: int | None, algorithm: str | None) -> Config:
    given = dict(parse_setting(text) for text in settings)
    if rounds is not None:
        given["training.rounds"] = rounds
    if algorithm is not None:
        given |= {f"algorithm.{k}": v for k, v in parse_algorithm(algorithm).items()}
    return resolve(task, file, given)


def _new_folder(name: str) -> Path:
    """Return a new path under runs/, named by the time; never an existing one, even if the clock is set back."""
    for number in count(1):
        folder = Path("runs") / (f"{name}-{datetime.now():%Y%m%d-%H%M%S}" + (f"-{number}" if number > 1 else ""))
        if not folder.exists():
            break
    return folder


def _histories(folder: Path, index: dict[str, Any]) -> dict[str, list[list[Row]]]:
    """Read the histories of a comparison, by algorithm."""
    found: dict[str, list[list[Row]]] = {}
    for run in index["runs"]:
        lines = (folder / run["folder"] / "history.jsonl").read_text().splitlines()
        found.setdefault(run["algorithm"], []).append([json.loads(line) for line in lines])
    return found
