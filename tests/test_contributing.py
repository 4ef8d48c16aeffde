"""The worked examples of the documents are executed, so that they stay true."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES

ROOT = Path(__file__).parents[1]


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


@pytest.fixture
def fednorm():
    part, line = blocks("CONTRIBUTING.md")
    assert len(part.splitlines()) < 60 and len(line.splitlines()) == 1
    module = sys.modules["normalised"] = types.ModuleType("normalised")
    exec(part, module.__dict__)
    exec(line, {"RECIPES": RECIPES, "Algorithm": fs.Algorithm, "Normalised": module.__dict__["Normalised"]})
    yield "fednorm"
    del RECIPES["fednorm"], sys.modules["normalised"]


def test_the_worked_example_of_a_new_algorithm_trains(fednorm):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(8, generator=source)
    A = [torch.randn(20, 8, generator=source) for _ in range(4)]
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    run = fs.train(model, "mse", [(a, a @ x) for a in A], fs.recipes.fednorm(length=0.5), rounds=40, local_steps=2)
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"] / 100
    assert len(fs.train(model, "mse", [(a, a @ x) for a in A], fednorm, rounds=1).history) == 1


def test_the_worked_example_composes(fednorm):
    algorithm = fs.Algorithm(step=fs.recipes.fednorm().step, server=fs.FedExP())
    clients = [(torch.randn(5, 3), torch.randn(5, 1)) for _ in range(3)]
    assert len(fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=2).history) == 2


def test_the_readme_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in blocks("README.md"):
        exec(block, space)
    assert (tmp_path / "runs/first/model.safetensors").is_file()
