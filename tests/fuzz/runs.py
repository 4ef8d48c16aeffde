"""Folders of runs: damaged ones, and a stranger's, whose files are whole and say something else."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app.cli import app
from fedstride.core.message import pack, unpack
from tests.fuzz import junk
from tests.fuzz.law import Target
from tests.fuzz.messages import tensors
from tests.problems import classification, classifier

Files = dict[str, bytes]  # by their paths in the folder
Damage = tuple[
    str, dict[str, bytes | str | None]
]  # the kind of folder, and what differs: None = missing, str = in PLACES
SMALL = ["data.clients=4", "data.samples=5", "training.cohort=2", "training.local_steps=1", "model.name=softmax"]


PLACES: dict[str, Callable[[Path], object]] = {  # in place of a file
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}
PERSONAL = {
    "metric": "accuracy",
    "rows": [{"client": "a", "samples": 5, "alone": 0.5, "shared": 0.6, "personalised": 0.7, "gain": 0.2}],
}


def command(*words: object) -> None:
    """Exit codes and words, no traceback."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
    if isinstance(done.exception, Exception):
        raise done.exception
    assert done.exit_code in (0, 1, 2), f"exit code {done.exit_code}: {done.output}"
    if done.exit_code:
        raise fs.FedstrideError(done.output)


@cache
def folder_of(kind: str) -> Files:
    """A good folder; its times are always the same, so that inputs can be repeated."""
    with (
        TemporaryDirectory() as root,
        mock.patch("fedstride.training.attempt.time", SimpleNamespace(perf_counter=lambda: 0.0)),
    ):
        folder, settings = Path(root) / "run", [word for pair in SMALL for word in ("--set", pair)]
        if kind == "file":
            with mock.patch("fedstride.engine.store.LIMIT", 0):
                _learn(folder, 2)
        elif kind == "python":
            _learn(folder, 2).save(folder)
        elif kind == "comparison":
            command(
                "compare", "--algorithms", "fedavg,scaffold", "--seeds", 1, "--rounds", 2, *settings, "--out", folder
            )
        else:
            command("run", "--algorithm", kind, "--rounds", 7, *settings, "--out", folder)
        found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    found["personal.json"] = _json(PERSONAL)
    return {name: content for name, content in found.items() if not name.endswith(".html")}


def _learn(folder: Path, rounds: int) -> fs.Run:
    return fs.train(
        classifier(), "cross_entropy", classification(), "scaffold", rounds=rounds, local_steps=1, checkpoint=folder
    )


@st.composite
def damaged(draw: Any, pattern: str, *kinds: str) -> Damage:
    """One or two files of a folder, changed; most of the time so that they are still whole."""
    kind = draw(st.sampled_from(kinds))
    files, changes = folder_of(kind), dict[str, bytes | str | None]()
    wanted = [name for name in files if re.search(pattern, name)]
    for name in draw(st.lists(st.sampled_from(wanted), min_size=1, max_size=2, unique=True)):
        act = draw(st.sampled_from(["content", "content", "content", "bytes", "bytes", "gone", "place"]))
        changed = _content(name, files[name]) if act == "content" else junk.mutated(files[name])
        instead = {"gone": st.none(), "place": st.sampled_from([*PLACES])}
        changes[name] = draw(instead.get(act, changed))
    return kind, changes


def _content(name: str, content: bytes) -> st.SearchStrategy[bytes]:
    """The same format with other facts."""
    if name.endswith(".json"):
        return junk.altered(json.loads(content)).map(_json)
    if name.endswith(".jsonl"):
        rows = [json.loads(row) for row in content.splitlines()]
        return junk.altered(rows).map(lambda new: b"\n".join(map(_json, new)) if isinstance(new, list) else _json(new))
    if name.endswith(".safetensors"):
        return _sealed(*unpack(content, name))
    return junk.mutated(content)


@st.composite
def _sealed(draw: Any, good: dict[str, torch.Tensor], meta: dict[str, Any]) -> bytes:
    """Under a right checksum; the history of a checkpoint is compressed JSON lines in a tensor."""
    content, facts = dict(good), meta
    act = draw(st.sampled_from(["tensors", "facts", *(["history"] * ("history" in good))]))
    if act == "tensors":
        content = draw(tensors(good))
    elif act == "facts":
        facts = draw(junk.altered(meta).filter(lambda m: isinstance(m, dict)))
    else:
        lines = draw(_content("history.jsonl", zlib.decompress(bytes(good["history"].numpy())))) or b" "
        packed = zlib.compress(lines) if draw(st.booleans()) else lines
        content["history"] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    try:
        return pack(content, facts)
    except (ValueError, TypeError, RecursionError):  # what JSON cannot say
        return pack(content, {})


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or too many levels
        return b"null"


def within(use: Callable[[Path], object]) -> Callable[[Damage], None]:
    """use(the folder), which must leave everything beside it alone."""

    def used(damage: Damage) -> None:
        kind, changes = damage
        with TemporaryDirectory() as root:
            folder = Path(root) / "inside" / "run"
            for name, content in {**folder_of(kind), **changes}.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, str):
                    PLACES[content](folder / name)
                elif content is not None:
                    (folder / name).write_bytes(content)
            try:
                use(folder)
            finally:
                around = [p for p in Path(root).rglob("*") if folder not in (p, *p.parents) and p != folder.parent]
                assert not around, f"{around} was written"

    return used


def loaded(folder: Path) -> None:
    run = fs.load(folder)
    fs.load(folder, classifier())
    assert run.history.frame() is not None
    run.save(folder)


def resumed(folder: Path) -> None:
    run = _learn(folder, 3)
    assert len(run.history) == 3


def resumed_with_a_file(folder: Path) -> None:
    """What clients remember is in a file of its own."""
    with mock.patch("fedstride.engine.store.LIMIT", 0):
        resumed(folder)


def again(folder: Path) -> None:
    """Without its model, a run is not finished: its last checkpoint is read again."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    command("run", "--config", folder / "config.toml", "--out", folder, "--resume", "--quiet")


RUNS, DRAWN = ("auto", "fedsls", "fedexp"), r"toml|json|run\.safe"
TARGETS = [
    Target("runs: load", damaged(r"model|run|history", "python"), within(loaded), 2),
    Target("runs: resume", damaged(r"checkpoint-000002", "python"), within(resumed), 2),
    Target("runs: resume with a file", damaged(r"checkpoint-|bin", "file"), within(resumed_with_a_file), 2),
    Target("runs: report", damaged(DRAWN, *RUNS, "comparison"), within(lambda folder: command("report", folder)), 2),
    Target(
        "runs: diagnose", damaged(DRAWN, *RUNS, "python", "comparison"), within(lambda f: command("diagnose", f)), 2
    ),
    Target("runs: run --resume", damaged(r"toml|checkpoint|history", *RUNS), within(again)),
]
