"""Read files that may be compressed; refuse those that would expand to fill the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

MOST, RATIO = 2**30, 100  # limit: the larger of MOST bytes and RATIO times the compressed size (decompression bombs)
DAMAGED = (
    *(OSError, EOFError, ValueError, ArithmeticError, RuntimeError, MemoryError),  # raised by readers of invalid files
    *(zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


class Bounded(io.RawIOBase):
    """The content of a compressed file of `packed` bytes, up to a plausible size."""

    def __init__(self, file: Any, packed: int) -> None:
        self.file, self.left = file, max(MOST, RATIO * packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.file.read(len(buffer))
        self.left -= len(part)
        if self.left < 0:
            raise ValueError(f"it expands to more than {RATIO} times its size")
        buffer[: len(part)] = part
        return len(part)


def _zip(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    if len(archive.namelist()) != 1:
        raise ValueError(f"it contains {len(archive.namelist())} files; expected one")
    return archive.open(archive.namelist()[0])


OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zip": _zip}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed according to its name."""
    opener = OPENERS.get(path.suffix)
    with path.open("rb") if opener is None else opener(path) as file:
        yield file if opener is None else io.BufferedReader(Bounded(file, path.stat().st_size), 2**20)


def bounded(size: int) -> None:
    """Refuse an archive member whose declared size is too large."""
    if size > MOST:
        raise ValueError(f"it contains a file of {size} bytes; expected at most {MOST}")
