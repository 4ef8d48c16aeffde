"""fedstride run, compare and report: train models, compare algorithms, and write reports."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedstride.algorithm.text import parse_algorithm, parse_setting, split
from fedstride.app.cli.common import errors_without_traceback, speak
from fedstride.app.cli.train import Display, train_in
from fedstride.app.presets import TASKS
from fedstride.core.errors import GivenUp, InvalidInput
from fedstride.core.files import replace_file

if TYPE_CHECKING:
    from fedstride.app.resume import Request
    from fedstride.training.history import Row

RUNS = Path("runs")
Task = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="Your data (CSV, Parquet or LIBSVM file, LEAF folder, hf:NAME), or an example: " + ", ".join(TASKS) + ".",
        show_default=False,
    ),
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to predict. Default: label.")]
Client = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column that names the client of each row, such as a hospital.")
]
Function = Annotated[
    str | None,
    typer.Option("--data", metavar="MODULE:FUNCTION", help="Function that returns clients, or clients and a test set."),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="softmax, mlp, small_cnn, mcmahan_cnn, reddi_cnn, resnet18, resnet50, char_lstm, char_mlp or transformer; or MODULE:FUNCTION of your own, "
        "which may take shape and classes.",
    ),
]
Device = Annotated[str | None, typer.Option(help="Device of the model, such as cuda.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Number of communication rounds.")]
File = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")]
Settings = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Single setting, such as training.batch_size=32.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder; by default a new one under runs/.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]


def run(
    task: Task = None,
    label: Label = None,
    client: Client = None,
    data: Function = None,
    model: Model = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Name from `fedstride algorithms`, or NAME(key=value,...).")
    ] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of training and initial weights.")] = None,
    device: Device = None,
    logger: Annotated[
        list[str], typer.Option(metavar="NAME", help="Also log to wandb, mlflow or tensorboard; may be repeated.")
    ] = [],  # noqa: B006 (typer reads it)
    monitor: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Serve /metrics for Prometheus, /health and a dashboard, such as 9464."
        ),
    ] = None,
    config: File = None,
    settings: Settings = [],  # noqa: B006
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, or the newest unfinished one under runs/.")
    ] = False,
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
    from fedstride.app.config import to_toml
    from fedstride.app.resume import newest_unfinished
    from fedstride.engine.torchrun import launched

    with errors_without_traceback():
        given = Options(task, label, client, data, model, rounds, device, config, settings)
        seeds = {} if seed is None else {"training.seed": seed, "model.seed": seed}
        request = given.request(algorithm, seeds)
        if print_config:
            typer.echo(to_toml(request.config(), meanings=True), nl=False)
            return
        if out is None and resume:
            if launched():
                raise InvalidInput("--resume under torchrun: name the folder of the run with --out.")
            out = newest_unfinished(RUNS, request)
        if out is None:
            chosen = request.config()
            out = _new_folder(f"{chosen.task}-{chosen.algorithm['name']}")
        display = Display("json" if as_json else "quiet" if quiet else "live", loggers=logger, monitor=monitor)
        finished = train_in(out, request, display, resume, alone)
        if finished and not as_json:
            speak(finished)


def compare(
    task: Task = None,
    label: Label = None,
    client: Client = None,
    data: Function = None,
    model: Model = None,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas; with arguments as in fedavg(lr=0.03).")
    ] = "auto,fedavg",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per algorithm.")] = 3,
    target: Annotated[
        float | None, typer.Option(help="Target test accuracy; the table shows the rounds needed to reach it.")
    ] = None,
    rounds: Rounds = None,
    device: Device = None,
    config: File = None,
    settings: Settings = [],  # noqa: B006 (typer reads it)
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data and seeds in a table and a report. Existing runs are kept."""
    from fedstride.app.report import write
    from fedstride.app.results import folder_name
    from fedstride.app.summary import WIDE, tables_of
    from fedstride.engine.torchrun import Torchrun, launched

    with errors_without_traceback():
        given = Options(task, label, client, data, model, rounds, device, config, settings)
        names = split(algorithms)
        jobs = {(n, s): given.request(n, {"training.seed": s}) for n in names for s in range(seeds)}
        chosen = [request.config() for request in jobs.values()]  # all are checked before any of them runs
        folder = out or _new_folder(f"{chosen[0].task}-compare")
        for (name, seed), request in jobs.items():
            title = f"{name}, seed {seed}"
            display = Display("quiet" if quiet else "live", title)
            try:
                train_in(folder / folder_name(name, seed), request, display, resume=True)
            except GivenUp as error:
                typer.echo(f"{title}: {error}", err=True)
        if launched() and not Torchrun().leads:
            return
        listed: list[dict[str, Any]] = [{"folder": folder_name(n, s), "algorithm": n, "seed": s} for n, s in jobs]
        index = {
            "task": chosen[0].task,
            "target": target,
            "runs": [r for r in listed if (folder / r["folder"] / "history.jsonl").is_file()],
        }
        replace_file(folder / "compare.json", json.dumps(index, indent=2))
        console = Console(width=None if sys.stdout.isatty() else WIDE)  # one table in files
        for table in tables_of(_histories(folder, index), target, console.width):
            console.print(table)
        typer.echo(f"report: {write(folder)}")


def report(folder: Annotated[Path, typer.Argument(help="Folder written by run or compare.")]) -> None:
    """Rewrite the report of a run or comparison."""
    from fedstride.app.report import write

    with errors_without_traceback():
        typer.echo(write(folder))


@dataclass(frozen=True)
class Options:
    """The options that run and compare share."""

    task: str | None
    label: str | None
    client: str | None
    data: str | None
    model: str | None
    rounds: int | None
    device: str | None
    config: Path | None
    settings: list[str]

    def request(self, algorithm: str | None, more: dict[str, Any]) -> Request:
        """Return what the options ask for, as settings."""
        from fedstride.app.resume import Request

        if self.task is not None and self.data is not None:
            raise InvalidInput(f"--data {self.data} and {self.task}: expected one of them.")
        named = {
            "data.options.label": self.label,
            "data.options.client": self.client,
            "data.source": self.data,
            "model.name": self.model,
            "training.rounds": self.rounds,
            "training.device": self.device,
        }
        given = dict(parse_setting(text) for text in self.settings)
        given |= {key: value for key, value in named.items() if value is not None}
        if algorithm is not None:
            given |= {f"algorithm.{k}": v for k, v in parse_algorithm(algorithm).items()}
        return Request(self.task, self.config, {**given, **more})


def _new_folder(name: str) -> Path:
    """Return a new path under runs/, named by the time; never an existing one, even if the clock is set back."""
    name = re.sub(r"[^\w.=-]+", "_", name)
    for number in count(1):
        folder = RUNS / (f"{name}-{datetime.now():%Y%m%d-%H%M%S}" + (f"-{number}" if number > 1 else ""))
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
