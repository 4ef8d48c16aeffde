"""Metrics in the history, early stopping, the best model, callbacks that stop a run or add to it, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride import InvalidInput
from fedstride.engine import evaluation
from fedstride.training.stop import interrupts_raise
from tests.hostile.engine import Hostile
from tests.problems import classification, learn

torch.manual_seed(0)
CLIENTS = [(torch.randn(30, 4), torch.randint(0, 3, (30,))) for _ in range(4)]
TEST = (torch.randn(60, 4), torch.randint(0, 3, (60,)))


def train(rounds=8, **more):
    torch.manual_seed(0)
    given = {"test": TEST, "batch_size": 10, **more}
    return fs.train(nn.Linear(4, 3), "cross_entropy", CLIENTS, "fedavg(lr=0.5)", rounds=rounds, **given)


def rises(event):
    """A score that is best in round 3."""
    event.metrics["own"] = -float(abs(event.round - 3))


def test_metrics_are_columns_of_the_history():
    run = train(metrics={"f1": fs.metrics.f1, "double": lambda outputs, targets: 2.0 * len(targets)}, evaluate_every=2)
    last = run.history[-1]
    assert last["f1"] == pytest.approx(fs.evaluate(run.model, TEST, metrics=["f1"])["f1"])
    assert last["double"] == 120 and run.history["double"][0] is None
    assert list(run.history.frame().columns[-2:]) == ["f1", "double"]


def test_it_stops_after_so_many_evaluations_without_improvement():
    run = train(30, callbacks=[rises], stop=fs.EarlyStopping("own", patience=2))
    assert (len(run.history), run.ended, run.best.round) == (5, "stopped", 3)
    assert run.best.metrics["own"] == 0


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_or_the_last_model_is_returned(keep):
    run = train(callbacks=[rises], stop=fs.EarlyStopping("own", patience=None, keep=keep))
    assert len(run.history) == 8 and run.ended == "finished"
    assert torch.equal(run.best.model.weight, train(3).model.weight)
    assert torch.equal(run.model.weight, train(3 if keep == "best" else 8).model.weight)
    assert torch.equal(run.x, train(8).x)


def test_the_direction_of_a_metric():
    assert train(stop=fs.EarlyStopping("test_loss", None)).best.round == _best("test_loss", min)
    assert train(stop=fs.EarlyStopping("test_accuracy", None)).best.round == _best("test_accuracy", max)
    assert train(stop=fs.EarlyStopping("update", None, mode="min")).best.round == _best("update", min)


@pytest.mark.parametrize("metric", ["perplexity", "cross_entropy"])
def test_small_values_of_some_metrics_are_better(metric):
    run = train(stop=fs.EarlyStopping(metric, None), metrics=[metric])
    assert run.best.metrics[metric] == min(run.history[metric])


@pytest.mark.parametrize("regression", [False, True])
def test_the_worst_clients_can_stop_a_run(regression):
    tests = [(x, y.float() if regression else y) for x, y in CLIENTS]
    model, loss = (nn.Linear(4, 1), "mse") if regression else (nn.Linear(4, 3), "cross_entropy")
    stop = fs.EarlyStopping("test_worst_decile", None)
    run = fs.train(model, loss, tests, "fedavg(lr=0.1)", rounds=6, batch_size=10, test=tests, stop=stop)
    scores = run.history["test_worst_decile"]
    assert run.best.metrics["test_worst_decile"] == (min if regression else max)(scores)


def test_a_metric_that_no_callback_adds_is_said():
    with pytest.warns(
        fs.FedstrideWarning, match="metric='owm' is not in the first row of the history; did you mean 'own'"
    ):
        train(2, callbacks=[rises], stop=fs.EarlyStopping("owm"))


def test_callbacks_may_add_numbers_of_torch_and_numpy():
    def add(event):
        event.metrics["torch"], event.metrics["numpy"] = torch.tensor(1.5), np.float32(2.5)

    assert train(1, callbacks=[add]).history[0].items() >= {"torch": 1.5, "numpy": 2.5}.items()


def test_a_resumed_run_keeps_the_metric_of_its_best_round(tmp_path):
    train(4, stop=fs.EarlyStopping("test_accuracy"), checkpoint=tmp_path)
    with pytest.raises(InvalidInput, match="as the best one, but not by metric='test_loss'"):
        train(8, stop=fs.EarlyStopping("test_loss"), checkpoint=tmp_path)
    train(8, stop=fs.EarlyStopping("test_accuracy", patience=7), checkpoint=tmp_path)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_round_of_a_loaded_run(keep, tmp_path):
    run = train(callbacks=[rises], stop=fs.EarlyStopping("own", patience=None, keep=keep))
    best = fs.load(run.save(tmp_path), nn.Linear(4, 3)).best
    if keep == "last":
        assert best is None  # its model is not saved
    else:
        assert (best.round, best.metrics) == (3, run.best.metrics)
        assert torch.equal(best.model.weight, run.best.model.weight)


def test_a_folder_of_checkpoints_is_not_a_saved_run(tmp_path):
    train(1, checkpoint=tmp_path)
    with pytest.raises(InvalidInput, match="It has checkpoints"):
        fs.load(tmp_path)


def _best(column, choose):
    values = train().history[column]
    return values.index(choose(values)) + 1


def test_the_best_model_survives_a_resume(tmp_path):
    stop = fs.EarlyStopping("own", patience=4)
    whole = train(30, callbacks=[rises], stop=stop)
    train(5, callbacks=[rises], stop=stop, checkpoint=tmp_path)
    again = train(30, callbacks=[rises], stop=stop, checkpoint=tmp_path)
    assert (again.best.round, again.ended, len(again.history)) == (3, "stopped", len(whole.history))
    assert torch.equal(again.model.weight, whole.model.weight)
    assert torch.equal(train(30, callbacks=[rises], stop=stop, checkpoint=tmp_path).model.weight, whole.model.weight)
    assert fs.load(whole.save(tmp_path / "saved"), nn.Linear(4, 3)).ended == "stopped"


def test_a_callback_ends_the_run():
    run = train(callbacks=[lambda event: fs.STOP if event.round == 4 else None])
    assert (len(run.history), run.ended) == (4, "stopped")
    assert torch.equal(run.x, train(4).x)
    assert len(train(callbacks=[lambda event: fs.STOP]).history) == 0


def test_what_a_callback_adds_is_in_the_history(tmp_path):
    run = train(3, callbacks=[rises], checkpoint=tmp_path)
    assert run.history["own"] == [-2.0, -1.0, 0.0]
    assert train(4, callbacks=[rises], checkpoint=tmp_path).history["own"] == [-2.0, -1.0, 0.0, -1.0]
    with pytest.raises(InvalidInput, match=r"event.metrics\['own'\] is a Tensor; expected a number"):
        train(callbacks=[lambda event: event.metrics.update(own=torch.ones(2))])


def test_the_model_of_an_event_is_what_one_would_get_now():
    seen = []
    run = train(3, readout="average", callbacks=[lambda event: seen.append(event.model)])
    assert torch.equal(seen[3].weight, run.model.weight)
    assert torch.equal(seen[2].weight, train(2, readout="average").model.weight)


def interrupt(event):
    if event.round == 2:
        raise KeyboardInterrupt


def test_ctrl_c_returns_the_run_so_far(tmp_path):
    with pytest.warns(
        fs.FedstrideWarning, match="interrupted in round 3; returning the run with its 2 finished rounds"
    ):
        run = train(callbacks=[interrupt], checkpoint=tmp_path)
    assert (len(run.history), run.ended) == (2, "interrupted")
    assert torch.equal(run.x, train(2).x)
    assert torch.equal(train(checkpoint=tmp_path).x, train().x)


SCRIPT = """
import signal, sys, torch
import fedstride as fs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
torch.manual_seed(0)
clients = [(torch.randn(200, 30), torch.randint(0, 3, (200,))) for _ in range(8)]
model = torch.nn.Sequential(torch.nn.Linear(30, 60), torch.nn.ReLU(), torch.nn.Linear(60, 3))
run = fs.train(model, "cross_entropy", clients, rounds=int(sys.argv[2]), batch_size=5, test=clients[0], checkpoint=sys.argv[1],
               callbacks=[lambda event: print(event.round, flush=True)], stop=fs.EarlyStopping(patience=None))
