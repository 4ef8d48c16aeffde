"""Checkpoints: a run goes on where it stopped, and never from another run's file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.checkpoint import NAME, read_tensors, write_tensors
from tests.problems import classification, classifier, learn, same_bits

# The laws of resuming are tested for every algorithm in test_conformance.py.


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    whole = learn("fedexp", checkpoint=tmp_path)
    before = (tmp_path / NAME).read_bytes()
    events = []
    again = learn("fedexp", checkpoint=tmp_path, callbacks=[events.append])
    assert same_bits(again, whole)
    assert again.history == whole.history
    assert events == []
    assert (tmp_path / NAME).read_bytes() == before


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
    before, events = (tmp_path / NAME).read_bytes(), []
    with pytest.raises(fs.InvalidInput, match=r"checkpoint=.* belongs to another run"):
        learn(**{"algorithm": "fedavg", "rounds": 4, **OTHER[what]}, checkpoint=tmp_path, callbacks=[events.append])
    assert events == []
    assert (tmp_path / NAME).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_corrupt_checkpoint_is_refused(content, tmp_path):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(fs.InvalidInput, match=NAME):
        learn(checkpoint=tmp_path)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    learn(checkpoint=tmp_path)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(fs.InvalidInput, match=NAME):
        learn(checkpoint=tmp_path)


def test_a_saved_model_is_no_checkpoint(tmp_path):
    folder = learn().save(tmp_path)
    (folder / "model.safetensors").rename(folder / NAME)
    with pytest.raises(fs.InvalidInput, match="checkpoint"):
        learn(checkpoint=tmp_path)


def test_files_are_replaced_whole(tmp_path):
    path = tmp_path / "a" / "file.safetensors"
    write_tensors(path, {"x": torch.ones(3)}, {"n": 1})
    write_tensors(path, {"x": torch.zeros(2)}, {"n": 2})
    tensors, meta = read_tensors(path)
    assert torch.equal(tensors["x"], torch.zeros(2))
    assert meta["n"] == 2
    assert [p.name for p in path.parent.iterdir()] == ["file.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"x": torch.ones(3)}, {})

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr("fedstride.checkpoint.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write_tensors(path, {"x": torch.zeros(3)}, {})
    assert torch.equal(read_tensors(path)[0]["x"], torch.ones(3))


def test_tensors_that_share_memory_are_stored_apart(tmp_path):
    x = torch.arange(6.0)
    write_tensors(tmp_path / "file", {"x": x, "part": x[2:4], "turned": x.view(2, 3).T}, {})
    tensors, _ = read_tensors(tmp_path / "file")
    assert torch.equal(tensors["part"], x[2:4])
    assert torch.equal(tensors["turned"], x.view(2, 3).T)
