"""Runs on disk: tensors as safetensors, the rest as JSON; never pickle. Files are replaced, not rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedstride.errors import InvalidInput

FORMAT = 1
NAME = "checkpoint.safetensors"


def replace_file(path: Path, write: Any) -> None:
    """Write a new file beside the old one, flush it, then take its place: a crash leaves one of the two whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    try:
        write(new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        new.chmod(0o644)  # safetensors writes for its owner alone
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    own = {k: v.detach().clone().contiguous() for k, v in tensors.items()}
    text = {"fedstride": json.dumps({"format": FORMAT, **meta})}
    replace_file(path, lambda new: save_file(own, str(new), text))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(str(path), "pt") as file:
            meta = json.loads((file.metadata() or {}).get("fedstride", "{}"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InvalidInput(f"{path}: not a readable file of fedstride ({error}).") from error
    if meta.get("format") != FORMAT:
        raise InvalidInput(f"{path}: format {meta.get('format')!r} is unknown to this version; expected {FORMAT}.")
    return tensors, meta
