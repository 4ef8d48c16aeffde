"""The pages under docs/ stay true: their Python runs and prints what they say, their links lead somewhere."""

from __future__ import annotations

import inspect
import re
import sys
import types
from pathlib import Path

import pytest

from fedstride.algorithm import recipes
from fedstride.research.verify import law

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
NEEDS = {"hugging-face.md": ("transformers", "peft")}  # packages that the code of a page imports
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.S | re.M)


def name(page: Path) -> str:
    return page.name


def first_cells(page: str, head: str) -> list[str]:
    """The first column of the table whose head line starts with this."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    rows = lines[next(i for i, line in enumerate(lines) if line.startswith(head)) + 2 :]
    cells = []
    for row in rows:
        if not row.startswith("|"):
            break
        cells.append(row.split("|")[1].strip())
    return cells


def test_the_pages_are_there():
    assert [p.name for p in PAGES] == [
        "architecture.md",
        "attacks.md",
        "auto.md",
        "clusters.md",
        "diagnose.md",
        "engines.md",
        "flower.md",
        "getting-started.md",
        "how-to-choose.md",
        "hugging-face.md",
        "mutants.md",
        "notebooks.md",
        "operators.md",
        "privacy.md",
        "reliability.md",
        "reproduced.md",
        "secure-aggregation.md",
        "speed.md",
        "what-we-check.md",
        "write-an-algorithm.md",
        "your-own.md",
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_python_block_is_executed(page):
    assert len(BLOCK.findall(page.read_text())) == page.read_text().count("```python")


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=name)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(page, tmp_path, monkeypatch, capsys):
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason="pip install 'fedstride[hf]'")
    monkeypatch.chdir(tmp_path)
    space = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", space)  # dataclasses look up the module they are written in
    for code, says in BLOCK.findall(page.read_text()):
        exec(compile(code, page.name, "exec"), space.__dict__)
        printed = capsys.readouterr().out
        assert [line.rstrip() for line in printed.splitlines()] == says.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_of_the_repository(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert links and not [to for to in links if not (page.parent / to).exists()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_of_the_source_that_are_named_exist(page):
    named = re.findall(r"`((?:\w+/)+\w+\.py|\w+\.py)`", page.read_text())
    assert not [path for path in named if not (ROOT / "src/fedstride" / path).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_recipes_that_are_called_take_these_arguments(page):
    for recipe, arguments in re.findall(r"`(\w+)\((\w+=[^`]*)\)`", page.read_text()):
        if recipe in recipes.RECIPES:
            known = inspect.signature(recipes.RECIPES[recipe]).parameters
            assert set(re.findall(r"(\w+)=", arguments)) <= {*known, *_of_parts(arguments)}


def _of_parts(arguments: str) -> list[str]:
    """Keywords inside nested calls, as in up=fs.TopK(k=3)."""
    return re.findall(r"(\w+)=", " ".join(re.findall(r"\(([^)]*)\)", arguments)))


def test_every_algorithm_has_a_place_in_how_to_choose():
    named = set(re.findall(r"`(\w+)", (ROOT / "docs/how-to-choose.md").read_text()))
    assert set(recipes.RECIPES) <= named


def test_the_table_of_what_is_checked_has_the_sources_of_verify():
    assert first_cells("what-we-check.md", "| source | ") == list(dict.fromkeys(source for source, _ in law.LAWS))
