"""Read run and comparison folders for reports. Missing values are None; invalid files raise an error."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedstride.app.config import parse_toml
from fedstride.core.errors import InvalidInput
from fedstride.training.choices import WITHHELD
from fedstride.training.history import Row, is_private
from fedstride.training.result import SETTINGS

Series = list[float | None]
SEED = re.compile(r"""(\bseed["']?\s*[=:]\s*)[^\s,}\]]+""")  # a setting in TOML or JSON


@dataclass(frozen=True)
class Record:
    """One run."""

    name: str
    rows: list[Row]
    algorithm: str = ""
    seed: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, Any] = field(default_factory=dict)
    personal: dict[str, Any] = field(default_factory=dict)  # what fs.personal_report() found

    def column(self, name: str) -> Series:
        """Return the values of all rounds; None for missing values."""
        return [_number(row.get(name)) for row in self.rows]

    def has(self, name: str) -> bool:
        return any(v is not None for v in self.column(name))

    def last(self, name: str) -> float | None:
        return next((v for v in reversed(self.column(name)) if v is not None), None)

    def total(self, *names: str) -> float:
        return sum(v or 0 for name in names for v in self.column(name))

    def refused(self) -> Counter[str]:
        """Count the rejected answers over all rounds, by reason."""
        return sum(map(refused_in, self.rows), Counter[str]())

    def axes(self) -> dict[str, list[float]]:
        """Return the three x-axes of the curves, cumulative over the rounds."""
        rounds = [v if v is not None else i + 1 for i, v in enumerate(self.column("round"))]
        up, down, gradients = (self.column(name) for name in ("bytes_up", "bytes_down", "gradients"))
        traffic = [(u or 0) + (d or 0) for u, d in zip(up, down, strict=True)]
        return {
            "rounds": rounds,
            "bytes": list(accumulate(traffic)),
            "gradients": list(accumulate(v or 0 for v in gradients)),
        }


def refused_in(row: Row) -> Counter[str]:
    found = row.get("refused")
    known = found.items() if isinstance(found, dict) else ()
    return Counter({str(reason): int(n) for reason, count in known if (n := _number(count)) is not None})


@dataclass(frozen=True)
class Comparison:
    """Several algorithms on one task, each with several seeds."""

    task: str
    target: float | None
    groups: dict[str, list[Record]]  # by algorithm; includes runs without a finished round


def read(folder: Path) -> Record | Comparison:
    if (folder / "compare.json").is_file():
        return _comparison(folder)
    if not (folder / "history.jsonl").is_file():
        raise InvalidInput(f"report: {folder} contains neither history.jsonl nor compare.json; expected a run folder.")
    record = _record(folder)
    if not record.rows:
        raise InvalidInput(f"report: the history in {folder} is empty; expected at least one finished round.")
    return record


def _comparison(folder: Path) -> Comparison:
    path = folder / "compare.json"
    about = _json(path)
    groups: dict[str, list[Record]] = {}
    try:
        task, target, runs = str(about["task"]), about.get("target"), about["runs"]
        for run in runs:
            if not (folder / run["folder"]).resolve().is_relative_to(folder.resolve()):
                raise InvalidInput(f"report: {path} names {run['folder']!r}, which is outside of its folder.")
            record = _record(folder / run["folder"], str(run["algorithm"]), int(run["seed"]))
            groups.setdefault(record.algorithm, []).append(record)
    except InvalidInput:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"report: {path} does not describe a comparison ({type(error).__name__}: {error})."
        ) from error
    if not any(record.rows for group in groups.values() for record in group):
        raise InvalidInput(f"report: no run in {folder} has a finished round; expected at least one.")
    return Comparison(task, _number(target), groups)


def _record(folder: Path, algorithm: str = "", seed: int | None = None) -> Record:
    if not folder.is_dir():
        raise InvalidInput(f"report: the folder {folder} does not exist; expected a run folder.")
    path = folder / "history.jsonl"
    rows = [_steps(_object(f"{path}, line {i},", line)) for i, line in enumerate(_text(path).splitlines(), 1)]
    config, text = _config(folder, is_private(rows))
    environment = _json(folder / "environment.json")
    name, clients, personal = folder.resolve().name, _clients(folder), _personal(folder)
    if is_private(rows):  # pages are shared
        environment.pop("command", None)
        clients, personal = {}, {}
    return Record(name, rows, algorithm, seed, config, text, environment, clients, personal)


def _config(folder: Path, private: bool) -> tuple[dict[str, Any], str]:
    """Read the configuration of `fedstride run`, or the settings that run.save() writes, as values and as text.

    Those of a private run are returned without seeds.
    """
    toml, settings = (_text(folder / name) for name in ("config.toml", SETTINGS))
    if private:
        toml, settings = (SEED.sub(rf'\1"{WITHHELD}"', text) for text in (toml, settings))
    if not toml:
        return _object(str(folder / SETTINGS), settings or "{}"), settings
    try:
        return parse_toml(toml), toml
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"report: {folder / 'config.toml'} is not valid TOML ({error}).") from error


def _clients(folder: Path) -> dict[str, Any]:
    """Read clients.json: each value has one entry per client; empty if there is no file."""
    path = folder / "clients.json"
    found = _json(path)
    if not found:
        return {}
    sizes = found.get("sizes")
    n = len(sizes) if isinstance(sizes, list) else 0
    scores = float | int | None
    for key, kind in (("sizes", int), ("accuracy", scores), ("loss", scores), ("labels", list), ("names", str)):
        values = found.get(key)
        if values is None and key != "sizes":
            continue
        if not isinstance(values, list) or len(values) != n or not all(isinstance(v, kind) for v in values):
            raise InvalidInput(f"report: {path}: {key!r} is invalid: expected one entry per client.")
    labels = found.get("labels") or []
    classes = found.get("classes") or (range(len(labels[0])) if labels else [])
    counts = [*(sizes or []), *(v for row in labels for v in row)]
    if any(len(row) != len(classes) for row in labels) or not all(map(_is_count, counts)):
        raise InvalidInput(f"report: {path}: 'labels' is invalid: expected one count per class and client.")
    return {**found, "classes": [str(name) for name in classes]}


def _personal(folder: Path) -> dict[str, Any]:
    """Read personal.json: the scores of every client alone, with the shared model, and personalised."""
    path = folder / "personal.json"
    found = _json(path)
    if not found:
        return {}
    rows, names = found.get("rows"), ("alone", "shared", "personalised", "gain")
    whole = isinstance(rows, list) and rows and all(isinstance(row, dict) and "client" in row for row in rows)
    if not whole or any(_number(row.get(name)) is None for row in rows for name in names):  # type: ignore[union-attr]
        raise InvalidInput(f"report: {path}: 'rows' is invalid: expected the scores of each client.")
    return {"metric": str(found.get("metric")), "rows": rows}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(path: Path) -> dict[str, Any]:
    return _object(str(path), _text(path) or "{}")


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"report: {name} is not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"report: {name} contains a {type(found).__name__}; expected a JSON object.")
    return found


def _finite(text: str) -> float | None:
    """Convert to float; None for NaN and infinities, which charts and browser JSON cannot represent."""
    return value if math.isfinite(value := float(text)) else None


def _text(path: Path) -> str:
    """Return the content of a file; empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"report: {path} cannot be read ({error}).") from error


def _number(value: Any) -> float | None:
    """Return the value if charts and sums can represent it, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100 else None


def _steps(row: Row) -> Row:
    steps = row.get("client_steps")
    return {**row, "client_steps": [_number(v) for v in steps]} if isinstance(steps, list) else row
