"""Loggers write every number of the history, under the right round; TensorBoard and MLflow are read back by themselves."""

from __future__ import annotations

import builtins
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.app.loggers import JsonLines, MLflow, TensorBoard, Wandb, numbers_of

QUARTILES = ["min", "q25", "median", "q75", "max"]
NAMES = {
    "compression",
    "update",
    *("train_loss", "test_loss", "test_accuracy", "server_step", "client_step", "trials", "failed", "drift"),
    *("bytes_up", "bytes_down", "gradients", "forwards", "seconds", "participants", "lost"),
    *("attempts", "rollbacks"),
    *(f"client_steps/{part}" for part in QUARTILES),
}


def train(*callbacks, rounds=3, **options):
    source = torch.Generator().manual_seed(0)
    clients = [(torch.randn(6, 4, generator=source), torch.arange(6) % 3) for _ in range(4)]
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return fs.train(model, "cross_entropy", clients, "fedsls", rounds=rounds, callbacks=callbacks, **options)


def held_out():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.arange(5) % 3


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_numbers_of_a_row():
    row = {"round": 3, "loss": 2, "none": None, "text": "no", "many": [1.5, None, 2], "client_steps": [0, 1, 2, 3, 4]}
    steps = {f"client_steps/{part}": float(i) for i, part in enumerate(QUARTILES)}
    assert dict(numbers_of(row)) == {"loss": 2.0, "many/0": 1.5, "many/2": 2.0, **steps}


def test_a_run_has_these_numbers():
    run = train(test=held_out())
    assert {name for name, _ in numbers_of(run.history[0])} == NAMES
    without = {name for name, _ in numbers_of(train().history[0])}
    assert without == NAMES - {"test_loss", "test_accuracy"}


def test_json_lines_are_the_history(tmp_path):
    log = JsonLines(tmp_path / "new" / "log.jsonl")
    run = train(log)
    log.close()
    assert lines(tmp_path / "new" / "log.jsonl") == list(run.history)


def test_json_lines_can_be_followed(tmp_path):
    seen = []
    train(JsonLines(tmp_path / "log.jsonl"), lambda event: seen.append(len(lines(tmp_path / "log.jsonl"))))
    assert seen == [0, 1, 2, 3]


def test_json_lines_of_a_resumed_run_go_on(tmp_path):
    for rounds in (2, 5):
        log = JsonLines(tmp_path / "log.jsonl")
        run = train(log, rounds=rounds, checkpoint=tmp_path / "run")
        log.close()
    assert lines(tmp_path / "log.jsonl") == list(run.history) and len(run.history) == 5


def test_json_lines_that_cannot_be_written(tmp_path):
    with pytest.raises(fs.InvalidInput, match=r"JsonLines: .* cannot be written"):
        JsonLines(tmp_path)


@pytest.mark.parametrize(
    "make, missing", [(TensorBoard, "torch.utils.tensorboard"), (MLflow, "mlflow"), (Wandb, "wandb")]
)
def test_a_logger_that_is_not_installed_says_how_to_get_it(make, missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(fs.InvalidInput, match=rf"{make.__name__} is not installed .*pip install 'fedstride\[track\]'"):
        make(str(tmp_path))


def test_the_libraries_are_asked_for_only_when_used(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert name.partition(".")[0] not in ("mlflow", "tensorboard")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "fedstride.app.loggers")
    __import__("fedstride.app.loggers")


def test_tensorboard_reads_every_number_under_its_round(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoard(tmp_path)
    run = train(log, test=held_out())
    log.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == NAMES
    for name in NAMES:
        wanted = [(row["round"], dict(numbers_of(row))[name]) for row in run.history]
        got = [(point.step, point.value) for point in found.Scalars(name)]
        assert [step for step, _ in got] == [step for step, _ in wanted]
        assert [v for _, v in got] == pytest.approx([v for _, v in wanted], rel=1e-6)  # float32 in its files


def test_mlflow_reads_every_number_under_its_round(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    log = MLflow("stride", run_name="first", tracking_uri=store)
    run = train(log, test=held_out())
    client = mlflow.MlflowClient(store)
    assert client.get_run(log.run_id).info.status == "RUNNING"
    log.close()
    kept = client.get_run(log.run_id)
    assert (kept.info.status, kept.info.run_name) == ("FINISHED", "first")
    assert client.get_experiment(kept.info.experiment_id).name == "stride"
    assert set(kept.data.metrics) == NAMES
    for name in NAMES:
        wanted = [(row["round"], dict(numbers_of(row))[name]) for row in run.history]
        assert [(m.step, m.value) for m in client.get_metric_history(log.run_id, name)] == wanted
    assert mlflow.active_run() is None


def test_mlflow_finds_an_experiment_again_and_can_say_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    first, second = (MLflow("stride", tracking_uri=store) for _ in range(2))
    first.close("FAILED")
    second.close()
    client = mlflow.MlflowClient(store)
    runs = [client.get_run(log.run_id).info for log in (first, second)]
    assert first.run_id != second.run_id
    assert runs[0].experiment_id == runs[1].experiment_id
    assert [r.status for r in runs] == ["FAILED", "FINISHED"]


def test_mlflow_without_arguments_goes_where_its_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from outside")
    log = MLflow()
    log.close()
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'store.db'}")
    assert client.get_experiment(client.get_run(log.run_id).info.experiment_id).name == "from outside"


def test_numbers_that_are_not_finite_stay_visible():
    assert math.isnan(dict(numbers_of({"loss": math.nan}))["loss"])


def test_wandb_gets_every_number_under_its_round(monkeypatch):
    calls = []
    run = SimpleNamespace(
        log=lambda numbers, step: calls.append((step, numbers)), finish=lambda: calls.append("finished")
    )
    fake = SimpleNamespace(init=lambda project, name: calls.append((project, name)) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = Wandb("stride", "first")
    done = train(log, test=held_out())
    log.close()
    rows = [(row["round"], dict(numbers_of(row))) for row in done.history]
    assert calls == [("stride", "first"), *rows, "finished"]
