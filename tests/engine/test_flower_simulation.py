"""A run in Flower's simulation engine, on Ray, agrees with the local engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")
pytest.importorskip("ray")

from fedstride.engine.flower.project import arguments
from tests.engine.simulation import ALGORITHMS, SIZES, load_data, load_test, make_model, project, settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def simulated(folder: Path) -> None:
    """Run a simulation in a folder, on the loopback interface only."""
    quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    env = {**os.environ, **quiet, "FLWR_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engine.simulation", str(folder)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_simulation_trains_as_the_local_engine(tmp_path):
    simulated(tmp_path)
    for algorithm in ALGORITHMS:
        given = settings(algorithm, tmp_path)
        data = [load_data(given, {"partition-id": client}) for client in range(len(SIZES))]
        expected = fs.train(project.build(given), project.loss, data, test=load_test(given), **arguments(given))
        found = fs.load(given["out"], make_model(given))
        assert torch.allclose(found.x, expected.x, rtol=0, atol=1e-10)
        for mine, theirs in zip(found.history, expected.history, strict=True):
            assert mine["test_loss"] == pytest.approx(theirs["test_loss"], abs=1e-10)
            assert (mine["participants"], mine["lost"], mine["bytes_up"]) == (2, 0, theirs["bytes_up"])
    assert len(list((tmp_path / "fedstride-memory").iterdir())) == len(
        ALGORITHMS
    )  # of nodes, in their working directory
