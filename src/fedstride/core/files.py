"""Atomic file replacement; tensors as safetensors, the rest as JSON, never pickle."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstride.core.errors import InvalidInput, Unsaved
from fedstride.core.message import pack, unpack

NEW = ".new"  # suffix of unfinished files


def replace_file(path: Path, content: str | bytes, private: bool = False) -> None:
    """Write a new file beside the old one, flush it, and rename it: after a crash, one of the two is intact.

    A private file can be read by its owner only.
    """
    new = path.with_name(path.name + NEW)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(new, "wb", opener=open_private if private else None) as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise _unsaved(path, error) from error


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner can read: the opener of open()."""
    handle = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(handle, 0o600)  # in case the file was there
    return handle


def append(path: Path, text: str) -> None:
    """Append text to a file."""
    try:
        with open(path, "a") as file:
            file.write(text)
    except OSError as error:
        raise _unsaved(path, error) from error


def _unsaved(path: Path, error: OSError) -> Unsaved:
    return Unsaved(
        f"{path}: cannot be written ({error.strerror or error}). Files saved before are unchanged. "
        "Free some space, or use a writable folder."
    )


def _flush_folder(folder: Path) -> None:
    """Flush the folder, so that the new name survives a power cut, if the system supports it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], private: bool = False) -> None:
    """Replace a file by tensors and metadata."""
    replace_file(path, pack(tensors, meta), private)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (tensors, metadata) of a file written by write_tensors()."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise InvalidInput(f"{path}: not a file.")
        data = path.read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "not enough memory"
        raise InvalidInput(f"{path}: cannot be read ({reason}).") from error
    return unpack(data, str(path))
