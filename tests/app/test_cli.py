"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedstride
from fedstride import InvalidInput
from fedstride.algorithm.recipes import RECIPES
from fedstride.app import cli
from fedstride.research.verify import law

QUICK = ["verify", "--only", "Lemma 14"]


def call(*arguments, **env):
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "100", **env})


@pytest.fixture
def laws(monkeypatch):
    """No laws but those of the test."""
    empty = []
    monkeypatch.setattr(law, "LAWS", empty)
    return empty


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """A module of the user's, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text):
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        Path("mine.py").write_text("import fedstride as fs\n" + text)

    return write


def test_version():
    assert call("--version").stdout == f"fedstride {fedstride.__version__}\n"


def test_algorithms_lists_every_recipe_within_the_width():
    lines = call("algorithms").stdout.splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= set(RECIPES)
    assert max(map(len, lines)) <= 100


def test_algorithms_as_json():
    rows = json.loads(call("algorithms", "--json").stdout)
    assert [row["name"] for row in rows] == list(RECIPES)
    assert next(row for row in rows if row["name"] == "fedsplit")["arguments"] == {"prox": 0.1, "lr": 0.05}


def test_verify_prints_a_line_per_finding_and_the_counts():
    result = call(*QUICK)
    *lines, last = result.stdout.splitlines()
    assert result.exit_code == 0
    assert len(lines) == 3 and all(line.startswith("kept  FedLin Lemma 14  TOP-k: ") for line in lines)
    assert last.startswith("3 measurements: 3 kept, 0 broken, in ")


def test_verify_shows_a_table_on_a_terminal():
    text = call(*QUICK, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert all(word in text for word in ("verdict", "source", "law", "measured", "bound", "d |C(x)|^2 - k |x|^2"))


def test_verify_as_json_prints_one_document_and_nothing_else():
    result = call(*QUICK, "--json")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert (document["kept"], document["broken"]) == (3, 0)
    assert document["findings"][1] == {
        "law": "TOP-k: d |C(x)|^2 - k |x|^2",
        "source": "FedLin Lemma 14",
        "measured": 0.0,
        "relation": ">=",
        "bound": 0.0,
        "kept": True,
    }


def test_a_broken_law_is_exit_code_1(laws):
    laws.append(("here", lambda: iter([("good", 1, "<=", 2), ("bad", 3, "<=", 2), ("lost", float("nan"), "<=", 2)])))
    result = call("verify")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1] == "BROKEN  here  bad  3  <= 2"
    assert "3 measurements: 1 kept, 2 broken" in result.stdout
    result = call("verify", "--json")
    assert result.exit_code == 1
    assert [f["measured"] for f in json.loads(result.stdout)["findings"]] == [1, 3, None]


def test_a_law_whose_run_fails_is_broken_and_the_others_go_on(laws):
    def fails():
        yield "first", 1, "<=", 2
        raise InvalidInput("no such thing")

    laws.extend([("one", fails), ("two", lambda: iter([("last", 1, "<=", 2)]))])
    result = call("verify")
    assert result.exit_code == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["kept", "BROKEN", "kept", "3"]
    assert "no such thing" in result.stdout


def test_only_chooses_by_source_module_and_name():
    names = [check.__name__ for _, check in law.select("FedLin Thm 9")]
    assert names == ["heterogeneous"]
    assert {check.__module__ for _, check in law.select("fedtrack")} == {"fedstride.research.verify.fedtrack"}
    assert {check.__name__ for _, check in law.select("non_convex")} == {"non_convex"}
    assert {source.split()[0] for source, _ in law.select("non_convex")} > {"FedTrack", "FedLin"}


def test_the_laws_come_in_the_order_of_the_papers():
    papers = [source.split()[0] for source, _ in law.LAWS]
    order = ["FedSLS", "Delta-SGD", "FedTrack", "FedExP", "FedLin", "Identity"]
    proved = papers[: len(papers) - papers[::-1].index("Identity")]  # laws of single parts follow
    assert list(dict.fromkeys(proved)) == order and proved == sorted(proved, key=order.index)


def test_only_without_a_match_is_exit_code_2():
    result = call("verify", "--only", "nonsense")
    assert result.exit_code == 2 and result.stdout == ""
    assert "--only 'nonsense' matches no law" in result.stderr and "FedLin Thm 9" in result.stderr


def test_an_algorithm_of_the_current_folder_is_checked(mine):
    mine("def sound():\n    return fs.recipes.fedavg(lr=0.05)\n")
    result = call("verify", "--json", "--algorithm", "mine:sound")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kept"] > 5


def test_an_algorithm_that_breaks_a_law_is_exit_code_1(mine):
    mine(
        "class Uphill(fs.Average):\n"
        "    def step(self, x, mean, state):\n"
        "        return x + mean.update\n"
        "def wrong():\n"
        "    return fs.Algorithm(fs.Constant(0.05), Uphill())\n"
    )
    result = call("verify", "--algorithm", "mine:wrong", "--only", "progress")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("BROKEN  custom  makes progress")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mine", "expected module:function"),
        ("nowhere:f", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("mine:nothing", "cannot be imported: AttributeError"),
        ("mine:NUMBER", "is 3, not a function"),
        ("mine:needs", "fails when called: TypeError"),
        ("mine:none", "returns None; expected an fs.Algorithm"),
        ("mine:refused", "server_lr=2.0 is above 1"),
    ],
)
def test_an_unusable_algorithm_is_exit_code_2(mine, path, message):
    mine(
        "NUMBER = 3\n"
        "def needs(lr):\n    return fs.recipes.fedavg(lr)\n"
        "def none():\n    pass\n"
        "def refused():\n    return fs.recipes.fedsls(server_lr=2.0)\n"
    )
    result = call("verify", "--algorithm", path)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and "Traceback" not in result.stderr


def test_the_installed_command_runs():
    command = Path(sys.executable).with_name("fedstride")
    done = subprocess.run([command, *QUICK, "--json"], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["kept"] == 3


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["reproduce"], "Lists the experiments if omitted"),
        (["diagnose"], "Folder written by run or compare"),
        (["deploy", "remove"], "Number of the node"),
    ],
)
def test_help_describes_the_arguments_of_a_command(command, text):
    assert text in call(*command, "--help", COLUMNS="200").stdout
