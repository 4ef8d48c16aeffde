"""One folder for prepared data: a file per source, whole or not there."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedstride.core.errors import InvalidInput

Shapes = Mapping[str, tuple[int, ...]]
STALE = 3600  # seconds after which a file that was never finished was given up


def folder() -> Path:
    """FEDSTRIDE_DATA, or the platform's place for what can be made again."""
    if own := os.environ.get("FEDSTRIDE_DATA"):
        return Path(own).expanduser()
    home = Path.home()
    usual = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}.get(sys.platform)
    given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return Path(given or usual or home / ".cache") / "fedstride"


def path(name: str) -> Path:
    return folder() / f"{name}.safetensors"


def write(name: str, tensors: Mapping[str, Tensor]) -> Path:
    """Beside its place, flushed, then moved into it; a failure leaves what was there before."""
    place = path(name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for left in place.parent.glob(f".{name}-*.part"):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        new = place.with_name(f".{name}-{uuid.uuid4().hex}.part")
        try:
            save_file({k: v.contiguous() for k, v in tensors.items()}, new)
            new.chmod(0o644)  # safetensors writes for its owner alone; a cache may be shared
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.replace(new, place)
        finally:
            new.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{place}: cannot be written ({error}); set FEDSTRIDE_DATA to a folder with room that you may write to."
        ) from error
    return place


def read(name: str, shapes: Shapes) -> dict[str, Tensor]:
    """What was written, if it has the shapes that it must have."""
    place = path(name)
    try:
        tensors = load_file(place)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"{place}: damaged ({error}). Make it again: fedstride data get {name}") from error
    found = {k: tuple(v.shape) for k, v in tensors.items()}
    odd = [v.dtype for v in tensors.values() if v.dtype == torch.bool or v.is_floating_point() or v.is_complex()]
    if odd:
        raise InvalidInput(f"{place}: holds {odd[0]}; expected whole numbers. Make it again: fedstride data get {name}")
    if found != dict(shapes):
        raise InvalidInput(f"{place}: holds {found}; expected {dict(shapes)}. Make it again: fedstride data get {name}")
    return tensors
