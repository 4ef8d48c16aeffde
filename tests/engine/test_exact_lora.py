"""Exact aggregation of low-rank updates on Flower and in many processes, against the local engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import fedstride as fs
from tests.adapters import adapted, clients
from tests.ranks import ranks

SETTINGS = {"clients": 4, "rounds": 3, "local_steps": 5, "algorithm": 'custom(aggregate={part="ExactLoRA"})'}


def local(engine="local"):
    algorithm = fs.Algorithm(aggregate=fs.ExactLoRA())
    return fs.train(adapted(), "cross_entropy", clients(), algorithm, rounds=3, local_steps=5, engine=engine)


def distance(a, b):
    theirs = b.model.state_dict()
    return max(float((v - theirs[name]).abs().max()) for name, v in a.model.state_dict().items())


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """The engine, and a grid of four nodes."""
    pytest.importorskip("flwr")
    from fedstride.engine import flower
    from tests.engine.grid import Grid

    monkeypatch.chdir(tmp_path)
    project = flower.Project(lambda settings: adapted(), "cross_entropy", lambda _, node: clients()[node["client"]])
    grid = Grid(flower.client_app(project), {100 + i: {"client": i} for i in range(4)})
    return lambda settings: flower.train(project, grid, settings)


def test_flower_gives_the_same_model(flower):
    remote, here = flower(SETTINGS), local()
    assert distance(remote, here) < 1e-12
    assert [row["bytes_down"] for row in remote.history] == [row["bytes_down"] for row in here.history]
    assert [row["bytes_up"] for row in remote.history] == [row["bytes_up"] for row in here.history]


def test_secure_sums_are_refused(flower):
    with pytest.raises(fs.Refused, match="secure with ExactLoRA"):
        flower({**SETTINGS, "secure": 10.0})


@pytest.mark.slow
def test_many_processes_have_the_same_bits(tmp_path):
    done = ranks(2, "tests.engine.test_exact_lora", tmp_path)
    assert done.returncode == 0, done.stderr
    assert distance(fs.load(tmp_path, adapted()), local()) == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = local("torchrun")
    if fs.engine.Torchrun().leads:
        run.save(Path(sys.argv[1]))
