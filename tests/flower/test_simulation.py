"""Strategies in Flower's simulation, on Ray: the numbers of fs.train(), and the same bits after a kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")
pytest.importorskip("ray")

from fedstride.research.bench.launch import end_all
from fedstride.training import checkpoint
from tests.deployment import until
from tests.flower.quickstart import SIZES, load_data, make_model
from tests.flower.simulation import LOCAL, ROUNDS, SEED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RULES = {
    "fedstride": {
        "Auto": "auto",
        "FedSLS": "fedsls",
        "FedExpSLS": "fedexpsls",
        "DeltaSGD": "delta_sgd",
        "Scaffold": "scaffold",
        "FedLin": "fedlin",
        "FedNova": "fednova",
        "FedProx": "fedprox",
    },
    "unchanged": {"FedExP": "fedexp(lr=0.2)", "FedAvgM": "fedavgm(lr=0.2)", "FedAdam": "fedadam(lr=0.2)"},
}


def begin(folder: Path, client: str, *rules: str, tag: str, pause: float = 0.0) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    own = {"FLWR_HOME": str(folder / "home"), "FEDSTRIDE_PAUSE": str(pause), **dict([tag.split("=")])}
    where = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.flower.simulation", str(folder), client, *rules]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, env={**os.environ, **quiet, **own, "PYTHONPATH": where}, cwd=ROOT, stdout=log, stderr=log
        )


def finished(folder: Path, client: str, *rules: str) -> dict[str, np.ndarray]:
    tag = f"FEDSTRIDE_TEST={uuid.uuid4().hex}"
    try:
        code = begin(folder, client, *rules, tag=tag).wait(900)
        assert code == 0, (folder / "log").read_text()[-3000:]
    finally:
        end_all(tag)
    return {rule: np.concatenate([v.ravel() for v in np.load(folder / f"{rule}.npz").values()]) for rule in rules}


@pytest.mark.parametrize("client", RULES)
def test_a_simulation_gives_the_numbers_of_fs_train(client, tmp_path):
    found, data = finished(tmp_path, client, *RULES[client]), [load_data(i) for i in range(len(SIZES))]
    for rule, algorithm in RULES[client].items():
        given = {"rounds": ROUNDS, "seed": SEED, "weights": "samples", **LOCAL}
        run = fs.train(make_model(), "cross_entropy", data, algorithm, **given)
        expected = torch.cat([v.reshape(-1) for v in run.model.state_dict().values()]).numpy()
        assert np.abs(found[rule] - expected).max() <= 1e-10, rule


@pytest.mark.parametrize(("client", "rule"), [("unchanged", "FedExP"), ("fedstride", "Scaffold")])
def test_a_killed_server_continues_to_the_same_bits(client, rule, tmp_path):
    whole = finished(tmp_path / "whole", client, rule)[rule]
    folder = tmp_path / "killed"
    tag = f"FEDSTRIDE_TEST={uuid.uuid4().hex}"
    process = begin(folder, client, rule, tag=tag, pause=1.0)
    try:
        until(lambda: done(folder / rule) >= 2, 600, "two rounds")
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        end_all(tag)  # Ray's processes outlive it
    assert 2 <= done(folder / rule) < ROUNDS
    assert np.array_equal(finished(folder, client, rule)[rule], whole)


def done(folder: Path) -> int:
    """Rounds that the newest checkpoint has."""
    return max((int(checkpoint.FILE.fullmatch(path.name)[1]) for path in checkpoint.files(folder)), default=0)
