"""The benchmark finds out an engine that trains something else, however little; and one that is missing is no error."""

from __future__ import annotations

import json
import tempfile
import time

import pytest
import torch
from typer.testing import CliRunner

from fedstride.algorithm.recipes import RECIPES
from fedstride.app.cli import app
from fedstride.core.message import unpack
from fedstride.engine import Local
from fedstride.research.bench import cases, launch, parity
from fedstride.research.bench.engines import EngineFailed

pytestmark = pytest.mark.slow


def pretend(monkeypatch, spoil=lambda x, history: (x, history), **more):
    """An engine that is the local one, but for what is spoilt."""

    def start(at, name, job):
        place = at.place(name, job)
        parity.here(place, job["recipes"], job["rounds"], Local())
        for recipe in job["recipes"]:
            tensors, meta = unpack(parity.file(place, recipe).read_bytes(), recipe)
            cases.keep(parity.file(place, recipe), *spoil(tensors["x"], meta["history"]))
        (place / launch.ENDED).touch()

    monkeypatch.setattr(parity, "LANES", {"fake": parity.Lane(start, **more)})


def command(tmp_path, *arguments):
    given = ["bench", "parity", "--algorithm", "fedavg", "--rounds", "3", "--out", str(tmp_path), *arguments]
    done = CliRunner().invoke(app, given)
    return done, json.loads((tmp_path / "parity.json").read_text())


def test_an_engine_that_trains_the_same_is_kept(tmp_path, monkeypatch):
    pretend(monkeypatch, bits=True)
    done, report = command(tmp_path, "--markdown")
    assert done.exit_code == 0, done.output
    expected = {"status": "kept", "same_bits": True, "same_counts": True, "difference": 0}
    assert report["recipes"] == {"fedavg": {"fake": expected}}
    assert "| fedavg | same bits | kept |" in done.stdout


@pytest.mark.parametrize("bits, size, code", [(True, 1e-13, 1), (False, 1e-13, 0), (False, 1e-6, 1)])
def test_a_small_difference_in_one_round_is_found_out(tmp_path, monkeypatch, bits, size, code):
    def spoil(x, history):
        x[1] *= 1 + size
        return x, history

    pretend(monkeypatch, spoil, bits=bits)
    done, report = command(tmp_path, "--markdown")
    assert done.exit_code == code
    cell = report["recipes"]["fedavg"]["fake"]
    assert cell["difference"] == pytest.approx(size, rel=0.01) and not cell["same_bits"]
    assert f"| fedavg | {cell['difference']:.1e} | {'missed' if code else 'kept'} |" in done.stdout


@pytest.mark.parametrize(
    "name, bits, code", [("bytes_up", False, 1), ("train_loss", False, 0), ("train_loss", True, 1)]
)
def test_the_history_counts_too(tmp_path, monkeypatch, name, bits, code):
    def spoil(x, history):
        history[2][name] += 1
        return x, history

    pretend(monkeypatch, spoil, bits=bits)
    done, report = command(tmp_path)
    assert done.exit_code == code and report["recipes"]["fedavg"]["fake"]["difference"] == 0


def test_rounds_that_are_missing_are_not_the_same(tmp_path, monkeypatch):
    pretend(monkeypatch, lambda x, history: (x[:2], history[:2]))
    assert command(tmp_path)[0].exit_code == 1


def test_fewer_rounds_in_the_deployment_are_compared_with_the_first_ones(tmp_path, monkeypatch):
    pretend(monkeypatch, bits=True)
    monkeypatch.setattr(parity, "LANES", {"deployment": parity.LANES["fake"]})
    done, report = command(tmp_path, "--deployment-rounds", "2", "--markdown")
    assert done.exit_code == 0 and report["engines"]["deployment"]["rounds"] == 2
    assert "| recipe | deployment, 2 rounds |  |" in done.stdout


def test_what_is_not_installed_is_said_and_is_no_failure(tmp_path, monkeypatch):
    pretend(monkeypatch, needs=("a_package_that_nobody_has",))
    done, report = command(tmp_path)
    assert done.exit_code == 0 and report["recipes"]["fedavg"]["fake"] == {"status": "not installed"}
    assert "fake: not installed (pip install 'fedstride[flower]')" in done.stdout


def test_an_engine_that_fails_says_why(tmp_path, monkeypatch):
    broken = parity.Lane(lambda at, name, job: at.python(name, "fedstride.research.bench.nothing", job))
    monkeypatch.setattr(parity, "LANES", {"fake": broken})
    done, report = command(tmp_path)
    assert done.exit_code == 1 and report["recipes"]["fedavg"]["fake"] == {"status": "failed"}
    assert "No module named fedstride.research.bench.nothing" in report["engines"]["fake"]["note"]


def test_an_error_inside_flower_is_told(tmp_path):
    at = launch.Launched(tmp_path)
    place = at.place("simulation", {})
    (place / launch.ENDED).write_text("Traceback ...\nValueError: no luck\n")
    with pytest.raises(EngineFailed, match="simulation: ValueError: no luck"):
        at.over("simulation")


def test_all_that_was_started_ends_with_the_block(tmp_path):
    code = "import subprocess, time; subprocess.Popen(['sleep', '99'], start_new_session=True); time.sleep(99)"
    with launch.Launched(tmp_path) as at:
        at.place("sleeper", {})
        at._start("sleeper", [launch.sys.executable, "-c", code], {})
        end = time.monotonic() + 30
        while len(found := [pid for pid in launch.everyone() if at.tag.encode() in launch.environment(pid)]) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert at.processes["sleeper"].poll() is not None
    assert not [pid for pid in found if at.tag.encode() in launch.environment(pid)]


def test_unknown_engines_are_refused():
    done = CliRunner().invoke(app, ["bench", "parity", "--engine", "torchrun"])
    assert done.exit_code == 2 and "'torchrun-2'" in done.stderr


def test_every_recipe_is_compared_in_doubles_on_clients_of_different_sizes(tmp_path):
    cases.write_digits(tmp_path)
    for recipe in RECIPES:
        case = cases.Digits(recipe, str(tmp_path))
        assert [len(case.samples(c)[1]) for c in range(case.clients)] == list(cases.SIZES)
        assert {p.dtype for p in case.model().parameters()} == {torch.float64}
        assert (case.arguments(1)["cohort"] == 3) == (recipe != "fedsplit")
        assert cases.case_of(cases.settings(case, 1)) == case


def test_two_recipes_have_the_same_bits_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done, report = command(tmp_path, "--algorithm", "scaffold", "--engine", "torchrun-2")
    assert done.exit_code == 0, done.output
    assert {name: row["torchrun-2"]["same_bits"] for name, row in report["recipes"].items()} == {
        "fedavg": True,
        "scaffold": True,
    }
    assert not list(tmp_path.glob("fs-*"))
