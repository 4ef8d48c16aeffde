"""Resuming runs: find the newest unfinished one, and compare its configuration with what the user asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstride.app.config import Config, nested, read_toml, resolve
from fedstride.app.functions import HUGGING_FACE, is_function
from fedstride.app.presets import TASKS, name_of
from fedstride.app.run_folder import CONFIG, HISTORY, status
from fedstride.core.errors import InvalidInput
from fedstride.training.checkpoint import in_use

MAY_CHANGE = (
    "training.rounds",
    "training.checkpoints.",
)  # beginnings of settings that finished rounds do not depend on


@dataclass(frozen=True)
class Request:
    """What the user asks for: a task, a TOML file and single settings with dotted names."""

    task: str | None = None
    file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        """Return the configuration of a new run."""
        return resolve(self.task, self.file, self.settings)

    def explicit(self) -> dict[str, Any]:
        """Return the settings that the user gave, by dotted names; an algorithm with a name is one setting."""
        given: dict[str, Any] = {}
        for layer in ({} if self.file is None else read_toml(self.file), nested(self.settings)):
            given |= dict(_flat(layer))
        if self.task in TASKS:
            given["task"] = self.task
        elif self.task is not None:
            given |= {"task": name_of(self.task), "data.source": self.task}
        return given


def resumed(folder: Path, request: Request) -> Config:
    """Return the configuration of the run in a folder, with more rounds if the user asks for them.

    Raises:
        InvalidInput: if the user asks for other settings than those of the run; all of them are named.
    """
    own, given = resolve(file=folder / CONFIG), request.explicit()
    differ = [
        f"{key} is {_text(mine)} there, and {_text(value)} was asked for"
        for key, value in given.items()
        if not key.startswith(MAY_CHANGE) and not _same(key, mine := _value(own, key), value)
    ]
    if differ:
        raise InvalidInput(
            f"--out {folder}: the folder contains a run with another configuration: {'; '.join(differ)}. To continue the "
            "run, leave these settings out; for another run, choose another folder."
        )
    return resolve(file=folder / CONFIG, settings={k: v for k, v in given.items() if k.startswith(MAY_CHANGE)})


def newest_unfinished(root: Path, request: Request) -> Path:
    """Return the newest unfinished run with the settings that the user asks for; runs of living processes are left out."""
    found = [p.parent for p in root.glob(f"*/{CONFIG}")]
    found.sort(key=_last_used, reverse=True)
    waiting = [p for p in found if status(p) == "started" and not in_use(p)]
    if not waiting:
        if not found:
            raise InvalidInput(f"--resume: there are no runs under {root}/; name the folder of a run with --out.")
        raise InvalidInput(
            f"--resume: no run under {root}/ is unfinished. For more rounds of the newest: fedstride run --out {found[0]} "
            "--resume --rounds N"
        )
    first: InvalidInput | None = None
    for folder in waiting:
        try:
            resumed(folder, request)
        except InvalidInput as error:
            first = first or error
        else:
            return folder
    assert first is not None
    raise first


def _last_used(folder: Path) -> float:
    return max(path.stat().st_mtime for name in (CONFIG, HISTORY) if (path := folder / name).is_file())


def _flat(layer: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        whole = at == "" and key == "algorithm" and isinstance(value, dict) and "name" in value
        if isinstance(value, dict) and not whole:
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _value(config: Config, key: str) -> Any:
    value: Any = config.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _same(key: str, mine: Any, asked: Any) -> bool:
    if key == "data.source" and not is_function(str(asked)) and not str(asked).startswith(HUGGING_FACE):
        return Path(str(mine)).expanduser().absolute() == Path(str(asked)).expanduser().absolute()
    if isinstance(mine, tuple | list) and isinstance(asked, tuple | list):
        return list(mine) == list(asked)
    return bool(mine == (None if asked == "none" else asked))


def _text(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        arguments = ",".join(f"{k}={v}" for k, v in value.items() if k != "name")
        return f"{value['name']}({arguments})" if arguments else str(value["name"])
    return "none" if value is None else str(value)
