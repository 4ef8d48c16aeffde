"""The scripts under examples/ run as they are, are short, and print what they promise."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from fedstride.data import cache

FOLDER = Path(__file__).parents[1] / "examples"
HUGGING_FACE = ("transformers", "peft")
PRINTS = {  # the start of a line of each
    "csv_with_names": "accuracy 0.9",
    "custom_algorithm": "auto",
    "early_stopping": "stopped after",
    "hugging_face_classifier": "accuracy 0.9",
    "images_batchnorm": "GroupNorm",
    "lora_shakespeare": "aggregation error, fs.ExactLoRA: ",
    "own_tensors": "test accuracy 0.9",
    "personalisation": "trained alone 0.9",
}
NEEDS = {"hugging_face_classifier": ("transformers",), "lora_shakespeare": HUGGING_FACE}
FAST = ("csv_with_names", "early_stopping")


def printed(name: str, monkeypatch: Any, tmp_path: Path, capsys: Any) -> list[str]:
    """Run an example in an empty folder."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


def words(lines: list[str]) -> list[str]:
    """Lines without their figures, whose last digits depend on the processor."""
    return [re.sub(r"[\d.]+(e[+-]\d+)?", "0", line) for line in lines]


def test_every_example_is_run():
    assert sorted(PRINTS) == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PRINTS)
def test_examples_are_short_and_say_what_they_show(name):
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) < 60 and text.startswith('"""')


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in PRINTS]
)
def test_examples_run(name, monkeypatch, tmp_path, capsys):
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'fedstride[hf]'")
    if name == "lora_shakespeare" and not cache.path("shakespeare").exists():
        pytest.skip("shakespeare is not in the cache: fedstride data get shakespeare")
    lines = printed(name, monkeypatch, tmp_path, capsys)
    assert any(line.startswith(PRINTS[name]) for line in lines), lines
    stored = (FOLDER.parent / f"docs/site/output/{name}.txt").read_text().splitlines()
    assert words(lines) == words(stored), "the site shows another output: python -m docs.site.examples"
    if name == "lora_shakespeare":
        naive, exact = (float(line.rpartition(" ")[2]) for line in lines[-2:])
        assert exact < 1e-12 < 1e-6 < naive
