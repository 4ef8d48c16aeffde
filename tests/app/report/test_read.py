"""Folders that cannot be reported on say why; no half-written report is left."""

from __future__ import annotations

import json

import pytest

import fedstride as fs
from fedstride.app import report
from fedstride.app.report.read import read
from tests.app.report.folders import CLIENTS, comparison_folder, run_folder

ROW = {"round": 1, "train_loss": 1.0, "bytes_up": 10, "bytes_down": 30, "gradients": 5}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "neither history.jsonl nor compare.json"),
        ({"history.jsonl": ""}, "history in .* is empty"),
        ({"history.jsonl": json.dumps(ROW) + '\n{"round": 2, "tra'}, "line 2, is not valid JSON"),
        ({"history.jsonl": "[1, 2]\n"}, "line 1, contains a list"),
        ({"history.jsonl": json.dumps(ROW), "config.toml": "a = "}, "config.toml is not valid TOML"),
        ({"history.jsonl": json.dumps(ROW), "config.toml": "a = " + "9" * 5000}, "config.toml is not valid TOML"),
        ({"history.jsonl": json.dumps(ROW), "environment.json": "{"}, "environment.json is not valid JSON"),
        ({"history.jsonl": json.dumps(ROW), "clients.json": "[]"}, "contains a list"),
        ({"history.jsonl": json.dumps(ROW), "clients.json": '{"loss": [1.0]}'}, "'sizes' is invalid"),
        (
            {"history.jsonl": json.dumps(ROW), "clients.json": '{"sizes": [3, 4], "loss": [1.0]}'},
            "'loss' is invalid",
        ),
        (
            {"history.jsonl": json.dumps(ROW), "clients.json": '{"sizes": [3], "accuracy": ["x"]}'},
            "'accuracy' is invalid",
        ),
        (
            {"history.jsonl": json.dumps(ROW), "clients.json": '{"sizes": [3, 1], "labels": [[3, 0], [1]]}'},
            "'labels' is",
        ),
        ({"compare.json": "{}"}, "does not describe a comparison"),
        (
            {"compare.json": '{"task": "t", "runs": [{"folder": "a", "algorithm": "a", "seed": 0}]}'},
            "the folder .*a does not exist",
        ),
        ({"compare.json": '{"task": "t", "runs": []}'}, "no run in .* has a finished round"),
    ],
)
def test_what_is_broken_is_named_and_nothing_is_written(tmp_path, files, says):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(fs.InvalidInput, match=says):
        report.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(fs.InvalidInput, match="neither"):
        report.write(tmp_path / "nowhere")


def test_a_binary_history_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "history.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(fs.InvalidInput, match=r"history\.jsonl cannot be read"):
        report.write(tmp_path)


def test_a_failure_leaves_the_old_report(tmp_path):
    run_folder(tmp_path, [ROW])
    before = report.write(tmp_path).read_bytes()
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(fs.InvalidInput):
        report.write(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before


def test_numbers_that_are_none_become_none(tmp_path):
    values = [1.0, float("nan"), float("inf"), None, "x", True, 2]
    run = read(run_folder(tmp_path, [{**ROW, "train_loss": v} for v in values]))
    assert run.column("train_loss") == [1.0, None, None, None, None, None, 2]
    assert run.last("train_loss") == 2
    assert run.last("test_loss") is None and not run.has("test_loss")


def test_the_three_currencies_add_up(tmp_path):
    run = read(run_folder(tmp_path, [{**ROW, "round": t} for t in (1, 2, 3)]))
    assert run.axes() == {"rounds": [1, 2, 3], "bytes": [40, 80, 120], "gradients": [5, 10, 15]}


def test_clients_without_class_names_get_numbers(tmp_path):
    run = read(run_folder(tmp_path, [ROW], clients={**CLIENTS, "classes": None}))
    assert run.clients["classes"] == ["0", "1", "2"]


def test_a_comparison_keeps_the_order_and_forgives_a_run_without_rounds(tmp_path):
    found = read(comparison_folder(tmp_path, {"z": [[ROW], []], "a": [[ROW, ROW]]}))
    assert [(name, [len(run.rows) for run in runs]) for name, runs in found.groups.items()] == [
        ("z", [1, 0]),
        ("a", [2]),
    ]
    assert (found.task, found.target) == ("toys", 0.5)
