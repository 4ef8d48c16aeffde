"""One run on the command line: start or resume it, show it, and say how it ended and what to do next."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from fedstride.core.errors import Ended, GivenUp, InvalidInput, nearest, tell
from fedstride.training.progress import shown

if TYPE_CHECKING:
    from fedstride.app.config import Config
    from fedstride.app.diagnose import Diagnosis
    from fedstride.app.prepared import Prepared
    from fedstride.app.resume import Request
    from fedstride.engine.torchrun.process_group import Link
    from fedstride.training.result import Run


@dataclass(frozen=True)
class Display:
    """How a run is shown: mode is live, quiet or json; title: by default, task and algorithm."""

    mode: str
    title: str | None = None
    loggers: Sequence[str] = ()
    monitor: str | None = None


def train_in(folder: Path, request: Request, display: Display, resume: bool = False, alone: bool = False) -> str | None:
    """Train in a run folder. Return a sentence on how it ended, or None in a process that does not lead."""
    from fedstride.app import run_folder
    from fedstride.app.report import write
    from fedstride.app.resume import resumed

    if not _leads():
        config = resumed(folder, request) if resume and (folder / run_folder.CONFIG).is_file() else request.config()
        _follow(config)
        return None
    found = run_folder.status(folder)
    if found != "new" and not resume:
        raise InvalidInput(
            f"--out {folder}: the folder already contains a run; continue it with --resume, or choose another folder."
        )
    config = request.config() if found == "new" else resumed(folder, request)
    title = display.title or f"{config.task}, {config.algorithm['name']}"
    over = found != "new" and run_folder.status(folder, config.training.rounds) == "finished"
    if (link := _link(config)) is not None:
        link.agree(not over)
    if over:
        return f"{title}: already finished, nothing to do. For more rounds: {again(folder)} --rounds N"
    prepared = run_folder.prepare(config)
    if alone and prepared.test is None:
        raise InvalidInput("--alone compares test scores, and the data has no test set; expected one.")
    if display.mode == "live" and display.title is None:  # not for each run of a comparison
        describe(prepared)
    result = _execute(prepared, folder, display, title)
    if alone:
        from fedstride.training.personal_report import personal_report

        personal_report(result, prepared.own_tests).save(folder)
    write(folder)
    return ending(title, folder, result)


def again(folder: Path) -> str:
    """Return the command that continues a run."""
    return f"fedstride run --out {folder} --resume"


def describe(prepared: Prepared) -> None:
    """Say what the data of the user was understood to be; nothing about the tasks that come with fedstride."""
    from fedstride.app.presets import TASKS

    if prepared.config.task in TASKS:
        return
    size = sum(p.numel() for p in prepared.model.parameters())
    larger = "; for a larger one: --model mlp" if prepared.config.model.name == "softmax" else ""
    typer.echo(f"{prepared.about}\n  model    {prepared.config.model.name} with {size:,} parameters{larger}")
    if prepared.config.data.partition == "iid":
        tell(
            f"{prepared.config.data.source} names no clients: its rows were dealt at random to {len(prepared.clients)} clients, which is "
            "easier than real federations. Use --client COLUMN for real clients, --set data.clients=N for another number, "
            "or --set data.partition=dirichlet_split for clients that differ."
        )


def _execute(prepared: Prepared, folder: Path, display: Display, title: str) -> Run:
    from fedstride.app import run_folder
    from fedstride.app.progress import Stopped, stop_after_round

    console = Console(stderr=display.mode == "json")
    try:
        with (
            _logging(display.loggers, prepared.config.task, folder) as logs,
            _monitoring(display.monitor) as served,
            shown(title, prepared.config.training.rounds, display.mode, console) as show,
            stop_after_round() as stop,
        ):
            return run_folder.execute(prepared, folder, [show, *logs, *served, stop])
    except Stopped as stopped:
        with suppress(OSError):  # the terminal may be gone
            typer.echo(f"{title}: stopped; the last round is saved. Continue with: {again(folder)}", err=True)
        raise typer.Exit(stopped.exit_code) from None
    except GivenUp as error:
        _explain(folder, error)
        raise


def _explain(folder: Path, error: GivenUp) -> None:
    """Write report and diagnosis of a run that failed, and add the advice to the error."""
    from fedstride.app import diagnose, report

    if not error.run.history:
        error.add_note("No round was finished, so there is no report. Next: --algorithm auto, which finds its steps.")
        return
    page, found = report.write(folder), diagnose.every(folder)
    diagnose.write(folder)
    assert isinstance(found, diagnose.Diagnosis)
    error.add_note("\n".join([*_sentences(found, folder), f"report: {page}"]))


def ending(title: str, folder: Path, run: Run) -> str:
    """Return how a run ended, what the diagnosis says about it, and what to do next."""
    from fedstride.app import diagnose
    from fedstride.data.describe import counted
    from fedstride.training.progress import scores_text

    found = diagnose.every(folder)
    diagnose.write(folder)
    assert isinstance(found, diagnose.Diagnosis)
    head = f"{title}: {counted(len(run.history), 'round')}, {scores_text(run.history[-1])}"
    return "\n".join([head, *_sentences(found, folder), f"report: {folder / 'report.html'}"])


def _sentences(found: Diagnosis, folder: Path) -> list[str]:
    """Return the outcome of a diagnosis, and its first advice."""
    first = found.findings[0] if found.findings[0].severity == "cause" else found.outcome
    says = [found.outcome.says] if first is found.outcome else [found.outcome.says, first.says]
    advice = first.advice[0].replace("--resume", again(folder)) if first.advice else f"fedstride diagnose {folder}"
    return [*says, f"Next: {advice}"]


@contextmanager
def _logging(names: Sequence[str], task: str, folder: Path) -> Iterator[list[Any]]:
    """Yield a callback for the loggers with these names. They are made at the first event, and closed at the end."""
    if not names:
        yield []
        return
    from fedstride.app.loggers import MLflow, TensorBoard, Wandb, check_installed

    makers: dict[str, Callable[[], Any]] = {
        "wandb": lambda: Wandb(task, folder.name),
        "mlflow": lambda: MLflow(task, folder.name),
        "tensorboard": lambda: TensorBoard(folder / "tensorboard"),
    }
    for name in names:
        if name not in makers:
            raise InvalidInput(f"--logger {name!r} is unknown; {nearest(name, makers)}")
        check_installed(name)
    made: list[Any] = []

    def log(event: Any) -> None:
        if not made:
            made.extend(makers[name]() for name in dict.fromkeys(names))
        for logger in made:
            logger(event)

    try:
        yield [log]
    finally:
        for logger in made:
            logger.close()


@contextmanager
def _monitoring(where: str | None) -> Iterator[list[Any]]:
    """Yield a callback that serves the figures of the run, if that is wanted."""
    if where is None:
        yield []
        return
    from fedstride.app.monitor import monitor_at

    with closing(monitor_at(where)) as monitor:
        typer.echo(f"monitor: http://{monitor.address}/", err=True)
        yield [monitor]


def _leads() -> bool:
    from fedstride.engine.torchrun import Torchrun, launched

    return not launched() or Torchrun().leads


def _link(config: Config) -> Link | None:
    """Return the connection to the other processes of torchrun, if there are any."""
    from fedstride.engine.torchrun import launched

    if not launched():
        return None
    import torch

    from fedstride.engine.torchrun.process_group import Link

    return Link(torch.device(config.arguments(None)["device"] or "cpu"))


def _follow(config: Config) -> None:
    """Work for the leading process, if it has anything to do. Only the leader handles signals and prints."""
    from fedstride.app import run_folder

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = _link(config)
    if link is not None and link.agree(False):
        with suppress(Ended):
            run_folder.follow(run_folder.prepare(config))
