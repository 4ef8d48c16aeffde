"""Run folders: train a model from a configuration and save everything in one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedstride.app.about import about_clients, environment
from fedstride.app.config import resolve, to_toml
from fedstride.app.prepared import Prepared as Prepared
from fedstride.app.prepared import prepare as prepare
from fedstride.core.errors import GivenUp, InvalidInput
from fedstride.core.files import NEW, append, read_tensors, replace_file
from fedstride.training import checkpoint
from fedstride.training.checkpoint import locked
from fedstride.training.history import History, Row
from fedstride.training.result import Run
from fedstride.training.rounds import Event
from fedstride.training.train import train

CONFIG, ENVIRONMENT, HISTORY, CLIENTS = "config.toml", "environment.json", "history.jsonl", "clients.json"
FAILED = ("diverged", "given up")  # what Run.ended says of runs that cannot continue


def status(folder: Path, rounds: int | None = None) -> str:
    """Return the status of a run folder: new, started, finished or failed; rounds: if they are not those of the folder."""
    if not (folder / CONFIG).is_file():
        if folder.exists() and (not folder.is_dir() or not _is_empty(folder)):
            raise InvalidInput(f"--out {folder}: not empty, and not a run folder; choose another one.")
        return "new"
    planned = resolve(file=folder / CONFIG).training.rounds
    ended = _environment(folder).get("ended")
    if ended in FAILED:
        return "failed"
    if (folder / "model.safetensors").is_file():
        if ended == "stopped" and (rounds is None or rounds <= planned):
            return "finished"
        if len(_history(folder)) >= (rounds or planned):
            return "finished"
    return "started"


def execute(prepared: Prepared, folder: Path, callbacks: Sequence[Callable[[Event], object]] = ()) -> Run:
    """Train in a run folder; continue from the folder's checkpoint if there is one.

    A run that fails before its first round leaves no files. One that diverges is saved like one that finishes.
    """
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        with locked(folder), _nothing_left_of_a_failed_start(folder):
            return _execute(prepared, folder, callbacks)
    finally:
        for place in made:
            with suppress(OSError):  # not empty
                place.rmdir()


def follow(prepared: Prepared) -> None:
    """Take part in a run that another process leads."""
    train(
        prepared.model,
        prepared.loss,
        prepared.clients,
        prepared.config.make_algorithm(),
        test=prepared.tests,
        **prepared.config.arguments(None),
    )


def _execute(prepared: Prepared, folder: Path, callbacks: Sequence[Callable[[Event], object]]) -> Run:
    config, algorithm = prepared.config, prepared.config.make_algorithm()
    private = algorithm.privacy is not None
    replace_file(folder / CONFIG, to_toml(config), private)
    about = environment(private=private)
    replace_file(folder / ENVIRONMENT, json.dumps(about, indent=2), private)
    replace_file(folder / HISTORY, History(_history(folder)).text(), private)

    def log(event: Event) -> None:
        if event.round > 0:
            append(folder / HISTORY, json.dumps(event.metrics) + "\n")

    def save(run: Run) -> None:
        run.save(folder)
        if (people := about_clients(run)) is not None:
            replace_file(folder / CLIENTS, json.dumps(people))
        facts = {**about, **run.engine, "ended": run.ended}
        replace_file(folder / ENVIRONMENT, json.dumps(facts, indent=2), private)

    try:
        run = train(
            prepared.model,
            prepared.loss,
            prepared.clients,
            algorithm,
            test=prepared.tests,
            callbacks=[log, *callbacks],
            **config.arguments(folder),
        )
    except GivenUp as error:
        save(error.run)
        raise
    save(run)
    return run


@contextmanager
def _nothing_left_of_a_failed_start(folder: Path) -> Iterator[None]:
    """Empty a folder that was empty before, if there is an error before the first round is saved."""
    fresh = _is_empty(folder)
    try:
        yield
    except BaseException:
        if fresh and not checkpoint.files(folder) and not (folder / "model.safetensors").exists():
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _is_empty(folder: Path) -> bool:
    return all(p.suffix == NEW for p in folder.iterdir())


def _environment(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / ENVIRONMENT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _history(folder: Path) -> list[Row]:
    """Return the rounds in the checkpoint; after a crash, the log may be ahead of it."""
    return checkpoint.newest(folder, lambda path: checkpoint.history(path, read_tensors(path)[0])) or []
