"""The run folder, resumption, the commands that make it, Ctrl-C."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from fedstride import InvalidInput, evaluate, load
from fedstride.algorithm.text import parse_setting
from fedstride.app import run_folder
from fedstride.app.cli import app
from fedstride.app.config import resolve

SMALL = ["training.rounds=3", "data.clients=8", "training.cohort=3", "training.batch_size=30", "model.name=softmax"]


def small(*more):
    return resolve(settings=dict(parse_setting(text) for text in (*SMALL, *more)))


def command(*arguments):
    settings = [part for text in SMALL for part in ("--set", text)]
    return CliRunner().invoke(app, [*map(str, arguments), *settings])


def test_a_run_folder_is_complete(tmp_path):
    run = run_folder.execute(run_folder.prepare(small()), tmp_path / "run")
    folder = tmp_path / "run"
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert rows == list(run.history) and len(rows) == 3
    clients = json.loads((folder / "clients.json").read_text())
    assert sum(clients["sizes"]) == sum(map(sum, clients["labels"]))
    assert len(clients["accuracy"]) == len(clients["loss"]) == 8
    assert all(0 <= a <= 1 for a in clients["accuracy"])
    assert torch.equal(load(folder).x, run.x)
    assert resolve(file=folder / "config.toml") == small()
    assert json.loads((folder / "environment.json").read_text())["torch"] == torch.__version__


def test_an_interrupted_job_resumes_to_the_same_bits(tmp_path):
    class Crash(Exception):
        pass

    def crash(event):
        if event.round == 2:
            raise Crash

    whole = run_folder.execute(run_folder.prepare(small()), tmp_path / "whole")
    with pytest.raises(Crash):
        run_folder.execute(run_folder.prepare(small()), tmp_path / "halves", [crash])
    assert run_folder.status(tmp_path / "halves") == "started"
    again = run_folder.execute(run_folder.prepare(small()), tmp_path / "halves")
    assert torch.equal(again.x, whole.x)
    assert run_folder.status(tmp_path / "halves") == "finished"
    assert len((tmp_path / "halves" / "history.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "dirichlet_split", "pathological", "shards", "quantity"])
def test_every_partition_can_be_asked_for(partition):
    prepared = run_folder.prepare(small(f"data.partition={partition}", "data.alpha=1.0"))
    assert len(prepared.clients) == 8


def test_a_source_without_groups_has_no_natural_clients():
    with pytest.raises(InvalidInput, match="natural"):
        run_folder.prepare(small("data.partition=natural"))


def test_run_writes_a_report_and_resume_changes_nothing(tmp_path):
    first = command("run", "--out", tmp_path / "r")
    assert first.exit_code == 0 and "report.html" in first.output
    assert (tmp_path / "r" / "report.html").is_file()
    before = (tmp_path / "r" / "model.safetensors").read_bytes()
    again = command("run", "--out", tmp_path / "r")
    assert again.exit_code == 2 and "--resume" in again.output
    done = command("run", "--out", tmp_path / "r", "--resume")
    assert done.exit_code == 0 and "already finished" in done.output
    assert (tmp_path / "r" / "model.safetensors").read_bytes() == before
    other = command("run", "--out", tmp_path / "r", "--resume", "--algorithm", "fedavg(lr=0.2)")
    assert other.exit_code == 2 and "another configuration" in other.output


def test_resume_on_an_empty_folder_starts(tmp_path):
    (tmp_path / "empty").mkdir()
    assert command("run", "--out", tmp_path / "empty", "--resume", "--quiet").exit_code == 0
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    result = command("run", "--out", tmp_path)
    assert result.exit_code == 2 and "not a run folder" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_json_is_one_line_per_round(tmp_path):
    result = command("run", "--out", tmp_path / "r", "--json")
    assert [json.loads(line)["round"] for line in result.stdout.splitlines()] == [1, 2, 3]


def test_print_config_shows_every_value_with_its_meaning():
    result = command("run", "--print-config")
    assert result.exit_code == 0 and "rounds = 3" in result.stdout and "# seed of the partition" in result.stdout


def test_compare_runs_all_on_the_same_data_and_says_what_they_cost(tmp_path):
    arguments = (
        "compare",
        "--algorithms",
        "fedavg(lr=0.5),auto",
        "--seeds",
        2,
        "--target",
        0.2,
        "--out",
        tmp_path / "c",
    )
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    index = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [(r["algorithm"], r["seed"]) for r in index["runs"]] == [
        ("fedavg(lr=0.5)", 0), ("fedavg(lr=0.5)", 1), ("auto", 0), ("auto", 1),
    ]  # fmt: skip
    sizes = {(tmp_path / "c" / r["folder"] / "clients.json").read_text().split('"accuracy"')[0] for r in index["runs"]}
    assert len(sizes) == 1
    assert "to 20 %" in result.output and (tmp_path / "c" / "report.html").is_file()
    kept = command(*arguments)
    assert kept.exit_code == 0 and "round 1/" not in kept.output


def test_a_comparison_goes_on_when_one_run_diverges(tmp_path):
    algorithms = "fedavg(lr=1e38),fedavg(lr=0.5)"
    result = command("compare", "--algorithms", algorithms, "--seeds", 1, "--out", tmp_path / "c", "--quiet")
    assert result.exit_code == 0 and "diverged" in result.output
    assert (tmp_path / "c" / "report.html").is_file()


@pytest.mark.slow
def test_ctrl_c_stops_after_the_round_and_says_how_to_go_on(tmp_path):
    arguments = [part for text in (*SMALL, "training.rounds=2000") for part in ("--set", text)]
    out = tmp_path / "r"
    process = subprocess.Popen(
        [sys.executable, "-c", "from fedstride.app.cli import app; app()", "run", "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(out.glob("checkpoint-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said
    assert run_folder.status(out) == "started"
    done = len(run_folder._history(out))
    config = out / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2000", f"rounds = {done + 1}"))  # the rest would take long
    advice = said.split("Continue with: fedstride ")[1].split()
    again = CliRunner().invoke(app, advice)
    assert again.exit_code == 0, again.output
    assert run_folder.status(out) == "finished" and len(run_folder._history(out)) == done + 1


def test_a_csv_file_of_ones_own_is_trained_on_by_its_natural_clients(tmp_path):
    source = torch.Generator().manual_seed(0)
    lines = ["a,b,kind,who"]
    for i in range(120):
        a, b = torch.randn(2, generator=source).tolist()
        lines.append(f"{a},{b},{int(a > b)},{'xyz'[i % 3]}")
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    settings = [f"data.source={tmp_path / 'mine.csv'}", 'data.options={label = "kind", client = "who"}']
    config = small(*settings, "data.partition=natural", "training.rounds=20")
    run = run_folder.execute(run_folder.prepare(config), tmp_path / "run")
    assert resolve(file=tmp_path / "run" / "config.toml") == config
    assert len(json.loads((tmp_path / "run" / "clients.json").read_text())["sizes"]) == 3
    assert run.history[-1]["test_accuracy"] > 0.8


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar(tmp_path):
    import os
    import pty

    main, child = pty.openpty()
    arguments = [part for text in (*SMALL, "training.rounds=40") for part in ("--set", text)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from fedstride.app.cli import app; app()",
            "run",
            "--out",
            str(tmp_path / "r"),
            *arguments,
        ],
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"},
    )
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(main, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait() == 0
    assert b"/40" in shown and b"accuracy" in shown and b"report.html" in shown


def test_personal_models_are_tested_on_the_classes_of_their_clients(tmp_path):
    prepared = run_folder.prepare(small("model.name=mlp", 'training.personal=["head.*"]'))
    run = run_folder.execute(prepared, tmp_path / "run")
    for client, (_, targets) in zip(prepared.clients, prepared.own_tests, strict=True):
        assert set(targets.tolist()) == set(client.take()[1].tolist())
    scores = [evaluate(run.personal[i], test)["accuracy"] for i, test in enumerate(prepared.own_tests)]
    assert run.history[-1]["test_accuracy"] == pytest.approx(sum(scores) / len(scores))
    assert load(tmp_path / "run", prepared.model).personal is not None


def test_the_report_says_who_gains_by_the_federation(tmp_path):
    done = command("run", "digits", "--alone", "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert len(json.loads((tmp_path / "run/personal.json").read_text())["rows"]) == 8
    page = (tmp_path / "run/report.html").read_text()
    assert "of 8 clients gain from the federation" in page and "Does federation help each client?" in page


def test_a_private_run_has_files_for_its_owner_and_pages_without_seeds(tmp_path):
    private = ["--set", "training.privacy.noise=1", "--set", "training.cohort=none", "--seed", 424242]
    settings = [part for text in SMALL if "cohort" not in text for part in ("--set", text)]
    done = CliRunner().invoke(app, ["run", *map(str, private), *settings, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), "--resume", "--rounds", "4"])
    assert again.exit_code == 0, again.output
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    readable = {path.name for path in files if path.stat().st_mode & 0o077}
    assert readable <= {"model.safetensors", ".lock"}
    with_seed = {path.name for path in files if b"424242" in path.read_bytes()}
    assert all(name == "config.toml" or name.startswith("checkpoint-") for name in with_seed)  # needed to resume
    assert "command" not in json.loads((tmp_path / "run" / "environment.json").read_text())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "seed = &#34;withheld&#34;" in page and "Environment" in page
