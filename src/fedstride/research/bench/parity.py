"""fedstride bench parity: compare every recipe on every engine with the local engine, after each round.

torchrun must give bit-identical results; Flower's nodes, which compute clients separately, equal ones up to rounding.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstride.algorithm.text import algorithm_of
from fedstride.core.message import unpack
from fedstride.engine import Engine, Local, Torchrun
from fedstride.research.bench.cases import LOSS, PROBLEM, SIZES, Digits, Models, keep, write_digits
from fedstride.research.bench.engines import EngineFailed
from fedstride.research.bench.launch import JOB, Launched, missing
from fedstride.research.bench.show import Rows, as_markdown
from fedstride.research.bench.speed import Say, machine
from fedstride.training.train import train

MODULE = "fedstride.research.bench.parity"
EXACT = (
    "participants",
    "lost",
    "gradients",
    "forwards",
    "bytes_up",
    "bytes_down",
)  # counts that must be equal on every engine
GOOD = ("kept", "not installed", "not run")  # not run: in a record that is combined from several runs
ROUNDING = 1e-10  # largest difference of a model, relative to its norm


def file(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.safetensors"


def here(folder: Path, recipes: Sequence[str], rounds: int, engine: Engine) -> None:
    """Run all recipes on an engine of this process."""
    for recipe in recipes:
        models, case = Models(), Digits(recipe, str(folder.parent))
        given = case.arguments(rounds)
        given["algorithm"] = algorithm_of(given["algorithm"])
        clients = [case.samples(c) for c in range(case.clients)]
        run = train(case.model(), LOSS, clients, test=case.test(), engine=engine, callbacks=[models], **given)
        if engine.leads:
            keep(file(folder, recipe), models.found, list(run.history))


@dataclass(frozen=True)
class Lane:
    """An engine that is compared."""

    start: Callable[[Launched, str, dict[str, Any]], None]  # (launcher, name, job)
    bits: bool = False  # whether it guarantees bit-identical results
    needs: tuple[str, ...] = ()  # required packages


def _torchrun(processes: int) -> Lane:
    return Lane(lambda at, name, job: at.torchrun(name, MODULE, job, processes), bits=True)


LANES = {
    "torchrun-2": _torchrun(2),
    "torchrun-3": _torchrun(3),
    "simulation": Lane(lambda at, name, job: at.simulation(name, job, len(SIZES)), needs=("flwr", "ray")),
    "deployment": Lane(lambda at, name, job: at.deployment(name, job, len(SIZES)), needs=("flwr",)),
}


def measure(
    recipes: Sequence[str], lanes: Sequence[str], rounds: int, deployment_rounds: int, say: Say
) -> dict[str, Any]:
    load, about = os.getloadavg()[0], {}
    found: dict[str, dict[str, Any]] = {recipe: {} for recipe in recipes}
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (folder / "local").mkdir()
        write_digits(folder)
        say(f"local: {len(recipes)} recipes")
        here(folder / "local", recipes, rounds, Local())
        for name in lanes:
            n = min(rounds, deployment_rounds) if name == "deployment" else rounds
            start = time.monotonic()
            note = _run(LANES[name], name, folder, {"do": "parity", "recipes": list(recipes), "rounds": n}, say)
            about[name] = {"rounds": n, "bits": LANES[name].bits, "note": note, "seconds": time.monotonic() - start}
            for recipe in recipes:
                found[recipe][name] = compare(
                    file(folder / "local", recipe), file(folder / name, recipe), n, about[name]
                )
    return {
        **{"machine": machine(), "load": load, "problem": PROBLEM, "rounds": rounds, "bound": ROUNDING},
        **{"engines": about, "recipes": found},
    }


def _run(lane: Lane, name: str, folder: Path, job: dict[str, Any], say: Say) -> str:
    """Run a lane; return the reason if some results are missing."""
    if note := missing(*lane.needs):
        return note
    expected = [file(folder / name, recipe) for recipe in job["recipes"]]
    try:
        with Launched(folder) as at:
            lane.start(at, name, job)
            at.wait(name, say, expected, f"recipes, {job['rounds']} rounds each")
    except EngineFailed as error:
        return str(error)
    return ""


def compare(expected: Path, found: Path, rounds: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the results of an engine with the first rounds of the local one."""
    if not found.exists():
        return {"status": "not installed" if about["note"].startswith("not installed") else "failed"}
    (x, history), (own, rows) = _read(expected), _read(found)
    x, history = x[:rounds], history[:rounds]
    counted = [[row[name] for name in EXACT] for row in rows] == [[row[name] for name in EXACT] for row in history]
    same = rows == history and x.shape == own.shape and bool(torch.equal(x, own))
    apart = float(((own - x).norm(dim=1) / x.norm(dim=1)).max()) if x.shape == own.shape else float("inf")
    kept = same if about["bits"] else counted and apart <= ROUNDING
    return {"status": "kept" if kept else "missed", "same_bits": same, "same_counts": counted, "difference": apart}


def _read(path: Path) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return (models, history without seconds)."""
    tensors, meta = unpack(path.read_bytes(), str(path))
    return tensors["x"], [{k: v for k, v in row.items() if k != "seconds"} for row in meta["history"]]


def kept(report: Mapping[str, Any]) -> bool:
    return all(cell["status"] in GOOD for row in report["recipes"].values() for cell in row.values())


def table(report: Mapping[str, Any]) -> Rows:
    engines = report["engines"]
    rows = [["recipe", *(f"{name}, {about['rounds']} rounds" for name, about in engines.items()), ""]]
    for recipe, cells in report["recipes"].items():
        good = all(cell["status"] in GOOD for cell in cells.values())
        shown = [_cell(cells[name]) for name in engines]
        rows.append([recipe, *shown, "kept" if good else "missed"])
    return rows


def _cell(cell: Mapping[str, Any]) -> str:
    if "difference" not in cell:
        return str(cell["status"])
    if cell["same_bits"]:
        return "same bits"
    told = f"{cell['difference']:.1e}" if cell["difference"] else "0"
    return told if cell["same_counts"] else f"{told}, other counts"


def notes(report: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {about['note']}" for name, about in report["engines"].items() if about["note"]]


def about(report: Mapping[str, Any]) -> str:
    """Describe the figures."""
    cells = [c["difference"] for row in report["recipes"].values() for c in row.values() if "difference" in c]
    seconds = ", ".join(f"{name} {about['seconds']:.0f} s" for name, about in report["engines"].items())
    return (
        f"Problem: {report['problem']}. The largest difference from the local engine's model after any round, relative to its "
        f"norm, is {max(cells, default=0.0):.1e}. torchrun must be bit-identical in the model and in the history except for "
        f"seconds. Flower must differ by less than {report['bound']:.0e} and have the same counts. "
        f"Duration: {seconds}; load {report['load']:.1f} before the run."
    )


def markdown(report: Mapping[str, Any]) -> str:
    return "\n\n".join([about(report), as_markdown(table(report)), *(f"- {note}" for note in notes(report))])


if __name__ == "__main__":  # started by torchrun
    place = Path(sys.argv[1])
    job = json.loads((place / JOB).read_text())
    here(place, job["recipes"], job["rounds"], Torchrun())
