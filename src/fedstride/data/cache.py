"""Cache of prepared data: one file per source, written atomically."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedstride.core.errors import InvalidInput

Shapes = Mapping[str, tuple[int, ...]]
STALE = 3600  # seconds after which an unfinished file counts as abandoned


def folder() -> Path:
    """Return the cache folder: FEDSTRIDE_DATA, or the platform's cache directory."""
    if own := os.environ.get("FEDSTRIDE_DATA"):
        return Path(own).expanduser()
    return user_cache_path("fedstride", appauthor=False, opinion=False)  # not in a folder named Cache on Windows


def path(name: str) -> Path:
    return folder() / f"{name}.safetensors"


def write(name: str, tensors: Mapping[str, Tensor]) -> Path:
    """Write to a temporary file, flush it, and move it into place; a failure leaves the previous file unchanged."""
    place = path(name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob(f".{name}-*.part"):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        new = place.with_name(f".{name}-{uuid.uuid4().hex}.part")
        try:
            save_file({k: v.contiguous() for k, v in tensors.items()}, new)
            new.chmod(0o644)  # safetensors creates files readable only by the owner, but a cache may be shared
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.replace(new, place)
        finally:
            new.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{place}: cannot be written ({error}); set FEDSTRIDE_DATA to a writable folder with enough space."
        ) from error
    return place


def read(name: str, shapes: Shapes) -> dict[str, Tensor]:
    """Read the tensors of a source and check their shapes."""
    place = path(name)
    try:
        tensors = load_file(place)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"{place}: damaged ({error}). Rebuild it with: fedstride data get {name}") from error
    found = {k: tuple(v.shape) for k, v in tensors.items()}
    odd = [v.dtype for v in tensors.values() if v.dtype == torch.bool or v.is_floating_point() or v.is_complex()]
    if odd:
        raise InvalidInput(f"{place}: contains {odd[0]}; expected integers. Rebuild it with: fedstride data get {name}")
    if found != dict(shapes):
        raise InvalidInput(
            f"{place}: contains {found}; expected {dict(shapes)}. Rebuild it with: fedstride data get {name}"
        )
    return tensors
