"""The memory of a node's client, in files: Flower's own state is lost when the node's process ends."""

from __future__ import annotations

from pathlib import Path

from fedstride.core.errors import Corrupt, FedstrideError
from fedstride.core.files import replace_file
from fedstride.core.message import pack, unpack
from fedstride.core.rows import State

FOLDER = "fedstride-memory"


class MemoryLost(FedstrideError):
    """A memory file that the server refers to is missing or damaged."""


class Memory:
    """The memory of one client in one run: a folder with a file for each state that the server may return to."""

    def __init__(self, folder: Path, token: str, client: int) -> None:
        self.folder = folder / token / str(client)

    def read(self, name: str) -> tuple[State, int]:
        """Return the memory of this name, and the round in which it was written."""
        path = self.folder / f"{name}.safetensors"
        try:
            tensors, meta = unpack(path.read_bytes(), str(path))
        except (OSError, Corrupt) as error:
            raise MemoryLost(f"cannot read the client's memory in {path} ({error}).") from error
        return tensors, int(meta["round"])

    def write(self, name: str, tensors: State, round: int) -> None:
        replace_file(self.folder / f"{name}.safetensors", pack(tensors, {"round": round}), private=True)

    def forget(self, retain: tuple[str, ...], before: tuple[int, int]) -> None:
        """Delete files older than `before`, a (round, call), unless retained; newer ones may be of a faster process."""
        for path in self.folder.glob("*.safetensors"):
            round, call, _ = path.stem.split("-", 2)
            if (int(round), int(call)) < before and path.stem not in retain:
                path.unlink(missing_ok=True)


def name(round: int, call: int, incarnation: str) -> str:
    """Return a file name. A server that resumes is a new incarnation, so repeated rounds get other names."""
    return f"{round}-{call}-{incarnation}"
