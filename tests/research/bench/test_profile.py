"""The profile adds up, and puts every operation where it belongs; how long they take is not a test's business."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from fedstride.app.cli import app
from fedstride.research.bench.profile import OTHER, PYTHON, WAITING, Recorder, kind_of, profile, table
from fedstride.research.bench.workloads import WORKLOADS

TINY = replace(WORKLOADS["softmax"], shape=(6,), classes=3, clients=3, samples=8, batch=4, steps=4)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("mm bmm addmm baddbmm baddbmm_ convolution convolution_backward mkldnn_rnn_layer addmv_", "products"),
        ("index_select cat stack copy_ clone empty", "fetching and copies"),
        ("_softmax _log_softmax relu_ threshold_backward scatter_add_ native_group_norm", "activations and loss"),
        ("add_ sub mul_ sum _foreach_add_", "update and sums"),
        ("view slice transpose detach", OTHER),
    ],
)
def test_the_kinds_of_operations(names, kind):
    assert {kind_of(name) for name in names.split()} == {kind}


def test_products_are_kept_once_for_each_shape():
    A, B = torch.ones(3, 3), torch.ones(3, 2)
    with Recorder() as recorder:
        for _ in range(4):
            A @ B
        A @ A
        A @ A.T
    assert sorted(times for _, times in recorder.products.values()) == [1, 1, 4]
    calls = [call for call, times in recorder.products.values() if times == 4]
    assert torch.equal(calls[0](), A @ B)
    assert recorder.seconds["products"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
def test_a_profile_adds_up(model):
    work = replace(WORKLOADS[model], clients=2, samples=8, batch=4, steps=2)
    found = profile(work)
    assert set(found.parts) >= {"products", PYTHON, WAITING}
    assert min(found.parts.values()) >= 0 < found.alone
    assert found.total == pytest.approx(sum(found.parts.values()))
    rows = table(found)
    assert [row[0].split(",")[0] for row in rows[-3:]] == ["total", "the products alone", "a hand-written loop"]
    assert found.by_hand > 0


@pytest.mark.slow
def test_the_command_prints_the_profile(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "softmax", TINY)
    done = CliRunner().invoke(app, ["bench", "speed", "--profile", "softmax", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["oracle"] == "linear"
    shown = CliRunner().invoke(app, ["bench", "speed", "--profile", "softmax", "--markdown"])
    assert "| total |" in shown.stdout


def test_unknown_workloads_are_refused():
    done = CliRunner().invoke(app, ["bench", "speed", "--profile", "sofmax"])
    assert done.exit_code == 2 and "'softmax'" in done.stderr
