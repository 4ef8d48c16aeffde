"""The documentation site: every public name, algorithm, command and example has its place. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import algorithms, commands, examples, reference, repository
from fedstride import _public
from fedstride.algorithm.recipes import RECIPES
from fedstride.app.cli import COMMANDS
from tests.test_docstrings import PUBLIC
from tests.test_public_names import MODULES

ROOT = Path(__file__).parents[1]
REFERENCE = "\n".join(reference.pages().values())
ALGORITHMS = algorithms.pages()


def test_every_public_name_has_an_entry_in_the_reference():
    headings = set(re.findall(r'heading: "(.*)"|^#+ `(.*)`|^\| \[`(.*?)`\]', REFERENCE, flags=re.M))
    entries = {name for heading in headings for name in heading if name}
    assert set(reference.MODULES) == MODULES
    assert {f"fs.{name}" for name in {*_public.__all__, *dir(_public)} - MODULES if name[0] != "_"} <= entries
    assert {name for name in PUBLIC if not name.startswith("fs.wire.")} <= entries
    assert {"Auto", "Scaffold", "fedstride.flower.Strategy", "fedstride.flower.train"} <= entries


def test_a_public_name_without_a_docstring_is_an_error():
    def undocumented(): ...

    with pytest.raises(ValueError, match=r"fs\.undocumented is public and has no docstring"):
        reference.entry("fs.undocumented", undocumented)


@pytest.mark.parametrize("name", RECIPES)
def test_every_algorithm_has_a_page_with_its_use_arguments_and_paper(name):
    page = ALGORITHMS[f"algorithms/{name}.md"]
    sections = dict(re.findall(r"^## (.*?)\n\n(.*?)(?=^## |\Z)", page, flags=re.S | re.M))
    assert list(sections) == ["When to use it", "What it computes", "Arguments", "Use", "Paper", "Theory", "Figures"]
    assert f"`{name}" in sections["When to use it"]  # how-to-choose.md names it
    assert re.search(r"\b(19|20)\d\d\b", sections["Paper"])


def test_papers_laws_and_figures_are_those_of_the_algorithm():
    page = ALGORITHMS["algorithms/fedlin.md"]
    assert (
        "Linear convergence in federated learning" in page and "FedLin Thm 9" in page and "FedTrack Thm 1" not in page
    )
    assert (
        "FedExP eq. (9)" in ALGORITHMS["algorithms/fedexp.md"]
        and "tuned `fedexp`" in ALGORITHMS["algorithms/fedexp.md"]
    )
    assert "Deviations from the paper" in ALGORITHMS["algorithms/delta_sgd.md"]


def test_every_command_and_option_is_in_the_reference():
    pages = commands.pages()
    assert list(pages) == ["commands/index.md", *(f"commands/{name}.md" for name in COMMANDS)]
    assert "--install-completion" not in "".join(pages.values())
    assert "| `--label COLUMN` | Column to predict." in pages["commands/run.md"]
    assert (
        "## `fedstride bench speed`" in pages["commands/bench.md"]
        and "Port of the server" in pages["commands/deploy.md"]
    )


def test_examples_are_shown_with_their_output():
    pages = examples.pages()
    for program in examples.PROGRAMS:
        page = pages[f"examples/{program.stem}.md"]
        assert program.read_text().strip().splitlines()[-1] in page
        assert (examples.OUTPUT / f"{program.stem}.txt").read_text().strip() in page


@pytest.mark.parametrize(
    ("source", "text", "becomes"),
    [
        ("docs/auto.md", "[a](speed.md#x)", "[a](speed.md#x)"),
        ("docs/auto.md", "[a](../CONTRIBUTING.md)", "[a](repository/CONTRIBUTING.md)"),
        ("docs/auto.md", "[a](../examples/own_tensors.py)", "[a](examples/own_tensors.md)"),
        ("README.md", "[`a`](docs/auto.md) [b](examples)", "[`a`](auto.md) [b](examples/index.md)"),
        ("README.md", '<img src="docs/round.svg">', '<img src="round.svg">'),
        ("CONTRIBUTING.md", "[a](docs/auto.md)", "[a](../auto.md)"),
        (
            "docs/auto.md",
            "eta / <g, u> `<g>` https://a.b [c](https://a.b)",
            "eta / &lt;g, u> `<g>` https://a.b [c](https://a.b)",
        ),
        ("README.md", "```\n[a](docs/auto.md)\n```", "```\n[a](docs/auto.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(source, text, becomes):
    assert repository.rewrite(text, source) == becomes


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="make docs installs mkdocs")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]*"', page.read_text()), page
