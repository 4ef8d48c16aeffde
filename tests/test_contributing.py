"""The worked examples of the documents are followed to the letter, so that they stay true."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
USE = """
import tomllib
import torch
import fedstride as fs
from fedstride.app.config import resolve
from fedstride.client.step import Normalised

assert fs.Normalised is Normalised
assert fs.recipes.fednorm(length=0.5) == fs.Algorithm(step=fs.Normalised(0.5), name="fednorm")
table = tomllib.loads('name = "custom"\\nstep = { part = "Normalised", length = 0.2 }')
assert resolve(settings={"algorithm": table}).make_algorithm() == fs.Algorithm(fs.Normalised(0.2))
named = tomllib.loads('name = "fednorm"\\nlength = 0.2')
assert resolve(settings={"algorithm": named}).make_algorithm() == fs.recipes.fednorm(0.2)

source = torch.Generator().manual_seed(0)
x = torch.randn(8, generator=source)
inputs = [torch.randn(20, 8, generator=source) for _ in range(4)]
clients = [(A, A @ x) for A in inputs]
torch.manual_seed(0)
model = torch.nn.Linear(8, 1, bias=False)
run = fs.train(model, "mse", clients, fs.recipes.fednorm(length=0.5), rounds=40, local_steps=2)
assert run.history[-1]["train_loss"] < run.history[0]["train_loss"] / 100
assert len(fs.train(model, "mse", clients, "fednorm", rounds=1).history) == 1
both = fs.Algorithm(step=fs.Normalised(), server=fs.FedExP())
assert len(fs.train(model, "mse", clients, both, rounds=2).history) == 2
"""


def blocks(document: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository after the steps of CONTRIBUTING.md; a function that runs Python in it."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder)
    (part,), (row,) = blocks("CONTRIBUTING.md"), blocks("CONTRIBUTING.md", "markdown")
    (path,) = re.findall(r"\*\*1\. Write the part\*\*, `(.*?)`", GUIDE)
    assert len(part.splitlines()) < 60 and not (folder / path).exists()
    (folder / path).write_text(part)
    page = folder / "docs/how-to-choose.md"
    head = "|---|---|---|\n"
    page.write_text(page.read_text().replace(head, head + row, 1))

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "100"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    return run


def test_the_new_part_trains_composes_and_has_its_names(copy):
    copy("-c", USE)


def test_the_new_algorithm_is_listed_with_its_description(copy):
    rows = {row["name"]: row for row in json.loads(copy("-m", "fedstride", "algorithms", "--json"))}
    assert rows["fednorm"]["arguments"] == {"length": 0.1}
    assert rows["fednorm"]["what"].startswith("y -= length g / |g|")


@pytest.mark.slow
def test_the_new_algorithm_passes_the_tests_of_all_algorithms(copy):
    chosen = "fednorm or normalised or test_public_names or test_every_algorithm_has_a_place"
    files = (
        "test_conformance.py",
        "test_docs.py",
        "test_docstrings.py",
        "test_import_order.py",
        "test_public_names.py",
        "algorithm",
    )
    told = copy("-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, *(f"tests/{file}" for file in files))
    assert int(re.findall(r"(\d+) passed", told)[0]) > 20


def test_the_readme_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in blocks("README.md"):
        exec(block, space)
    assert (tmp_path / "runs/first/model.safetensors").is_file()
