"""The audit log: every change to it is found and named, kills and resumes leave a chain, cut ends are noticed."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app import cli
from fedstride.app.audit import COLUMN, FILE, START, Audit, file_hash, verify

CLIENTS = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(i)), torch.arange(6) % 3) for i in range(3)]


def train(folder, rounds=3, audited=True, **more):
    torch.manual_seed(0)
    audit = Audit(folder) if audited else None
    callbacks = [] if audit is None else [audit]
    run = fs.train(
        nn.Linear(4, 3), "cross_entropy", CLIENTS, rounds=rounds, checkpoint=folder, callbacks=callbacks, **more
    )
    run.save(folder)
    if audit is not None:
        audit.close(run.ended)
    return run


@pytest.fixture
def folder(tmp_path):
    train(tmp_path / "run")
    return tmp_path / "run"


def entries(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_the_entries_of_a_run(folder):
    started, *rounds, ended = entries(folder)
    assert [entry["event"] for entry in (started, *rounds, ended)] == ["started", "round", "round", "round", "ended"]
    assert [entry["entry"] for entry in entries(folder)] == [1, 2, 3, 4, 5]
    assert started["versions"]["fedstride"] == fs.__version__ and len(started["code"]["fedstride"]) == 64
    assert rounds[0]["exchanges"] == [{"kind": "updates", "answered": [0, 1, 2], "lost": {}}]
    assert len({entry["model"] for entry in rounds}) == 3
    assert ended["files"]["model.safetensors"] == file_hash(folder / "model.safetensors")
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    found = verify(folder)
    assert (found.broken, found.entries, found.rounds) == (None, 5, 3)


def test_the_run_is_the_same_to_the_bit(tmp_path):
    audited, plain = train(tmp_path / "one"), train(tmp_path / "two", audited=False)
    assert torch.equal(audited.x, plain.x)


def test_lost_clients_are_there_with_their_reasons(tmp_path):
    run = train(tmp_path, engine=fs.faults.Faulty(dropout=0.3, crash=0.3, seed=1))
    found = [entry for entry in entries(tmp_path) if entry["event"] == "round"]
    lost = [one["lost"] for entry in found for one in entry["exchanges"]]
    assert [len(entry["exchanges"]) for entry in found] == run.history["attempts"]
    assert {why for one in lost for why in one.values()} == {"no answer", "crashed"}
    assert [len(entry["exchanges"][-1]["lost"]) for entry in found] == run.history["lost"]


def changed(folder, number, change):
    lines = (folder / FILE).read_text().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    (folder / FILE).write_text("".join(lines))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_changed_entry_is_named(folder, number):
    changed(folder, number, lambda line: line.replace('"time": "2', '"time": "3'))
    assert f"entry {number + 1} does not follow entry {number}: one of the two was changed" in verify(folder).broken


def test_the_last_round_cannot_be_changed_because_the_history_has_its_hash(tmp_path):
    audit = Audit(tmp_path)
    fs.train(nn.Linear(4, 3), "cross_entropy", CLIENTS, rounds=2, checkpoint=tmp_path, callbacks=[audit])
    assert verify(tmp_path).broken is None
    changed(tmp_path, 3, lambda line: line.replace('"answered": [0, 1, 2]', '"answered": [0, 1]'))
    assert "the entry of round 2 is not the one that checkpoint-000002.safetensors has noted" in verify(tmp_path).broken


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "entry 3 has the number 4: entries are missing"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "entry 2 has the number 3"),
        (lambda lines: [*lines[:2], "rubbish\n", *lines[3:]], "entry 3 is not readable"),
        (lambda lines: [*lines[:2], "[]\n", *lines[3:]], "entry 3 is not readable"),
        (lambda lines: lines[1:], "entry 1 has the number 2"),
        (lambda lines: [], "is empty"),
        (lambda lines: lines[:3], "ends with entry 3, before round 3, which checkpoint-000003.safetensors has"),
        (lambda lines: lines[:1], "before round 1"),
        (lambda lines: [lines[0][:20]], "entry 1 is incomplete"),
    ],
)
def test_entries_that_are_missing_moved_or_cut_off(folder, change, found):
    lines = (folder / FILE).read_text().splitlines(keepends=True)
    (folder / FILE).write_text("".join(change(lines)))
    assert found in verify(folder).broken


def entry(**facts) -> bytes:
    return json.dumps({"entry": 1, "previous": START, **facts}).encode() + b"\n"


STARTED = entry(event="started")
HOSTILE = {
    "a round that overflows": (entry(event="round", round=math.inf), ""),
    "a number with control characters": (entry(event="started", entry="\x1b[31m"), ""),
    "files that are a list": (entry(event="ended", files=[1]), ""),
    "a file with a long name": (entry(event="ended", files={"a" * 5000: "0"}), ""),
    "a file outside": (entry(event="ended", files={"../../other": "0"}), ""),
    "a hash that is a list": (STARTED, json.dumps({"round": 1, COLUMN: [1]})),
    "a round that is a text": (STARTED, json.dumps({"round": "1", COLUMN: "0"})),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_log_from_somebody_else(case, tmp_path):
    log, history = HOSTILE[case]
    (tmp_path / FILE).write_bytes(log)
    (tmp_path / "history.jsonl").write_text(history)
    assert "\x1b" not in (verify(tmp_path).broken or "\x1b")


def test_a_history_of_deep_json_says_nothing(tmp_path):
    (tmp_path / FILE).write_bytes(STARTED)
    (tmp_path / "history.jsonl").write_text("[" * 100_000)
    assert verify(tmp_path).broken is None


def test_a_cut_off_end_is_found_by_a_hash_that_was_noted_elsewhere(folder):
    head = verify(folder).head
    assert verify(folder, head).broken is None
    lines = (folder / FILE).read_text().splitlines(keepends=True)
    (folder / FILE).write_text("".join(lines[:-1]))
    assert verify(folder).broken is None  # nothing in the folder knows about the last entry
    assert f"no entry has the hash {head}" in verify(folder, head).broken


def test_a_changed_model_is_found(folder):
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert "model.safetensors: was changed after the run ended" in verify(folder).broken
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: is missing" in verify(folder).broken


def test_a_resumed_run_continues_the_chain(folder):
    train(folder, rounds=5)
    assert [entry["event"] for entry in entries(folder)][4:] == ["ended", "started", "round", "round", "ended"]
    found = verify(folder)
    assert (found.broken, found.rounds) == (None, 5)


def test_a_broken_log_is_not_continued(folder):
    changed(folder, 2, lambda line: line.replace('"round": 1', '"round": 7'))
    before = (folder / FILE).read_bytes()
    with pytest.raises(fs.InvalidInput, match=r"entry 2 is round 7, after round 0\. Restore the file"):
        Audit(folder)
    assert (folder / FILE).read_bytes() == before


CHILD = """
import os, signal, sys
import torch
from tests.app.test_audit import CLIENTS, Audit, fs, nn
folder, at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
def kill(event):
    if event.round == at:
        os.kill(os.getpid(), signal.SIGKILL)
