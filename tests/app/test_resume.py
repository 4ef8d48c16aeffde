"""Resuming runs as people mean it, signals, and runs that fail."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedstride import load
from fedstride.app import run_folder
from fedstride.app.cli import app
from fedstride.app.config import resolve
from fedstride.app.progress import SIGNALS, Stopped, stop_after_round
from fedstride.app.resume import Request, newest_unfinished
from fedstride.training.checkpoint import in_use, locked
from fedstride.training.rounds import Event

SMALL = {"data.clients": 8, "training.cohort": 3, "training.batch_size": 30, "model.name": "softmax"}
OPTIONS = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


def call(*arguments):
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def start(folder, *arguments):
    return call("digits", *OPTIONS, "--quiet", "--out", folder, *arguments)


def unfinished(folder, rounds=3, **more):
    """Stop a run after its first round."""

    class Crash(Exception):
        pass

    def crash(event):
        if event.round == 1:
            raise Crash

    config = resolve("digits", settings={**SMALL, "training.rounds": rounds, **more})
    with pytest.raises(Crash):
        run_folder.execute(run_folder.prepare(config), folder, [crash])
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rounds_of(folder):
    return len((Path(folder) / "history.jsonl").read_text().splitlines())


def test_resume_takes_the_configuration_of_the_folder():
    unfinished(Path("x"))
    done = call("--out", "x", "--resume", "--quiet")
    assert done.exit_code == 0 and rounds_of("x") == 3, done.output
    assert start("whole", "--rounds", 3).exit_code == 0
    assert torch.equal(load("x").x, load("whole").x)


def test_rounds_may_grow_and_the_result_is_that_of_a_long_run():
    assert start("x", "--rounds", 2).exit_code == 0
    before = Path("x/model.safetensors").read_bytes()
    finished = call("--out", "x", "--resume")
    assert finished.exit_code == 0 and "already finished" in finished.output and "--rounds N" in finished.output
    assert Path("x/model.safetensors").read_bytes() == before
    grown = call("--out", "x", "--resume", "--rounds", 4, "--quiet")
    assert grown.exit_code == 0 and rounds_of("x") == 4
    assert start("whole", "--rounds", 4).exit_code == 0
    assert torch.equal(load("x").x, load("whole").x)
    assert resolve(file=Path("x/config.toml")).training.rounds == 4


def test_all_that_differs_is_named():
    unfinished(Path("x"))
    asked = ("--algorithm", "fedavg(lr=0.2)", "--seed", 5, "--set", "training.batch_size=30", "--rounds", 9)
    done = call("mnist", "--out", "x", "--resume", *asked)
    assert done.exit_code == 2 and "another configuration" in done.output
    text = done.output.replace("\n", " ")
    assert "algorithm is auto there, and fedavg(lr=0.2) was asked for" in text
    assert "training.seed is 0 there, and 5 was asked for" in text and "task is digits there, and mnist" in text
    assert "batch_size" not in text and "rounds" not in text
    assert rounds_of("x") == 1


def test_checkpoints_may_be_saved_less_often():
    unfinished(Path("x"))
    assert call("--out", "x", "--resume", "--quiet", "--set", "training.checkpoints.keep=3").exit_code == 0
    assert resolve(file=Path("x/config.toml")).training.checkpoints == {"keep": 3}


def test_a_file_of_settings_is_compared_too():
    unfinished(Path("x"))
    assert call("--config", "x/config.toml", "--out", "x", "--resume", "--quiet").exit_code == 0
    Path("c.toml").write_text("[training]\ncohort = 4\n")
    assert (
        "training.cohort is 3 there, and 4 was asked for" in call("--config", "c.toml", "--out", "x", "--resume").output
    )


def test_resume_without_a_folder_continues_the_newest_unfinished_run():
    assert "there are no runs" in call("--resume").output
    for i, name in enumerate(("old", "new")):
        unfinished(Path("runs") / name)
        for file in ("config.toml", "history.jsonl"):
            os.utime(Path("runs") / name / file, (1e9 + i, 1e9 + i))
    unfinished(Path("runs/other"), **{"training.seed": 3})
    os.utime(Path("runs/other/history.jsonl"), (1, 1))
    assert newest_unfinished(Path("runs"), Request(settings={"training.seed": 3})) == Path("runs/other")
    with locked(Path("runs/other")):
        assert in_use(Path("runs/other")), "a living process writes into it"
        assert newest_unfinished(Path("runs"), Request()) == Path("runs/new")
    assert not in_use(Path("runs/other"))
    os.utime(Path("runs/other/config.toml"), (2e9, 2e9))
    assert call("--resume", "--quiet").exit_code == 0 and rounds_of("runs/other") == 3
    assert call("--resume", "--quiet").exit_code == 0 and rounds_of("runs/new") == 3
    assert rounds_of("runs/old") == 1
    assert call("--resume", "--quiet").exit_code == 0 and rounds_of("runs/old") == 3
    done = call("--resume")
    assert done.exit_code == 2 and "no run under runs/ is unfinished" in done.output
    assert "--resume --rounds N" in done.output


def test_a_run_that_diverges_ends_with_a_report_and_advice():
    Path("line.csv").write_text("\n".join(["x,y", *(f"{i / 7},{i / 3 + 0.1}" for i in range(60))]))
    done = call("line.csv", "--label", "y", "--rounds", 200, "--algorithm", "fedavg(lr=2)", "--out", "x", "--quiet")
    assert done.exit_code == 1 and "diverged in round" in done.output
    assert "Next: " in done.output and "report: x/report.html" in done.output
    assert {p.name for p in Path("x").iterdir()} >= {
        "report.html",
        "diagnosis.html",
        "model.safetensors",
        "clients.json",
    }
    assert run_folder.status(Path("x")) == "failed"
    Path("runs").mkdir()
    Path("x").rename("runs/x")
    assert "no run under runs/ is unfinished" in call("--resume").output


def test_a_run_that_diverges_at_once_says_what_to_try():
    done = start("x", "--algorithm", "fedavg(lr=1e38)")
    assert done.exit_code == 1 and "Next: --algorithm auto" in done.output


def test_early_stopping_is_an_end():
    stop = 'training.stop={metric="test_loss", patience=1, mode="max"}'
    assert start("x", "--rounds", 30, "--set", stop).exit_code == 0 and rounds_of("x") < 30
    assert run_folder.status(Path("x")) == "finished"
    assert "already finished" in call("--out", "x", "--resume").output


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_run_after_the_round(number):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped, stop_after_round() as check:
        check(Event(1, torch.zeros(1), {}))
        signal.raise_signal(number)
        check(Event(0, torch.zeros(1), {}))  # no round to save yet
        check(Event(2, torch.zeros(1), {}))
    assert stopped.value.exit_code == 128 + number and signal.getsignal(number) is before
    with pytest.raises(KeyboardInterrupt), stop_after_round():
        signal.raise_signal(number)
        signal.raise_signal(number)


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_after_round() as check:
            signal.raise_signal(signal.SIGHUP)
            check(Event(1, torch.zeros(1), {}))
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_program_saves_and_says_how_to_go_on(tmp_path, number):
    command = [sys.executable, "-m", "fedstride", "run", "--rounds", "5000", *OPTIONS, "--out", "x"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(Path("x").glob("checkpoint-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Continue with: fedstride run --out x --resume" in said
    done = rounds_of("x")
    again = call("--out", "x", "--resume", "--rounds", done + 1, "--quiet")
    assert again.exit_code == 0 and rounds_of("x") == done + 1
    assert json.loads(Path("x/environment.json").read_text())["ended"] == "finished"
