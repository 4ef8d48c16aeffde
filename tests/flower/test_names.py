"""The names of fedstride.flower, and the page that lists them."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest

import fedstride as fs

pytest.importorskip("flwr")

from flwr.serverapp.strategy import Strategy as FlowerStrategy

import fedstride.flower as flower
from fedstride.flower.rules import Rule

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
RULES = {name: getattr(flower, name) for name in flower.__all__ if name not in ("Strategy", "train")}


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_recipe_is_a_strategy_of_flower():
    assert sorted(rule.recipe for rule in RULES.values()) == sorted(fs.recipes.RECIPES)
    assert all(issubclass(rule, Rule) and issubclass(rule, FlowerStrategy) for rule in RULES.values())


@pytest.mark.parametrize("name", RULES)
def test_a_strategy_takes_the_settings_of_its_recipe(name):
    rule, recipe = RULES[name], fs.recipes.RECIPES[RULES[name].recipe]
    known = set(inspect.signature(rule).parameters)
    assert set(inspect.signature(recipe).parameters) - {"lr", "schedule"} <= known
    assert {"checkpoint", "seed", "fraction_train"} <= known and ("lr" in known) <= (not rule.unchanged)
    assert rule().algorithm == recipe() and rule.__doc__.startswith(recipe.__doc__.partition("\n")[0])


def test_the_page_lists_the_rules_by_what_their_clients_do():
    for title, unchanged in (("Two lines at the server", True), ("One line at the clients", False)):
        listed = set(re.findall(r"`(\w+)`", section(title))) & RULES.keys()
        assert listed == {name for name, rule in RULES.items() if rule.unchanged == unchanged}


def test_the_lines_of_the_page_are_those_of_the_example():
    app = Path(__file__).parents[2] / "examples" / "flower-strategy" / "digits"
    line = "return fedstride.flower.train(msg, context, model, "
    assert line in section("One line at the clients") and line in (app / "fedstride_client_app.py").read_text()
    assert "fedstride" not in (app / "client_app.py").read_text().partition('"""\n')[2]


def test_the_table_of_versions_has_the_one_that_is_tested():
    versions = re.findall(r"^\| (1\.\d+\.\d+) \| all \|", section("Versions of Flower"), flags=re.M)
    assert importlib.metadata.version("flwr") in versions
