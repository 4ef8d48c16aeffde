"""What a node's client remembers, in files of the node: Flower's own state would be lost with the node's process."""

from __future__ import annotations

from pathlib import Path

from fedstride.core.errors import Corrupt, FedstrideError
from fedstride.core.files import replace_file
from fedstride.core.message import pack, unpack
from fedstride.core.rows import State

FOLDER = "fedstride-memory"


class MemoryLost(FedstrideError):
    """A file that the server counts on and that is not there, or damaged."""


class Memory:
    """Of one client in one run: a folder with a file for every state that the server may come back to."""

    def __init__(self, folder: Path, token: str, client: int) -> None:
        self.folder = folder / token / str(client)

    def read(self, name: str) -> tuple[State, int]:
        """(what the client remembered under this name, in which round)."""
        path = self.folder / f"{name}.safetensors"
        try:
            tensors, meta = unpack(path.read_bytes(), str(path))
        except (OSError, Corrupt) as error:
            raise MemoryLost(f"what the client should remember is not in {path} ({error}).") from error
        return tensors, int(meta["round"])

    def write(self, name: str, tensors: State, round: int) -> None:
        replace_file(self.folder / f"{name}.safetensors", pack(tensors, {"round": round}))

    def forget(self, retain: tuple[str, ...], before: tuple[int, int]) -> None:
        """Delete what is older than this (round, call) and not to be retained. What is newer may be of a faster process."""
        for path in self.folder.glob("*.safetensors"):
            round, call, _ = path.stem.split("-", 2)
            if (int(round), int(call)) < before and path.stem not in retain:
                path.unlink(missing_ok=True)


def name(round: int, call: int, incarnation: str) -> str:
    """A server that goes on from an older checkpoint is another incarnation, and repeats rounds under other names."""
    return f"{round}-{call}-{incarnation}"
