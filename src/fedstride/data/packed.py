"""What is in a file that may be packed; one that would fill the memory is refused."""

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

MOST, RATIO = 2**30, 100  # bytes of a packed file, or times its size: few bytes can unpack to more than any memory
DAMAGED = (
    *(OSError, EOFError, ValueError, ArithmeticError, RuntimeError, MemoryError),  # what readers make of a wrong file
    *(zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


class Bounded(io.RawIOBase):
    """What is in a packed file of that many bytes, as long as it can be meant."""

    def __init__(self, file: Any, packed: int) -> None:
        self.file, self.left = file, max(MOST, RATIO * packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.file.read(len(buffer))
        self.left -= len(part)
        if self.left < 0:
            raise ValueError(f"unpacked it is more than {RATIO} times as large")
        buffer[: len(part)] = part
        return len(part)


def _zip(path: Path) -> IO[bytes]:
    archive = zipfile.ZipFile(path)
    if len(archive.namelist()) != 1:
        raise ValueError(f"it holds {len(archive.namelist())} files; expected one")
    return archive.open(archive.namelist()[0])


OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zip": _zip}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, unpacked if its name says that it is packed."""
    opener = OPENERS.get(path.suffix)
    with path.open("rb") if opener is None else opener(path) as file:
        yield file if opener is None else io.BufferedReader(Bounded(file, path.stat().st_size), 2**20)


def bounded(size: int) -> None:
    """Refuse a part of an archive by the size that it declares."""
    if size > MOST:
        raise ValueError(f"a file of {size} bytes is in it; expected at most {MOST}")