print(run.ended, len(run.history), run.best.round <= len(run.history), float(run.x.double().norm()))
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_script_with_its_run_and_a_checkpoint(tmp_path):
    start = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen([*start, str(tmp_path), "100000"], stdout=subprocess.PIPE, text=True) as script:
        while script.stdout.readline() != "2\n":
            pass
        script.send_signal(signal.SIGINT)
        ended, rounds, best, length = script.communicate(timeout=600)[0].splitlines()[-1].split()
    assert (script.returncode, ended, best) == (0, "interrupted", "True") and int(rounds) >= 2
    again = subprocess.run([*start, str(tmp_path), rounds], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    assert again.stdout.splitlines()[-1] == f"finished {rounds} True {length}"


def test_programs_of_many_runs_get_the_exception():
    with interrupts_raise(), pytest.raises(KeyboardInterrupt):
        train(callbacks=[interrupt])


@pytest.mark.parametrize(("clients", "worst"), [(9, 0.0), (19, 0.0), (20, 0.5), (39, 1.0)])
def test_the_worst_decile_is_the_mean_of_a_tenth_of_the_clients(clients, worst):
    scores = [{"loss": 0.0, "accuracy": float(i)} for i in reversed(range(clients))]
    assert evaluation.test_columns(scores, ())["test_worst_decile"] == worst


def test_a_test_set_for_each_client():
    tests = [(x[:10], y[:10]) for x, y in CLIENTS]
    run = train(test=tests, metrics=["f1"])
    each = fs.evaluate(run.model, tests, metrics=["f1"])
    last = run.history[-1]
    accuracies = torch.tensor([scores["accuracy"] for scores in each], dtype=torch.float64)
    assert last["test_accuracy"] == pytest.approx(float(accuracies.mean()))
    assert last["test_worst_decile"] == pytest.approx(float(accuracies.min()))
    assert last["test_spread"] == pytest.approx(float(accuracies.std(correction=0)))
    assert last["f1"] == pytest.approx(sum(scores["f1"] for scores in each) / 4)
    with pytest.raises(InvalidInput, match="test: got 3 sets; expected one, or one for each of the 4 clients"):
        train(test=tests[:3])


def test_evaluate_names_the_clients():
    named = {"north": TEST, "south": CLIENTS[0]}
    model = nn.Linear(4, 3)
    scores = fs.evaluate(model, named)
    assert list(scores) == ["north", "south"] and scores["north"] == fs.evaluate(model, TEST)
    assert fs.evaluate(model, fs.data.Federation(named)) == scores
    assert model.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop": 3}, "stop=3 is invalid: expected fs.EarlyStopping"),
        ({"stop": fs.EarlyStopping("f1")}, "stop: metric='f1' does not exist"),
        ({"stop": fs.EarlyStopping("test_loss"), "test": None}, "metric='test_loss' needs a test set"),
        ({"stop": fs.EarlyStopping("test_spread")}, "'test_spread' needs a list of test sets, one for each client"),
        ({"stop": fs.EarlyStopping("client_steps")}, "metric='client_steps' is not a number"),
        ({"metrics": ["f1"], "test": None}, "f1 without test="),
        ({"metrics": {"drift": fs.metrics.f1}}, "'drift' is a column of the history already"),
        ({"metrics": {"own": lambda outputs, targets: 1 / 0}}, r"metrics\['own'\]: ZeroDivisionError"),
    ],
)
def test_mistakes_are_named_before_any_work(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        train(**arguments, callbacks=())


@pytest.mark.parametrize("bad", [{"patience": 0}, {"keep": "first"}, {"mode": "up"}, {"least": -1.0}, {"metric": 3}])
def test_bad_early_stopping(bad):
    with pytest.raises(InvalidInput, match=f"EarlyStopping: {next(iter(bad))}="):
        fs.EarlyStopping(**bad)


def test_torchmetrics_objects_work():
    torchmetrics = pytest.importorskip("torchmetrics")
    run = train(2, metrics={"own": torchmetrics.classification.MulticlassF1Score(3), "f1": "f1"})
    assert run.history[-1]["own"] == pytest.approx(run.history[-1]["f1"], abs=1e-6)
    together = torchmetrics.MetricCollection({"own": torchmetrics.classification.MulticlassF1Score(3)})
    assert train(2, metrics=together).history["own"] == run.history["own"]


def test_progress_is_shown_when_asked_for(capsys):
    train(2, progress=True)
    shown = "".join(capsys.readouterr())
    assert (
        "all 4 clients" in shown
        and "3 local steps per client, on batches of 10" in shown.replace("\n", " ")
        and "round 2/2" in shown
    )
    train(2, progress=False)
    train(2)
    assert "".join(capsys.readouterr()) == ""


def test_the_median_of_the_training_losses_is_a_metric():
    """One client that lies about its loss ends a run that stops by the mean, and not one that stops by the median."""
    six, honest = classification((6, 9, 5, 8, 7, 6)), {"rounds": 6, "local_steps": 3}

    def change(row, round):
        row["train_loss"] = torch.full_like(row["train_loss"], 10.0 ** (round + 1))

    for metric, rounds in (("train_loss", 3), ("median_train_loss", 6)):
        stop = fs.EarlyStopping(metric, patience=2)
        assert len(learn(clients=six, stop=stop, engine=Hostile(change), **honest).history) == rounds
    losses = learn(clients=six, stop=stop, **honest).history
    assert all(0.5 * row["train_loss"] < row["median_train_loss"] < 2 * row["train_loss"] for row in losses)
    assert "median_train_loss" not in learn(clients=six, **honest).history[0]
