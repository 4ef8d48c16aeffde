"""The tables of docs/engines.md are those of the figures beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedstride.algorithm.recipes import RECIPES
from fedstride.research.bench import parity, show_wire
from fedstride.research.bench.show import as_markdown

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "engines.md").read_text()


def between(name: str) -> str:
    (found,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", PAGE, flags=re.S)
    return found


def test_the_table_of_parity_is_that_of_its_figures_and_has_every_recipe():
    report = json.loads((DOCS / "parity.json").read_text())
    assert between("parity") == parity.markdown(report)
    assert list(report["recipes"]) == list(RECIPES) and list(report["engines"]) == list(parity.LANES)
    assert parity.kept(report)


@pytest.mark.parametrize("name", show_wire.TABLES)
def test_the_tables_of_wire_are_those_of_its_figures(name):
    report = json.loads((DOCS / "wire.json").read_text())
    assert between(f"wire: {name}") == as_markdown(show_wire.TABLES[name](report))


def test_what_was_measured_on_is_said():
    assert between("wire") == show_wire.about(json.loads((DOCS / "wire.json").read_text()))
