"""Attacks by files: run folders and checkpoints from strangers."""

from __future__ import annotations

import json
import os
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import fedstride as fs
from fedstride.core.files import read_tensors, write_tensors
from fedstride.core.message import pack
from tests.hostile.row import Seen
from tests.problems import learn

MEMORY, SECONDS = 2**30, 20.0


def header(text: bytes, tail: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + tail


def described(**tensors: object) -> bytes:
    return header(json.dumps({**tensors, "__metadata__": {"fedstride": "0 {}"}}).encode())


DEEP = b'{"__metadata__": ' + b"[" * 200_000
CONTENTS: dict[str, bytes] = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "header of 99 MB that is not there": struct.pack("<Q", 99 * 10**6) + b"{}",
    "deep JSON": header(DEEP),
    "header that is a list": header(b"[]"),
    "header that is not UTF-8": header(b'{"\xff": 1}'),
    "lone surrogates": header(b'{"__metadata__": {"fedstride": "\\ud800 {}"}}'),
    "number that overflows": header(b'{"__metadata__": {"fedstride": "0 1e999999"}}'),
    "deep JSON in the metadata": header(json.dumps({"__metadata__": {"fedstride": "0 " + "[" * 100_000}}).encode()),
    "tensor of 2^62 entries": described(x={"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**64]}),
    "tensor without bytes": described(x={"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}),
    "offsets below zero": described(x={"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}),
    "unknown type": described(x={"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}),
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "wrong format number": pack({}, {"format": 10**9}),
    "metadata that is not a table": header(json.dumps({"__metadata__": {"fedstride": "0 []"}}).encode()),
    "zip file": b"PK\x03\x04" + bytes(100),
}


@dataclass(frozen=True)
class File:
    """A file in place of a run's; reading it must end with an error of fedstride, in bounded memory and time."""

    what: str
    damage: Callable[[Path], None]
    use: Callable[[Path], object]
    expected = "an error of fedstride, within 1 GiB and 20 s"

    @property
    def name(self) -> str:
        return self.what

    def run(self) -> Seen:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            learn(checkpoint=folder).save(folder)
            self.damage(folder)
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
            try:
                self.use(folder)
                found = "no error"
            except fs.FedstrideError as error:
                found = f"{type(error).__name__}"
            except Exception as error:
                return Seen(False, f"{type(error).__name__}: {error}"[:100])
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            took = time.monotonic() - start
        return Seen(found != "no error" and grown < MEMORY and took < SECONDS, found)


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def checkpoints(data: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for path in folder.glob("checkpoint-*"):
            path.write_bytes(data)

    return damage


def false_checkpoints(**changes: object) -> Callable[[Path], None]:
    """Checkpoints with valid checksums and false contents."""

    def damage(folder: Path) -> None:
        for path in folder.glob("checkpoint-*"):
            tensors, meta = read_tensors(path)
            more = {k: v for k, v in changes.items() if isinstance(v, torch.Tensor)}
            write_tensors(path, {**tensors, **more}, {**meta, **{k: v for k, v in changes.items() if k not in more}})

    return damage


def resumed(folder: Path) -> fs.Run:
    return learn(checkpoint=folder, rounds=9)


LATER = {
    "history that is not compressed": {"history": torch.zeros(99, dtype=torch.uint8)},
    "history of another type": {"history": torch.zeros(99)},
    "model of another size": {"x": torch.zeros(10**6, dtype=torch.float64)},
    "round counter below zero": {"releases": "many"},
    "medians that are a text": {"medians": "x"},
    "mean squares of gradients of another size": {"squares": torch.zeros(99, dtype=torch.float64)},
}
ATTACKS = [
    *(File(f"model.safetensors: {k}", replaced("model.safetensors", v), fs.load) for k, v in CONTENTS.items()),
    File("model.safetensors: a pipe", pipe, fs.load),
    File("history.jsonl: deep JSON", replaced("history.jsonl", b"[" * 200_000), fs.load),
    File("history.jsonl: a number", replaced("history.jsonl", b"3\n"), fs.load),
    *(File(f"checkpoint: {k}", checkpoints(v), resumed) for k, v in list(CONTENTS.items())[:8]),
    *(File(f"checkpoint with a valid checksum: {k}", false_checkpoints(**v), resumed) for k, v in LATER.items()),
]
