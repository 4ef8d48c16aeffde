"""The page and the command: what they show is what was found."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from fedstride.app.cli.diagnose import diagnose
from fedstride.app.diagnose import findings, limits, write
from fedstride.app.diagnose.page import SHADE
from tests.app.diagnose.histories import HALF, SMALL, STUCK, rows
from tests.app.report.folders import CLIENTS, Page, comparison_folder, run_folder

EVIL = "</header><script>alert(1)</script>"
app = typer.Typer()
app.command()(diagnose)
CONFIG = 'task = "digits"\n[algorithm]\nname = "fedsls"\nlr_max = 0.2\nc = 0.3\n'


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def folder(tmp_path):
    return run_folder(tmp_path / "mine", rows(SMALL, client_step=[0.2] * 20 + [0.199] * 10), config=CONFIG)


def test_the_page_has_the_findings_and_the_shaded_charts(folder):
    page = Page(write(folder))
    said = page.text("p")
    assert all(f.says in said or f.name == "slow" for f in findings(folder))
    assert page.text("h1") == ["Diagnosis: fedsls on digits"]
    assert {"loss", "updates", "turn", "client_steps"} <= set(page.data["charts"])
    bands = [s for s in page.data["charts"]["turn"]["layout"]["shapes"] if s.get("fillcolor") == SHADE]
    assert [(b["y0"], b["y1"]) for b in bands] == [(limits.STRAIGHT, 1.0), (-1.0, limits.SWINGS)]
    (cap,) = page.data["charts"]["client_steps"]["layout"]["shapes"]
    assert cap["y0"] == cap["y1"] == 0.2
    assert set(page.attributes("div", "data-chart")) == set(page.data["charts"])


def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup(tmp_path):
    config = f'task = "digits"\n[algorithm]\nname = "fedsls"\n[data]\nsource = """{EVIL}"""\n'
    plain = Page(write(run_folder(tmp_path / "plain", rows(STUCK), config=CONFIG)))
    page = Page(
        write(
            run_folder(
                tmp_path / "evil", rows(STUCK), config=config, environment={"started": EVIL, "a": 1, "b": 2, "c": 3}
            )
        )
    )
    assert page.count == plain.count
    assert not page.attributes("script", "src") and not page.attributes("link", "href")


def test_a_history_without_the_newer_columns_has_a_page(tmp_path):
    old = rows(HALF, update=..., turn=..., compression=...)
    charts = Page(write(run_folder(tmp_path, old, config=None, clients=None))).data["charts"]
    assert "loss" in charts and not {"turn", "updates"} & set(charts)


def test_the_command_says_the_outcome_then_the_first_advice(folder):
    result = call(folder)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert lines[0].startswith("The test loss fell by only")
    assert lines[1].startswith("Try first: lr_max=") and "instead of 0.2" in lines[1]
    assert "--algorithm 'fedsls(lr_max=" in lines[1] and "c=0.3)'" in result.stdout
    assert "cause   step cap binds" in lines
    assert lines[-1] == f"diagnosis: {folder / 'diagnosis.html'}" and (folder / "diagnosis.html").is_file()


def test_as_json_there_is_one_document_and_nothing_else(folder):
    document = json.loads(call(folder, "--json").stdout)
    assert document["outcome"] == "slow" and document["page"] == str(folder / "diagnosis.html")
    first = document["findings"][0]
    assert (first["name"], first["severity"]) == ("step cap binds", "cause") and first["advice"] and first["says"]


def test_a_comparison_is_told_run_by_run(tmp_path):
    folder = comparison_folder(tmp_path, {"a": [rows(SMALL)], "b": [rows(HALF), []]})
    text = call(folder).stdout
    assert "a0-s0  The test loss fell by only" in text and "a1-s0  Still improving" in text and "a1-s1" not in text
    assert "steps too small" in text and not list(folder.rglob("diagnosis.html"))
    assert list(json.loads(call(folder, "--json").stdout)["runs"]) == ["a0-s0", "a1-s0"]


@pytest.mark.parametrize("text", [None, "", "{", "[1]\n"])
def test_unusable_folders_are_exit_code_2(tmp_path, text):
    if text is not None:
        (tmp_path / "history.jsonl").write_text(text)
    result = call(tmp_path if text is not None else tmp_path / "nowhere")
    assert result.exit_code == 2 and result.stdout == "" and "Error: diagnose: " in result.stderr


def test_the_clients_of_the_folder_are_used(tmp_path):
    names = {f.name for f in findings(run_folder(tmp_path, rows(HALF), clients=CLIENTS))}
    assert "clients left behind" in names
