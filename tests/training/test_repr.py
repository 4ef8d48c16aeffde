"""What runs, histories and algorithms say about themselves, and what is said at the start of a run."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.algorithm import spelled_out
from fedstride.training.history import History
from tests.problems import classification, learn


def test_a_run_says_how_it_went(tmp_path):
    run = learn("fedsls", rounds=8, test=classification((12,), seed=5)[0], metrics=["f1"])
    lines = repr(run).splitlines()
    assert lines[0].startswith("Run of fedsls: finished after 8 rounds, ")
    assert lines[1].startswith("  last  round 8: train_loss ") and ", f1 " in lines[1]
    best = max(run.history, key=lambda row: row["test_accuracy"])
    assert (
        lines[2].startswith(f"  best  round {best['round']}: ")
        and f"test_accuracy {best['test_accuracy']:.4g}" in lines[2]
    )
    assert "run.report" in lines[3] and len(lines) == 4
    assert repr(fs.load(run.save(tmp_path))) == repr(run)


def test_a_run_that_ended_early_says_why():
    run = learn(rounds=9, callbacks=[lambda event: fs.STOP if event.round == 2 else None])
    assert "stopped after 2 of 9 rounds" in repr(run)
    clients = {"north": (1e3 * torch.ones(4, 1), torch.ones(4, 1))}
    with pytest.raises(fs.Diverged, match="client 'north'") as caught:
        fs.train(nn.Linear(1, 1), "mse", clients, "fedavg(lr=1e30)", rounds=9)
    assert "diverged after" in repr(caught.value.run)


def test_a_run_leaves_its_data_behind_when_it_is_pickled():
    run = learn(rounds=1)
    assert run.source is not None and pickle.loads(pickle.dumps(run)).source is None
    secret = torch.rand(7, 3, dtype=torch.float64)
    run = fs.train(nn.Linear(3, 1, dtype=torch.float64), "mse", [(secret, secret.sum(1))], rounds=1)
    assert secret.numpy().tobytes() not in pickle.dumps(run)


def test_a_history_shows_its_first_and_last_rounds():
    history = History({"round": i, "train_loss": 1 / i, "test_loss": None, "mine": i} for i in range(1, 101))
    assert repr(history).splitlines() == [
        "History of 100 rounds",
        "  round  train_loss  mine",
        "      1           1     1",
        "      2         0.5     2",
        "      3      0.3333     3",
        "    ...         ...   ...",
        "     98      0.0102    98",
        "     99      0.0101    99",
        "    100        0.01   100",
    ]
    assert repr(History()) == "History of 0 rounds"


def test_an_algorithm_names_what_is_not_default():
    assert repr(fs.Algorithm()) == "Algorithm()"
    assert repr(fs.recipes.fedavg(lr=0.3)) == "Algorithm(name='fedavg', step=Constant(lr=0.3))"
    made = fs.Algorithm(step=fs.Armijo(c=0.2), drift=fs.Scaffold(), up=fs.TopK(0.1))
    assert repr(made) == "Algorithm(step=Armijo(c=0.2), drift=Scaffold(), up=TopK(k=0.1))"


def test_the_text_that_checkpoints_are_compared_by_has_every_setting():
    assert spelled_out(fs.recipes.fedexp(lr=0.1)) == (
        "Algorithm(step=Constant(lr=0.1, schedule=None), server=FedExP(eps=0.001, lr_max=None, exact=False, last_two=True), "
        "objective=Plain(), gradient=Minibatch(), drift=None, up=None, down=None, error_feedback=None, aggregate=None, "
        "privacy=None, readout='server', name='fedexp')"
    )


def clients(*sizes):
    return [(torch.ones(n, 2), torch.zeros(n, 1)) for n in sizes]


def start_line(capsys, *sizes, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.FedstrideWarning)
        fs.train(nn.Linear(2, 1), "mse", clients(*sizes), "fedavg", rounds=2, progress=True, **options)
    return " ".join(capsys.readouterr().err.split())


def test_the_start_says_what_was_chosen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert (
        start_line(capsys, 6, 6)
        == "2 rounds, all 2 clients in each; 1 local step per client, on all of its samples; equal weights"
    )
    assert (
        start_line(capsys, 40, 3, cohort=1, batch_size=4, weights="uniform")
        == "2 rounds, 1 of 2 clients in each; 1 to 10 local steps per client, on batches of 4; equal weights"
    )
    assert start_line(capsys, 40, 3, weights="samples").endswith("; weights by samples")
    assert start_line(capsys, 4, 3, weights=[1, 5]).endswith("; given weights")


def test_the_log_says_what_was_chosen_without_a_display(caplog):
    with caplog.at_level("INFO", logger="fedstride"):
        fs.train(nn.Linear(2, 1), "mse", clients(6, 6), "fedavg", rounds=1, progress=False)
    assert any("fedavg: 1 round, all 2 clients in each; 1 local step per client" in line for line in caplog.messages)


def test_equal_weights_of_unequal_clients_are_warned_about_unless_asked_for():
    with pytest.warns(fs.FedstrideWarning, match="all clients count the same, although they have 3 to 40 samples"):
        fs.train(nn.Linear(2, 1), "mse", clients(40, 3), rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.FedstrideWarning)
        for given in ({"weights": "uniform"}, {"weights": "samples"}, {"weights": [1, 2]}):
            fs.train(nn.Linear(2, 1), "mse", clients(40, 3), rounds=1, **given)
        fs.train(nn.Linear(2, 1), "mse", clients(30, 3), rounds=1)


@pytest.mark.parametrize("given", [{"local_steps": 1}, {"epochs": 1}, {"batch_size": 300}])
def test_one_full_batch_step_of_large_clients_is_warned_about_unless_asked_for(given):
    def trained(*sizes, algorithm="fedavg", **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fs.train(nn.Linear(2, 1), "mse", clients(*sizes), algorithm, rounds=1, **options)
        return [str(w.message) for w in caught if "at their defaults" in str(w.message)]

    (message,) = trained(300, 300)
    assert "on all of its 300 samples" in message and "batch_size=32" in message and "local_steps=1" in message
    assert trained(300, 300, **given) == trained(256, 256) == trained(300, 300, algorithm="fedtrack") == []
