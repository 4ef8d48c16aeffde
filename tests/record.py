"""The figures of long tests, in one file: docs/reliability.json."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fedstride as fs
from fedstride.core.files import replace_file

Figures = dict[str, Any]


@cache
def about() -> Figures:
    """When, and with what: `code` is git's name for the folder of the package, the same in every commit that has this code."""
    asked = ["git", "rev-parse", "--short", "HEAD:src/fedstride"]
    found = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True)
    versions = {"fedstride": fs.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"date": datetime.now(UTC).date().isoformat(), "versions": versions, "code": found.stdout.split()}


def read(path: Path | None, name: str) -> Figures:
    """What the file says under a name; nothing, if it does not."""
    known = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return dict(known.get(name, {}))


def write(path: Path, name: str, figures: Figures) -> None:
    """Several tests may write at the same time, each under its own name."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = json.loads(path.read_text()) if path.exists() else {}
        replace_file(path, json.dumps({**known, name: figures}, indent=2) + "\n")
    finally:
        os.close(folder)


def added(before: Any, now: Any) -> Any:
    """Numbers and counts are added up, lists joined without repetition; of the rest, the new one stays."""
    if before is None or now is None:
        return before if now is None else now
    if isinstance(now, dict):
        return {key: added(before.get(key), now.get(key)) for key in {**before, **now}}
    if isinstance(now, list):
        return list(dict.fromkeys([*before, *now]))
    return before + now if isinstance(now, int | float) else now
