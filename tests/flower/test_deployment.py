"""The example app with a strategy, deployed on this machine: SuperLink and two SuperNodes with TLS and keys."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")

from fedstride.core.files import read_tensors
from fedstride.training import checkpoint
from tests.deployment import Deployment

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-strategy"


def in_float64(folder: Path) -> Path:
    """The example in double precision, with the client that calls fedstride.flower.train."""
    app = Path(shutil.copytree(EXAMPLE, folder / "app"))
    for path in (app / "digits").glob("*.py"):
        text = path.read_text().replace("float32", "float64").replace("Net()", "Net().double()")
        path.write_text(text)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('"digits.client_app:app"', '"digits.fedstride_client_app:app"'))
    return app


def expected(app: Path, rounds: int) -> torch.Tensor:
    """The same run without a network."""
    sys.path.insert(0, str(app))
    try:
        task = importlib.import_module("digits.task")
    finally:
        sys.path.remove(str(app))
        for name in ("digits", "digits.task"):
            sys.modules.pop(name, None)
    torch.manual_seed(0)
    model, data = task.Net().double(), [task.load_data(i, 2) for i in range(2)]
    given = {"rounds": rounds, "weights": "samples", "epochs": 1, "batch_size": 64}
    return fs.train(model, "cross_entropy", data, "scaffold", **given).x


def test_a_deployed_strategy_gives_the_numbers_of_fs_train_and_resumes(tmp_path):
    app, saved = in_float64(tmp_path), tmp_path / "saved"
    given = {"strategy": "Scaffold", "batch_size": 64, "checkpoint": str(saved)}
    deployment = Deployment(
        tmp_path, nodes=2, config="partition-id={} num-partitions=2".format, heartbeat=120
    )  # a slow start is not a death
    deployment.environment["PYTHONPATH"] += os.pathsep + str(Path(fs.__file__).parents[1])  # the code under test
    with deployment as it:
        for rounds in (1, 2):  # the second run continues the first
            run = it.run(app, num_server_rounds=rounds, **given)
            assert it.wait(run, timeout=1500) == "finished:completed", it.log(run)
            tensors, _ = read_tensors(checkpoint.files(saved)[0])
            assert len(checkpoint.history("the checkpoint", tensors)) == rounds
            assert torch.allclose(tensors["x"], expected(app, rounds), rtol=0, atol=1e-10)
