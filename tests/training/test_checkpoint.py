"""Checkpoints: a run resumes where it stopped, and never from another run's file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.core.files import read_tensors, write_tensors
from fedstride.training.checkpoint import files
from tests.problems import classification, classifier, learn, same_bits

# The laws of resuming are tested for every algorithm in test_conformance.py.


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    whole = learn("fedexp", checkpoint=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    events = []
    again = learn("fedexp", checkpoint=tmp_path, callbacks=[events.append])
    assert same_bits(again, whole)
    assert again.history == whole.history
    assert events == []
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_may_be_made_longer(tmp_path):
    learn(checkpoint=tmp_path, rounds=2)
    assert same_bits(learn(checkpoint=tmp_path, rounds=5), learn(rounds=5))


@pytest.mark.parametrize("buffers", ["average", "local", "frozen"])
def test_statistics_are_part_of_a_checkpoint(buffers, tmp_path):
    def go(**options):
        model = classifier(middle=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()))
        return learn(model=model, buffers=buffers, local_steps=2, cohort=0.5, **options)

    go(checkpoint=tmp_path, rounds=2)
    assert same_bits(go(checkpoint=tmp_path, rounds=4), go(rounds=4))


def test_the_number_of_workers_may_change(tmp_path):
    learn("scaffold", checkpoint=tmp_path, rounds=2, batch_size=3, engine=fs.engine.Local(workers=3))
    resumed = learn("scaffold", checkpoint=tmp_path, rounds=4, batch_size=3, engine=fs.engine.Local(workers=1))
    assert same_bits(resumed, learn("scaffold", rounds=4, batch_size=3))


OTHER = {
    "algorithm": {"algorithm": fs.recipes.fedavg(lr=0.2)},
    "seed": {"seed": 1},
    "batch_size": {"batch_size": 2},
    "sampler": {"cohort": 2},
    "clients": {"clients": classification((6, 9, 5))},
    "sizes": {"clients": classification((6, 9, 5, 7))},
    "dtype": {"model": classifier(torch.float32), "clients": classification(dtype=torch.float32)},
    "parameters": {"model": nn.Linear(4, 3).double()},
    "options": {"weight_decay": 0.1},
    "weights": {"weights": "samples"},
    "local_steps": {"local_steps": 7},
}


@pytest.mark.parametrize("what", OTHER)
def test_a_checkpoint_of_another_run_is_refused(what, tmp_path):
    learn("fedavg", checkpoint=tmp_path, rounds=2)
    before, events = [path.read_bytes() for path in files(tmp_path)], []
    with pytest.raises(fs.InvalidInput, match=r"checkpoint=.* belongs to another run"):
        learn(**{"algorithm": "fedavg", "rounds": 4, **OTHER[what]}, checkpoint=tmp_path, callbacks=[events.append])
    assert events == []
    assert [path.read_bytes() for path in files(tmp_path)] == before


FIRST = "checkpoint-000001.safetensors"
DAMAGE = {
    "empty": lambda data: b"",
    "another file": lambda data: b"not a checkpoint",
    "no tensors": lambda data: b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ",
    "truncated": lambda data: data[:-40],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "one bit of the header": lambda data: data.replace(b'"seed', b'"seee'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(damage, tmp_path):
    learn("scaffold", checkpoint=tmp_path, rounds=3)
    newest, before = files(tmp_path)
    newest.write_bytes(DAMAGE[damage](newest.read_bytes()))
    kept = newest.read_bytes()
    with pytest.warns(fs.FedstrideWarning, match=rf"{newest.name}.*continues from {before.name}"):
        again = learn("scaffold", checkpoint=tmp_path, rounds=5)
    assert same_bits(again, learn("scaffold", rounds=5))
    assert (tmp_path / (newest.name + ".corrupt")).read_bytes() == kept


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_an_intact_checkpoint_nothing_is_changed(damage, tmp_path):
    learn(checkpoint=fs.Checkpoints(tmp_path, keep=1))
    path = files(tmp_path)[0]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    kept = path.read_bytes()
    with pytest.raises(fs.InvalidInput, match=rf"no usable checkpoint in .*{path.name}"):
        learn(checkpoint=tmp_path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [kept]


def test_a_saved_model_is_not_a_checkpoint(tmp_path):
    folder = learn().save(tmp_path)
    (folder / "model.safetensors").rename(folder / FIRST)
    with pytest.raises(fs.InvalidInput, match="not a checkpoint of a run in progress"):
        learn(checkpoint=tmp_path)


CRAFTED = {
    "x": lambda tensors, meta: tensors.update(x=tensors["x"][:-1]),
    "x'": lambda tensors, meta: tensors.update(x=tensors["x"].int()),
    "average": lambda tensors, meta: tensors.pop("average"),
    "server/eta": lambda tensors, meta: tensors.pop("server/eta"),
    "drift/control": lambda tensors, meta: tensors.update({"drift/control": torch.zeros(1)}),
    "history": lambda tensors, meta: tensors.update(history=torch.zeros(5, dtype=torch.uint8)),
    "no history": lambda tensors, meta: tensors.pop("history"),
    "clients": lambda tensors, meta: tensors.update({"clients/memory/../../x": torch.zeros(3)}),
    "names of clients": lambda tensors, meta: tensors.pop("clients/memory/clients"),
    "releases": lambda tensors, meta: meta.update(releases="many"),
    "about": lambda tensors, meta: meta.update(about=[1]),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_checkpoint_with_other_contents_is_refused(what, tmp_path):
    learn("scaffold", checkpoint=fs.Checkpoints(tmp_path, keep=1))
    path = files(tmp_path)[0]
    tensors, meta = read_tensors(path)
    CRAFTED[what](tensors, meta)
    write_tensors(path, tensors, meta)
    with pytest.raises(fs.InvalidInput, match="no usable checkpoint in"):
        learn("scaffold", checkpoint=tmp_path, rounds=9)


@pytest.mark.parametrize("name", ["first", "squares", "scale", "radii"])
@pytest.mark.parametrize("value", [None, torch.ones(3)])
def test_what_the_server_of_auto_learned_is_checked_too(name, value, tmp_path):
    learn("auto", checkpoint=fs.Checkpoints(tmp_path, keep=1))
    path = files(tmp_path)[0]
    tensors, meta = read_tensors(path)
    tensors.pop(f"server/{name}")
    write_tensors(path, tensors if value is None else {**tensors, f"server/{name}": value}, meta)
    with pytest.raises(fs.InvalidInput, match=f"server/{name}"):
        learn("auto", checkpoint=tmp_path, rounds=9)


@pytest.mark.parametrize(
    ("when", "rounds"),
    [
        ({}, [9, 8]),
        ({"keep": 3}, [9, 8, 7]),
        ({"every": 4}, [9, 8]),
        ({"every": 4, "keep": 9}, [9, 8, 4]),
        ({"every": None}, [9]),
        ({"every": None, "seconds": 1e-9, "keep": 4}, [9, 8, 7, 6]),
    ],
)
def test_checkpoints_are_saved_when_due_and_the_last_ones_kept(when, rounds, tmp_path):
    learn(checkpoint=fs.Checkpoints(tmp_path, **when), rounds=9)
    assert [p.name for p in files(tmp_path)] == [f"checkpoint-{n:06}.safetensors" for n in rounds]
    assert len(list(tmp_path.iterdir())) == len(rounds)


def test_the_time_of_day_may_jump(tmp_path, monkeypatch):
    jumps = iter([2e9, 1e9, -5.0] * 1000)
    monkeypatch.setattr("time.time", lambda: next(jumps))
    learn(checkpoint=fs.Checkpoints(tmp_path, every=None, seconds=3600), rounds=4)
    assert [p.name for p in files(tmp_path)] == ["checkpoint-000004.safetensors"]


@pytest.mark.parametrize(
    "bad", [{"every": 0}, {"every": 1.5}, {"seconds": 0}, {"seconds": "1"}, {"keep": 0}, {"keep": None}]
)
def test_invalid_checkpoint_settings_are_refused(bad, tmp_path):
    with pytest.raises(fs.InvalidInput, match=f"Checkpoints: {next(iter(bad))}="):
        fs.Checkpoints(tmp_path, **bad)


def test_files_are_replaced_atomically(tmp_path):
    path = tmp_path / "a" / "file.safetensors"
    write_tensors(path, {"x": torch.ones(3)}, {"n": 1})
    write_tensors(path, {"x": torch.zeros(2)}, {"n": 2})
    tensors, meta = read_tensors(path)
    assert torch.equal(tensors["x"], torch.zeros(2))
    assert meta["n"] == 2
    assert [p.name for p in path.parent.iterdir()] == ["file.safetensors"]


def test_tensors_that_share_memory_are_stored_separately(tmp_path):
    x = torch.arange(6.0)
    write_tensors(tmp_path / "file", {"x": x, "part": x[2:4], "turned": x.view(2, 3).T}, {})
    tensors, _ = read_tensors(tmp_path / "file")
    assert torch.equal(tensors["part"], x[2:4])
    assert torch.equal(tensors["turned"], x.view(2, 3).T)
