"""Sweeps: many runs, each saved to its own file. Interrupted sweeps can be continued; finished runs are not repeated."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedstride.app import run_folder
from fedstride.app.config import Config, resolve
from fedstride.core.errors import GivenUp, InvalidInput
from fedstride.core.files import replace_file
from fedstride.core.losses import correct
from fedstride.core.losses import resolve as loss_of
from fedstride.data.federation import Federation
from fedstride.engine import Local
from fedstride.engine.local import cores
from fedstride.training.rounds import Event
from fedstride.training.train import train

Result = dict[str, Any]
Scores = tuple[float | None, float | None]  # loss, accuracy
Tell = Callable[[int, int, str], object]  # number done, total number, name of the last one
KEPT = (
    "round",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "server_step",
    "client_step",
    "trials",
    "drift",
    "update",
    "turn",
)
ROUNDS = "rounds.jsonl"  # of a cell that is not complete
SUMMED = ("bytes_up", "bytes_down", "gradients", "forwards")


@dataclass(frozen=True)
class Cell:
    """A unit of work with a unique name: a module-level function and its arguments. Arguments and result must fit JSON.

    A work that `resumes` also gets a folder, from which it continues after an interruption, and writes its rounds there.
    """

    name: str
    work: Callable[..., Result]
    arguments: dict[str, Any]
    resumes: bool = False

    def file(self, folder: Path) -> Path:
        plain = re.sub(r"[^A-Za-z0-9_.=-]+", "_", self.name)
        short = plain if len(plain) <= 150 else f"{plain[:130]}_{sha256(plain.encode()).hexdigest()[:16]}"
        return folder / f"{short}.json"


def complete(
    cells: Sequence[Cell], folder: Path, tell: Tell = lambda done, total, name: None, workers: int | None = None
) -> dict[str, Result]:
    """Return the results by name; compute those that the folder does not contain, with one process per core."""
    folder.mkdir(parents=True, exist_ok=True)
    unique = {cell.name: cell for cell in cells}
    for cell in cells:
        if cell != unique[cell.name]:
            raise InvalidInput(f"two different cells are named {cell.name!r}; expected unique names.")
    found = saved(cells, folder)
    missing = [cell for name, cell in unique.items() if name not in found]
    if not missing:
        return found
    tell(len(found), len(unique), "")
    workers = min(workers or cores(), len(missing))
    if workers == 1:
        for cell in missing:
            found[cell.name] = _one(cell, folder)
            tell(len(found), len(unique), cell.name)
        return {name: found[name] for name in unique}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_calm) as pool:
        try:
            running = {pool.submit(_one, cell, folder): cell.name for cell in missing}
            for future in as_completed(running):
                found[running[future]] = future.result()
                tell(len(found), len(unique), running[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: found[name] for name in unique}


def saved(cells: Sequence[Cell], folder: Path) -> dict[str, Result]:
    """Return the results that the folder contains, by name."""
    return {cell.name: kept for cell in cells if (kept := _kept(cell, folder)) is not None}


def begun(cells: Sequence[Cell], folder: Path) -> dict[str, list[Result]]:
    """Return the rounds so far of cells that are not complete, by name."""
    files = {cell.name: cell.file(folder).with_suffix("") / ROUNDS for cell in cells}
    lines = {name: file.read_text().splitlines() for name, file in files.items() if file.exists()}
    return {name: list({row["round"]: row for row in map(json.loads, some)}.values()) for name, some in lines.items()}


def _calm() -> None:
    """Initialise a worker: one thread, and ignore Ctrl-C, which the parent handles."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _kept(cell: Cell, folder: Path) -> Result | None:
    try:
        kept = json.loads(cell.file(folder).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(kept, dict) and kept.keys() >= {"arguments", "result"}
    return kept["result"] if whole and kept["arguments"] == json.loads(json.dumps(cell.arguments)) else None


def _one(cell: Cell, folder: Path) -> Result:
    start = time.perf_counter()
    own = cell.file(folder).with_suffix("")
    result = cell.work(**cell.arguments, **({"folder": own} if cell.resumes else {}))
    taken = time.perf_counter() - start
    seconds = result.pop("seconds", taken) if cell.resumes else taken  # of a resumed run: the sum of its parts
    kept = {"arguments": cell.arguments, "seconds": round(seconds, 2), "result": result}
    replace_file(cell.file(folder), json.dumps(kept))
    if cell.resumes:
        shutil.rmtree(own, ignore_errors=True)
    return result


def training(name: str, settings: dict[str, Any], task: str = "digits") -> Cell:
    """Return a cell that trains a task's preset with settings (dotted names), which are checked here."""
    config = resolve(task, settings=settings).model_dump(mode="json")
    for part, setting in (("training", "normalise"), ("model", "loss")):  # saved results are older than these settings
        if config[part][setting] is None:
            del config[part][setting]
    return Cell(name, trained, {"config": config})


def trained(config: dict[str, Any], scale: float = 1.0, pair: int = 0) -> Result:
    """Train with a configuration; `scale` multiplies all inputs.

    The result has the history, and the scores of the last iterate if the read-out is another one. For an averaged
    read-out, which is compared only at the end, these scores cover the last fifth of the rounds. `pair` adds the scores
    of the mean of the last two iterates from that round on, and the batch as a fraction of a client's data, on average.
    """
    chosen = Config.model_validate(config)
    prepared = _scaled(_prepared(chosen.data.model_dump_json(), chosen.model.model_dump_json()), scale)
    last: dict[int, Scores] = {}
    two: dict[int, Scores] = {}
    previous = parameters_to_vector(prepared.model.parameters()).detach().clone()
    readout = chosen.training.readout
    rounds = chosen.training.rounds
    quiet = {"last": rounds, "average": rounds - max(1, rounds // 5)}.get(readout or "", 0)

    def score(event: Event) -> None:
        nonlocal previous
        if event.metrics.get("test_loss") is not None:  # the round was evaluated
            if event.round > quiet:
                last[event.round] = _scores(prepared, event.x)
            if pair and event.round >= pair:
                two[event.round] = _scores(prepared, (event.x + previous) / 2)
        previous = event.x

    diverged = None
    try:
        run = train(
            prepared.model,
            prepared.loss,
            prepared.clients,
            chosen.make_algorithm(),
            test=prepared.test,
            callbacks=[score],
            **{**chosen.arguments(None), "rounds": rounds, "engine": Local(workers=1)},
        )
    except GivenUp as error:
        run, diverged = error.run, error.round
    if run.ended == "interrupted":  # a part of a run is not the result of a cell
        raise KeyboardInterrupt
    columns = {name: [_short(row[name]) for row in run.history] for name in KEPT}
    totals = {name: sum(row[name] for row in run.history) for name in SUMMED}
    at = [row["round"] for row in run.history]
    columns |= _columns("last", last, at) | (_columns("pair", two, at) if pair else {})
    batch = chosen.training.batch_size
    shares = [min(1.0, (batch or len(client)) / len(client)) for client in prepared.clients] if pair else []
    more = {"batch_share": statistics.fmean(shares)} if pair else {}
    return {"diverged": diverged, "history": columns, "totals": totals, **more}


def _columns(name: str, scores: dict[int, Scores], rounds: Sequence[int]) -> dict[str, list[float | None]]:
    found = [scores.get(t, (None, None)) for t in rounds]
    return {f"{name}_loss": [_short(loss) for loss, _ in found], f"{name}_accuracy": [right for _, right in found]}


@lru_cache(1)
def _prepared(data: str, model: str) -> run_folder.Prepared:
    return run_folder.prepare(Config.model_validate({"data": json.loads(data), "model": json.loads(model)}))


def _scaled(prepared: run_folder.Prepared, scale: float) -> run_folder.Prepared:
    if scale == 1:
        return prepared
    clients = Federation([(scale * inputs, targets) for inputs, targets in (c.take() for c in prepared.clients)])
    return replace(prepared, clients=clients, test=(scale * prepared.test[0], prepared.test[1]))


def _scores(prepared: run_folder.Prepared, x: torch.Tensor) -> Scores:
    """Return loss and accuracy on the test set at x."""
    model, (inputs, targets) = prepared.model, prepared.test
    start = parameters_to_vector(model.parameters()).detach().clone()
    vector_to_parameters(x, model.parameters())
    model.eval()
    with torch.no_grad():
        output = torch.cat([model(_fastest(part)) for part in torch.split(inputs, 1000)])
    vector_to_parameters(start, model.parameters())
    right = correct(output, targets)
    return float(loss_of(prepared.loss)(output, targets)), None if right is None else float(right) / len(targets)


def _fastest(inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs in the memory layout that suits pooling and convolutions of images."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def _short(value: float | None) -> float | None:
    """Round to seven digits, which is enough for tables and plots."""
    return None if value is None else float(f"{value:.7g}")
