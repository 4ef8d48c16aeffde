"""The command from end to end, on two clients in the plane."""

from __future__ import annotations

import json
import signal

import pytest
import typer
from typer.testing import CliRunner

from fedstride.app import sweep
from fedstride.app.cli.reproduce import reproduce
from fedstride.research.papers import EXPERIMENTS, Experiment, Lab
from fedstride.research.papers.experiment import AGREES, DIFFERS
from fedstride.research.papers.page import drawn
from tests.app.report.figures import check

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command()(reproduce)


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a finished fedsls-fig1, and what was printed."""
    out = tmp_path_factory.mktemp("reproduce")
    return out, call("fedsls-fig1", "--out", out)


def test_the_order_of_figure_1(done):
    out, said = done
    assert said.exit_code == 0
    assert "FedExpSLS < FedExP < FedSLS < FedAvg" in said.stdout and "agrees" in said.stdout
    assert "fedsls-fig1: 4 of 4" in said.stderr
    found = json.loads((out / "fedsls-fig1-small.json").read_text())
    assert [claim["verdict"] for claim in found["claims"]] == [AGREES, AGREES]
    final = found["figures"]["final"]
    assert sorted(final, key=final.get) == ["FedExpSLS", "FedExP", "FedSLS", "FedAvg"]
    assert "The way to the minimum" in (out / "fedsls-fig1-small.html").read_text()


def test_what_is_there_is_not_run_again(done, monkeypatch):
    out, _ = done
    monkeypatch.setattr(sweep, "_one", lambda cell, folder: pytest.fail(f"{cell.name} is run again"))
    again = call("fedsls-fig1", "--out", out, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == [json.loads((out / "fedsls-fig1-small.json").read_text())]


def test_another_result_differs_and_is_no_error(done, tmp_path):
    out, _ = done
    for file in (out / "cells" / "small").iterdir():
        kept = json.loads(file.read_text())
        if kept["arguments"]["method"] == "FedExpSLS":
            kept["result"]["final"] = 1.0
        (tmp_path / "cells" / "small").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cells" / "small" / file.name).write_text(json.dumps(kept))
    said = call("fedsls-fig1", "--out", tmp_path, "--markdown")
    assert said.exit_code == 0
    assert said.stdout.count("**differs**") == 2 and "| agrees | 1 |" not in said.stdout


def test_markdown_without_a_name_runs_nothing(done):
    said = call("--out", done[0], "--markdown")
    assert said.exit_code == 0 and said.stdout.count("| fedsls-fig1 | small |") == 2


def test_the_list():
    assert "fedsls-fig1" in call().stdout
    assert {row["name"] for row in json.loads(call("--json").stdout)} == set(EXPERIMENTS)


@pytest.mark.parametrize(
    "arguments", [["fedsls-fig2"], ["fedsls-fig1", "--scale", "large"], ["fedsls-fig1", "--seeds", "0"], ["--markdown"]]
)
def test_bad_input(arguments, tmp_path):
    assert call(*arguments, "--out", tmp_path).exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_says_how_to_go_on(monkeypatch, tmp_path, number):
    before = signal.getsignal(number)
    wait = Experiment("fedsls-fig1", "waits", lambda lab: signal.raise_signal(number))
    monkeypatch.setitem(EXPERIMENTS, "fedsls-fig1", wait)
    said = call("fedsls-fig1", "--out", tmp_path)
    assert said.exit_code == 130
    assert f"fedstride reproduce fedsls-fig1 --scale small --seeds 1 --out {tmp_path}" in said.stderr
    assert signal.getsignal(number) is before


def test_equation_12(tmp_path):
    found = EXPERIMENTS["fedexp-eq12"].measure(Lab("small", 1, tmp_path))
    assert {claim.verdict for claim in found.claims} == {AGREES}
    for picture in found.pictures:
        check(drawn(picture))
    for file in (tmp_path / "cells" / "small").iterdir():  # backwards, and with FedAvg's server step
        kept = json.loads(file.read_text())
        kept["result"] = {key: value[::-1] if key in "xF" else value for key, value in kept["result"].items()}
        kept["result"]["server_step"][0] = 1.0
        file.write_text(json.dumps(kept))
    wrong = EXPERIMENTS["fedexp-eq12"].measure(Lab("small", 1, tmp_path)).claims
    assert [wrong[i].verdict for i in (0, 3, 4)] == [DIFFERS] * 3
