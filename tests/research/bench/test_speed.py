"""The benchmark compares like with like, and shows no time of an engine that is wrong; how fast is not a test's business."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstride.app.cli import app
from fedstride.research.bench import show, speed
from fedstride.research.bench.engines import (
    BY_HAND,
    FEDSTRIDE,
    PROGRAMS,
    TORCHRUN,
    EngineFailed,
    Program,
    RunningProgram,
    engines,
)
from fedstride.research.bench.workloads import GROWTH, WORKLOADS

pytestmark = pytest.mark.slow

TINY = replace(WORKLOADS["softmax"], shape=(6,), classes=3, clients=3, samples=8, batch=4, steps=4, rounds=1)
WRONG = Program("fake", (sys.executable, str(Path(__file__).with_name("wrong.py"))))


def quiet(text: str) -> None:
    pass


def report_of(workloads, growth=None):
    found = {"machine": speed.machine(), "repeats": 1, "workloads": workloads, "growth": growth or {}}
    return {**found, "claims": speed.claims(workloads, found["growth"])}


@pytest.mark.parametrize("algorithm", ["scaffold", "fedsls"])
def test_by_hand_and_fedstride_train_the_same_model(algorithm, tmp_path):
    found = {e.name: speed.ProgramTiming() for e in (BY_HAND, FEDSTRIDE, TORCHRUN)}
    speed._check(replace(TINY, algorithm=algorithm), [BY_HAND, FEDSTRIDE, TORCHRUN], found, tmp_path, quiet)
    for name in ("fedstride", "torchrun"):
        assert found[name].status == "ok" and found[name].difference < 1e-12


def test_an_engine_that_is_wrong_is_shown_as_wrong_and_without_a_time():
    missing = Program("pfl", ("/nowhere/python",), peer=True)
    result = speed.compare(TINY, [BY_HAND, WRONG, missing], 1, quiet)
    fake = result["engines"]["fake"]
    assert fake["status"] == "wrong" and fake["difference"] == pytest.approx(1) and not fake["seconds"]
    report = report_of({"softmax": result})
    assert show.table(report)[1][2:4] == ["WRONG", "missing"]
    assert [n for n in show.notes(report) if "make bench-peers" in n] == ["pfl: not installed: make bench-peers"]


def test_an_engine_that_breaks_says_why(tmp_path):
    TINY.write(tmp_path / "work")
    broken = Program("broken", (sys.executable, "-c", "raise ValueError('no luck')"))
    with (
        pytest.raises(EngineFailed, match="broken has ended: ValueError: no luck"),
        RunningProgram(broken, tmp_path / "work") as w,
    ):
        w.ask(do="rounds", n=1)


def test_the_processes_of_a_worker_end_with_it(tmp_path):
    TINY.write(tmp_path / "work")
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '99']); print(p.pid, flush=True); sys.stdin.read()"
    with (
        pytest.raises(KeyboardInterrupt),
        RunningProgram(Program("sleeper", (sys.executable, "-c", code)), tmp_path / "work") as w,
    ):
        child = w.ask(do="rounds", n=1)
        assert os.kill(child, 0) is None
        raise KeyboardInterrupt
    assert w.process.poll() is not None
    for _ in range(50):  # an orphan that was killed waits to be collected
        stat = Path(f"/proc/{child}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child of the worker lives on")


def test_the_command_writes_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "softmax", TINY)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", "speed", "--workload", "softmax", "--repeats", "1", "--markdown"])
    assert done.exit_code == 0, done.output
    report = json.loads(Path("runs/bench/speed.json").read_text())
    ours = report["workloads"]["softmax"]["engines"]["fedstride"]
    assert ours["status"] == "ok" and ours["difference"] < 1e-12 and ours["checked_in"] == "float64"
    row = show.table(report)[1]
    assert "| " + " | ".join(row) + " |" in done.stdout
    assert row[2] == f"{ours['ratio']:.2f}"
    assert [c["what"] for c in report["claims"]] == ["softmax: times faster than by hand"]
    assert "make bench-peers" in done.stdout
    assert Path("runs/bench/speed.svg").read_text().startswith("<svg")
    assert "speed-up over the hand-written loop" in Path("runs/bench/speed.html").read_text()


def test_bfloat16_is_timed_beside_float32(tmp_path, monkeypatch, bfloat16):
    monkeypatch.setitem(WORKLOADS, "softmax", TINY)
    monkeypatch.chdir(tmp_path)
    command = "bench speed --workload softmax --engine fedstride --repeats 1 --bfloat16 --json"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["workloads"]["softmax"]["engines"]
    assert found["bfloat16"]["status"] == "ok" and found["bfloat16"]["ratio"] > 0
    assert 1e-5 < found["bfloat16"]["difference"] < 0.1  # from float32, by the rounding of bfloat16
    row = show.table(report_of({"softmax": {"foreign_load": 0.0, "engines": found}}))
    assert row[0][2:4] == ["fedstride", "bfloat16"]
    assert row[1][-1].endswith(f" / {found['bfloat16']['difference']:.0e}")


def test_unknown_names_are_refused():
    done = CliRunner().invoke(app, ["bench", "speed", "--workload", "sofmax"])
    assert done.exit_code == 2 and "'softmax'" in done.stderr


def test_growth_reports_time_and_memory(monkeypatch):
    tiny = {20: replace(TINY, clients=2, federation=20)}
    monkeypatch.setattr(speed, "GROWTH", {"clients in all": tiny})
    found = speed.growth(quiet)
    (point,) = found["clients in all"]
    assert point["n"] == 20 and point["seconds"] > 0 and point["peak_bytes"] > 2**20
    (claim,) = report_of({}, found)["claims"]
    assert claim["what"].startswith("20 clients") and claim["kept"]


def test_flops_are_those_of_the_formula():
    w = WORKLOADS["softmax"]
    assert w.flops() == 20 * 20 * 4 * 50 * 784 * 62  # the product and its gradient, two FLOPs each


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_models_of_the_peers_are_ours(name, monkeypatch):
    monkeypatch.syspath_prepend(PROGRAMS)
    w = WORKLOADS[name]
    theirs = importlib.import_module("nets").build(w.model, list(w.shape), w.classes)
    assert [p.shape for p in theirs.parameters()] == [p.shape for p in w.build().parameters()]


def test_the_table_of_engines_and_of_growth():
    assert list(engines()) == ["by hand", "fedstride", "torchrun", "pfl", "flower", "fedjax"]
    assert max(GROWTH["clients in all, 10 in a round"]) == 1_000_000
    assert max(GROWTH["clients in a round, 1,000,000 in all"]) == 10_000


def test_the_time_of_a_client_must_not_grow_with_the_cohort():
    points = [{"n": n, "seconds": s, "peak_bytes": 2**28} for n, s in ((10, 1.0), (100, 3.0), (1000, 60.0))]
    found = {c["what"]: c for c in speed.claims({}, {"clients in a round, 5,000 in all": points})}
    memory, time = found.values()
    assert memory["what"].startswith("1,000 clients in a round, 5,000 in all: peak memory") and memory["kept"]
    assert time["measured"] == pytest.approx(2.0) and not time["kept"]
    failed = [{"n": 10, "seconds": None, "peak_bytes": None}]
    assert speed.claims({}, {"clients in a round": failed}) == []


def test_the_fastest_other_library_is_the_one_to_beat():
    seconds = {"by hand": 1.0, "fedstride": 0.25, "pfl": 0.8, "flower": 2.0, "fedjax": 0.5}
    timed = {name: vars(speed.ProgramTiming(seconds=[s, s], ratio=1 / s)) for name, s in seconds.items()}
    (_, found) = speed.claims({"softmax": {"engines": timed}}, {})
    assert found["what"] == "softmax: times faster than fedjax, the fastest other library"
    assert (found["measured"], found["bound"], found["kept"]) == (2.0, 3.0, False)
