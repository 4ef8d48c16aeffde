"""Read the evidence from a run or its folder: history, algorithm with its arguments, and facts about the data."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstride.algorithm import Algorithm
from fedstride.algorithm.text import PARTS
from fedstride.app.config import resolve
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.report.read import Comparison, Record, read
from fedstride.core.errors import FedstrideError, InvalidInput
from fedstride.core.files import read_tensors
from fedstride.training.result import Run


def of_run(run: Run) -> Evidence:
    rows = [{k: _finite(v) for k, v in row.items()} for row in run.history]
    facts = _facts({"engine": run.engine, "facts": run.facts})
    return _enough(Evidence(Record("run", rows), run.algorithm, facts=facts))


def of_folder(folder: Path) -> Evidence:
    record = _read(folder)
    if isinstance(record, Comparison):
        raise InvalidInput(f"diagnose: {folder} contains a comparison; expected one of the run folders in it.")
    return _of_record(record, folder)


def of_comparison(folder: Path) -> dict[str, Evidence]:
    """Return the evidence by folder name, without runs that have no finished round."""
    found = _read(folder)
    records = [r for group in found.groups.values() for r in group] if isinstance(found, Comparison) else []
    return {record.name: _of_record(record, folder / record.name) for record in records if record.rows}


def _read(folder: Path) -> Record | Comparison:
    if not folder.is_dir():
        raise InvalidInput(f"diagnose: the folder {folder} does not exist; expected one written by `fedstride run`.")
    try:
        return read(folder)
    except InvalidInput as error:
        raise InvalidInput(str(error).replace("report:", "diagnose:", 1)) from error


def _of_record(record: Record, folder: Path) -> Evidence:
    config = resolve(file=folder / "config.toml") if (folder / "config.toml").is_file() else None
    about = _about(folder / "run.safetensors")
    if config is None:
        return _enough(Evidence(record, _saved(about), facts=_facts(about)))
    algorithm, training = config.make_algorithm(), config.training
    if training.readout is not None:
        algorithm = replace(algorithm, readout=training.readout)
    full = training.batch_size is None and (training.epochs or 1) <= 1
    single = training.local_steps == 1 or (training.local_steps is None and full)
    return _enough(Evidence(record, algorithm, training.rounds, single, _facts(about)))


def _enough(evidence: Evidence) -> Evidence:
    if not evidence.rounds:
        raise InvalidInput("diagnose: the history is empty; expected at least one finished round.")
    return evidence


def _about(path: Path) -> dict[str, Any]:
    """Return the metadata saved by run.save(); empty for an unfinished run."""
    return read_tensors(path)[1] if path.is_file() else {}


def _facts(about: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about the data, and whether the run normalised its inputs."""
    engine, facts = (v if isinstance(v := about.get(name), dict) else {} for name in ("engine", "facts"))
    return {**facts, "normalised": engine.get("normalise") in (True, "scale")}


def _saved(about: dict[str, Any]) -> Algorithm | None:
    """Return the algorithm saved by run.save(), if it consists of parts of this package."""
    try:
        found = _built(ast.parse(str(about.get("algorithm")), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, FedstrideError):
        return None
    return found if isinstance(found, Algorithm) else None


def _built(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        make = {**PARTS, "Algorithm": Algorithm}[node.func.id]
        return make(**{str(k.arg): _built(k.value) for k in node.keywords})
    return ast.literal_eval(node)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