when = fs.Checkpoints(folder, every=2)
fs.train(nn.Linear(4, 3), "cross_entropy", CLIENTS, rounds=6, checkpoint=when, callbacks=[Audit(folder), kill])
"""


@pytest.mark.slow
def test_a_killed_run_is_resumed_with_an_intact_chain(tmp_path):
    """Killed after the entries of rounds 3 and 5, when the checkpoints have rounds 2 and 4: both are repeated."""
    for at in (3, 5):
        done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(at)], capture_output=True, timeout=120)
        assert done.returncode == -9, done.stderr
        assert verify(tmp_path).broken is None
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), "99"], check=True, timeout=120)
    rounds = [entry.get("round", entry["event"]) for entry in entries(tmp_path)]
    assert rounds == ["started", 1, 2, 3, "started", 3, 4, 5, "started", 5, 6]
    assert (verify(tmp_path).broken, verify(tmp_path).rounds) == (None, 6)
    models = {entry["round"]: set() for entry in entries(tmp_path) if "round" in entry}
    for entry in entries(tmp_path):
        if "round" in entry:
            models[entry["round"]].add(entry["model"])
    assert all(len(hashes) == 1 for hashes in models.values())  # repeated rounds give the same bits


def test_an_entry_that_a_power_cut_left_incomplete_is_replaced(folder):
    with (folder / FILE).open("ab") as file:
        file.write(b'{"entry": 6, "ti')
    assert verify(folder).broken is None
    Audit(folder)
    assert entries(folder)[-1]["removed_bytes_of_an_incomplete_entry"] == 16
    assert verify(folder).broken is None


def test_long_entries_are_chained(tmp_path):
    audit = Audit(tmp_path)
    for _ in range(3):
        audit.add("note", text="x" * 200_000)
    assert (verify(tmp_path).broken, verify(tmp_path).entries) == (None, 4)


def test_two_processes_write_one_chain(tmp_path):
    one, other = Audit(tmp_path), Audit(tmp_path)
    for _ in range(3):
        one.add("note")
        other.add("note")
    assert (verify(tmp_path).broken, verify(tmp_path).entries) == (None, 8)


def test_the_command_line(folder):
    done = CliRunner().invoke(cli.app, ["audit", "verify", str(folder)])
    assert done.exit_code == 0 and "intact: 5 entries, 3 rounds" in done.stdout
    assert verify(folder).head in done.stdout
    changed(folder, 3, lambda line: line.replace("updates", "updatez"))
    done = CliRunner().invoke(cli.app, ["audit", "verify", str(folder)])
    assert done.exit_code == 1 and "BROKEN" in done.stderr and "entry 4 does not follow entry 3" in done.stderr
    assert "3 entries before it are intact" in done.stderr
    nothing = CliRunner().invoke(cli.app, ["audit", "verify", str(folder.parent)])
    assert nothing.exit_code == 2 and "has no audit.jsonl" in nothing.stderr
