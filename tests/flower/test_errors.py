"""Bad settings and replies are refused with the name of the argument or field, and the fix."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedstride.flower as flower
from tests.flower.quickstart import Grid, fedstride_client, initial, load_data, make_model, unchanged_client


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: flower.Strategy("fedexpo"), fs.InvalidInput, "algorithm='fedexpo' is unknown; did you mean 'fedexp'"),
        (lambda: flower.Strategy(training="mine"), fs.InvalidInput, "training='mine' is unknown"),
        (lambda: flower.FedExP(weights="sample size"), fs.InvalidInput, "weights='sample size' is unknown"),
        (lambda: flower.FedExP(epsilon=1), fs.InvalidInput, "FedExP: epsilon is not an argument; did you mean 'eps'"),
        (lambda: flower.FedExP(eps=-1.0), fs.InvalidInput, "eps=-1.0 is invalid"),
        (lambda: flower.FedExP(lr=0.1), fs.InvalidInput, r'lr belongs to the clients.*Strategy\("fedexp\(lr=...\)"\)'),
        (lambda: flower.FedExP(fraction_train=0.0), fs.InvalidInput, r"fraction_train=0.0 is invalid: .*\(0, 1\]"),
        (lambda: flower.FedExP(min_train_nodes=0), fs.InvalidInput, "min_train_nodes=0 is invalid"),
        (lambda: flower.FedExP(guard=3), fs.InvalidInput, r"guard=3 is invalid: expected fs.Guard\(...\)"),
        (lambda: flower.FedExP(callbacks=print), fs.InvalidInput, "callbacks=.* expected a list of functions"),
        (lambda: flower.FedExP(checkpoint=3), fs.InvalidInput, "checkpoint=3 is invalid: expected a folder"),
        (lambda: flower.Strategy("scaffold", training="app"), fs.Refused, r"drift=Scaffold\(\) acts on the clients"),
        (lambda: flower.Strategy("fedsls", training="app"), fs.Refused, "step=Armijo.* acts on the clients"),
        (lambda: flower.Strategy(fs.Algorithm(privacy=fs.Privacy(1.0, 1.0))), fs.Refused, "Privacy is not available"),
        (
            lambda: flower.Strategy(fs.Algorithm(server=fs.FedNova()), training="app"),
            fs.Refused,
            "FedNova needs effective_steps from the clients",
        ),
    ],
)
def test_bad_settings(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_rounds": 0}, "num_rounds=0 is invalid"),
        ({"timeout": -1}, "timeout=-1 is invalid"),
        ({"initial_arrays": ArrayRecord()}, "initial_arrays: got an empty record"),
        ({"initial_arrays": {"w": 1}}, r"initial_arrays: got dict; expected ArrayRecord\(model.state_dict\(\)\)"),
        ({"initial_arrays": ArrayRecord({"n": torch.ones(2, dtype=torch.int64)})}, "none of which is trained"),
        ({"initial_arrays": ArrayRecord({"w": torch.tensor([1.0, float("nan")])})}, "'w' has values that are NaN"),
    ],
)
def test_bad_arguments_of_start(given, text):
    grid = Grid(unchanged_client())
    with pytest.raises(fs.InvalidInput, match=text):
        flower.FedExP().start(**{"grid": grid, "initial_arrays": initial(), "num_rounds": 1, **given})
    assert not grid.sent


def test_too_few_nodes():
    with pytest.raises(fs.InvalidInput, match=r"min_available_nodes=4, but after 0.1 s 3 nodes are connected"):
        flower.FedExP(min_available_nodes=4).start(Grid(unchanged_client()), initial(), timeout=0.1)


def test_unchanged_clients_of_a_rule_that_needs_more():
    with pytest.raises(fs.InvalidInput, match=r"not 'about'. Scaffold needs clients .*fedstride.flower.train\(msg, "):
        flower.Scaffold().start(Grid(unchanged_client()), initial(), num_rounds=1)


def test_clients_that_call_train_for_a_rule_that_leaves_the_steps_to_them():
    grid = Grid(fedstride_client())
    with pytest.raises(fs.TooFew):
        flower.FedExP().start(grid, initial(), num_rounds=1)
    with pytest.raises(fs.InvalidInput, match=r"msg: no record 'fedstride' in .* such as Auto\(\) or Strategy"):
        flower.train(grid.sent[0], None, make_model(), "cross_entropy", load_data(0))


@pytest.mark.parametrize(
    ("arrays", "metrics", "text"),
    [
        (initial, {"examples": 3}, "its metric 'num-examples' is None; expected a positive number.*weights='uniform'"),
        (initial, {"num-examples": 0}, "its metric 'num-examples' is 0"),
        (lambda: ArrayRecord(make_model().fc1.state_dict()), {"num-examples": 3}, "its reply: 'fc1.bias' is missing"),
        (
            lambda: ArrayRecord({n: torch.ones(1) for n in initial()}),
            {"num-examples": 3},
            r"its reply: .* has shape \(1,\) instead of",
        ),
    ],
)
def test_replies_that_lack_what_the_server_needs(arrays, metrics, text):
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": arrays(), "metrics": MetricRecord(metrics)}), reply_to=msg)

    with pytest.raises(fs.InvalidInput, match=f"node 3: {text}"):
        flower.FedExP().start(Grid(app), initial(), num_rounds=1)


def test_initial_arrays_of_another_model():
    other = ArrayRecord(nn.Linear(4, 3).double().state_dict())
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return flower.train(msg, context, make_model(), "cross_entropy", load_data(0))

    with pytest.raises(fs.InvalidInput, match=r"node 3: model: fc1.bias is missing in the server's initial_arrays"):
        flower.Auto().start(Grid(app), other, num_rounds=1)


def test_a_node_without_a_number():
    grid = Grid(fedstride_client())
    grid.nodes = {node: {} for node in grid.nodes}
    grid.app = ClientApp()
    grid.app.train()(lambda msg, context: flower.train(msg, context, make_model(), "cross_entropy", load_data(0)))
    with pytest.raises(fs.InvalidInput, match="--node-config 'client=0'"):
        flower.Auto().start(grid, initial(), num_rounds=1)


def test_without_flower():
    code = "import sys; sys.modules['flwr'] = None; import fedstride.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InvalidInput: fedstride.flower needs Flower" in done.stderr and "pip install" in done.stderr
