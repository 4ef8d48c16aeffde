"""A hostile client of a strategy costs one client, never the run."""

from __future__ import annotations

import math

import pytest

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

import fedstride.flower as flower
from tests.flower.quickstart import Grid, fedstride_client, initial, row, unchanged_client

HOSTILE = 7


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def spoiled(kind: str, change, client=unchanged_client) -> Grid:
    """Return a grid in which one of three nodes changes its replies to messages of a kind."""
    grid = Grid(client())

    def spoil(reply):
        if reply.metadata.src_node_id == HOSTILE and reply.metadata.message_type == kind:
            change(reply.content)
        return reply

    grid.spoil = spoil
    return grid


def metric(name: str, value):
    def change(content):
        content["metrics"][name] = value

    return change


def replaced(content):
    content["metrics"] = MetricRecord({"other": 1.0})


def added(content):
    content["more"] = MetricRecord({"other": 1.0})


METRICS = {
    "another name": metric("mine", 1.0),
    "a list": metric("eval_loss", [1.0, 2.0]),
    "NaN": metric("eval_loss", math.nan),
    "no weight": replaced,
    "two records": added,
    "no record": lambda content: content.clear(),
    "a weight that is a list": metric("num-examples", [1, 2]),
    "a negative weight": metric("num-examples", -24),
    "a weight that is NaN": metric("num-examples", math.nan),
}


@pytest.mark.parametrize("case", METRICS)
def test_metrics_of_an_evaluation_are_averaged_without_it(case):
    result = flower.FedExP().start(spoiled("evaluate", METRICS[case]), initial(), num_rounds=2)
    found, honest = result.evaluate_metrics_clientapp, flower.FedExP().start(Grid(unchanged_client()), initial(), 2)
    assert found.keys() == {1, 2} and found[2].keys() == {"eval_loss"}
    assert found[2]["eval_loss"] == pytest.approx(honest.evaluate_metrics_clientapp[2]["eval_loss"], rel=0.2)


@pytest.mark.parametrize("value", [[1.0, 2.0], math.nan], ids=["a list", "NaN"])
def test_metrics_of_training_are_averaged_without_it(value):
    result = flower.FedExP().start(spoiled("train", metric("train_loss", value)), initial(), num_rounds=2)
    assert result.train_metrics_clientapp[2]["train_loss"] < 2


def test_uniform_weights_need_no_number_of_samples():
    grid = Grid(unchanged_client())
    grid.spoil = lambda reply: (reply.content["metrics"].pop("num-examples", None), reply)[1]
    strategy = flower.FedExP(weights="uniform", fraction_evaluate=0.0)
    assert math.isfinite(strategy.start(grid, initial(), num_rounds=2).train_metrics_clientapp[2]["train_loss"])


def junk(content):
    content["more"] = ConfigRecord({"junk": b"0" * 2_000_000})


def not_finite(content):
    content["arrays"] = ArrayRecord(
        {name: Array(array.numpy() * math.nan) for name, array in content["arrays"].items()}
    )


@pytest.mark.parametrize(("change", "reason"), [(junk, "wrong shape"), (not_finite, "not finite")])
def test_a_reply_that_is_not_a_model_is_left_out(change, reason):
    strategy = flower.FedExP(fraction_evaluate=0.0)
    result = strategy.start(spoiled("train", change), initial(), num_rounds=2)
    assert strategy.history["refused"] == [{reason: 1}] * 2 and math.isfinite(float(row(result.arrays).norm()))


@pytest.mark.parametrize(
    ("client", "strategy", "change", "lost"),
    [
        (unchanged_client, flower.FedExP, junk, 1),
        (unchanged_client, flower.FedExP, metric("more", [0.0] * 100_000), 0),
        (lambda: fedstride_client(local_steps=2), flower.DeltaSGD, junk, 1),
    ],
    ids=["refused", "used", "train"],
)
def test_junk_in_a_reply_is_counted(client, strategy, change, lost):
    def after_the_roll_call(content):
        if "about" not in content:
            change(content)

    made = strategy(fraction_evaluate=0.0)
    made.start(spoiled("train", after_the_roll_call, client), initial(), num_rounds=2)
    assert made.history["lost"] == [lost] * 2
    assert all(sent > 700_000 for sent in made.history["bytes_up"])


def test_bytes_of_unchanged_clients_are_about_those_of_their_models():
    strategy = flower.FedExP(fraction_evaluate=0.0)
    strategy.start(Grid(unchanged_client()), initial(), num_rounds=2)
    model = sum(len(array.data) for array in initial().values())
    assert all(3 * model <= sent < 3 * model + 600 for sent in strategy.history["bytes_up"])


def samples(content):
    if "about" in content:
        content["about"]["samples"] = 10**6


@pytest.mark.parametrize(
    ("grid", "strategy"),
    [
        (lambda: spoiled("train", metric("num-examples", 1e15)), flower.FedExP),
        (lambda: spoiled("train", samples, lambda: fedstride_client(local_steps=2)), flower.DeltaSGD),
    ],
    ids=["unchanged", "train"],
)
def test_a_count_that_outweighs_the_others_is_named(grid, strategy):
    with pytest.warns(fs.FedstrideWarning, match=r'weights="samples": .*(node 7|client 0) with 1,000,000'):
        strategy(fraction_evaluate=0.0).start(grid(), initial(), num_rounds=1)


def steps(content):
    if "identity" in content:
        content["identity"]["steps"] = "9" * 5000


def unreadable(content):
    if "about" in content:
        content["about"]["found"] = "[" * 100_000


def unnumbered(content):
    if "about" in content:
        content["about"]["client"] = "none"


def other_model(content):
    if "identity" in content:
        content["identity"]["parameters"] = "[]"


@pytest.mark.parametrize("change", [steps, unreadable, unnumbered, other_model])
def test_a_false_description_costs_one_client(change):
    """Client 0 may be the first to describe itself."""
    grid = spoiled("train", change, lambda: fedstride_client(local_steps=2))
    strategy = flower.DeltaSGD(fraction_evaluate=0.0)
    with pytest.warns(fs.FedstrideWarning, match=r"the run starts without client\(s\) 0"):
        result = strategy.start(grid, initial(), num_rounds=2, timeout=60)
    assert strategy.history["lost"] == [1, 1] and math.isfinite(float(row(result.arrays).norm()))


def test_without_enough_usable_nodes_a_strategy_does_not_start():
    grid = spoiled("train", steps, lambda: fedstride_client(local_steps=2))
    with pytest.raises(fs.InvalidInput, match=r"client 0 says that it takes 9999.*2 of 3 .* expected at least 3"):
        flower.DeltaSGD(min_available_nodes=3).start(grid, initial(), num_rounds=1)


def test_a_strategy_that_started_without_a_client_resumes_without_it(tmp_path):
    made = {"fraction_evaluate": 0.0, "checkpoint": tmp_path / "saved"}
    grid = spoiled("train", unreadable, lambda: fedstride_client(local_steps=2))
    with pytest.warns(fs.FedstrideWarning, match="starts without"):
        flower.DeltaSGD(**made).start(grid, initial(), num_rounds=2)
    strategy = flower.DeltaSGD(**made)
    strategy.start(Grid(fedstride_client(local_steps=2)), initial(), num_rounds=3)
    assert strategy.history["lost"] == [1, 1, 1]
