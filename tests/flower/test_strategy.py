"""A strategy in an app of Flower trains as fs.train() does on the same data."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import nn

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import Strategy as FlowerStrategy

import fedstride.flower as flower
from tests.flower.quickstart import (
    SIZES,
    STEPS,
    Grid,
    fedstride_client,
    initial,
    load_data,
    make_model,
    row,
    unchanged_client,
)
from tests.tiers import slow

DATA = [load_data(i) for i in range(len(SIZES))]
FAST = ("auto", "scaffold", "fedlin", "FedExP")
TRAINED = ("auto", "fedexp", "fedsls", "delta_sgd", "scaffold", "fedlin", "fednova", "fedavgm", "fedprox")
UNCHANGED = {"FedExP": "fedexp", "FedAvgM": "fedavgm", "FedAdam": "fedadam", "FedExPM": "fedexpm", "FedDoG": "feddog"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the clients' memory is in the working directory


def trained(algorithm: str, rounds: int = 4, **settings) -> torch.Tensor:
    """The same run without Flower."""
    run = fs.train(make_model(), "cross_entropy", DATA, algorithm, rounds=rounds, weights="samples", **settings)
    return torch.cat([v.reshape(-1) for v in run.model.state_dict().values()])


def close(record: ArrayRecord, expected: torch.Tensor) -> bool:
    return torch.allclose(row(record), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", [name if name in FAST else slow(name) for name in TRAINED])
def test_clients_that_call_train_give_the_numbers_of_fs_train(algorithm):
    local = {"batch_size": 4, "epochs": 1.5} if algorithm != "fedlin" else {"local_steps": STEPS}
    result = flower.Strategy(algorithm, seed=3).start(Grid(fedstride_client(**local)), initial(), num_rounds=4)
    assert close(result.arrays, trained(algorithm, seed=3, **local))


@pytest.mark.parametrize("name", [name if name in FAST else slow(name) for name in UNCHANGED])
def test_server_rules_give_the_numbers_of_fs_train_with_unchanged_clients(name):
    grid = Grid(unchanged_client())
    result = getattr(flower, name)().start(grid, initial(), num_rounds=4)
    assert close(result.arrays, trained(f"{UNCHANGED[name]}(lr=0.2)", local_steps=STEPS))
    assert all(set(message.content) == {"arrays", "config"} for message in grid.sent)


def test_part_of_the_nodes_train_as_a_cohort_of_fs_train():
    strategy = flower.Scaffold(lr=0.2, fraction_train=0.7, seed=1)
    result = strategy.start(Grid(fedstride_client(local_steps=2)), initial(), num_rounds=5)
    assert close(result.arrays, trained("scaffold(lr=0.2)", rounds=5, cohort=2, seed=1, local_steps=2))
    assert strategy.history["participants"] == [2] * 5


def test_uniform_weights_are_those_of_fs_train():
    result = flower.FedExP(weights="uniform").start(Grid(unchanged_client()), initial(), num_rounds=3)
    run = fs.train(make_model(), "cross_entropy", DATA, "fedexp(lr=0.2)", rounds=3, local_steps=STEPS)
    assert close(result.arrays, torch.cat([v.reshape(-1) for v in run.model.state_dict().values()]))


def test_the_result_has_the_metrics_of_every_round():
    seen = []

    def test_set(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(row(arrays))
        return MetricRecord({"length": float(seen[-1].norm())})

    strategy = flower.FedExP()
    result = strategy.start(Grid(unchanged_client()), initial(), num_rounds=3, evaluate_fn=test_set)
    assert torch.equal(seen[0], row(initial())) and torch.equal(seen[-1], row(result.arrays))
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3]
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2, 3]
    assert {"train_loss", "server_step"} <= result.train_metrics_clientapp[3].keys()
    assert result.evaluate_metrics_clientapp[3]["eval_loss"] < result.evaluate_metrics_clientapp[1]["eval_loss"]
    assert strategy.history["server_step"][0] == result.train_metrics_clientapp[1]["server_step"]
    assert strategy.history["client_step"] == [None] * 3  # only the clients know it


@pytest.mark.parametrize(("make", "client"), [(flower.FedExP, unchanged_client), (flower.FedSLS, fedstride_client)])
def test_callbacks_see_every_round_and_may_end_the_run(make, client, tmp_path):
    events = []

    def watch(event: fs.Event) -> object:
        events.append(event)
        event.metrics["length"] = event.x.norm()
        return fs.STOP if event.round == 2 else None

    given = {"callbacks": [watch], "checkpoint": fs.Checkpoints(tmp_path, every=10)}
    strategy = make(**given)
    strategy.start(Grid(client()), initial(), num_rounds=4)
    assert [event.round for event in events] == [0, 1, 2] and strategy.history["round"] == [1, 2]
    assert strategy.history["length"] == [float(event.x.norm()) for event in events[1:]]
    assert strategy.history["eval_loss"][1] == strategy.history["flower"][1]["evaluate"]["eval_loss"]
    assert events[2].seconds["clients"] > events[1].seconds["clients"] > 0 < events[1].seconds["server"]
    assert [sorted(asked.clients) for asked in events[1].exchanges] == [[0, 1, 2]]
    with pytest.raises(fs.InvalidInput, match=r"event\.model: .* use event\.x"):
        _ = events[1].model
    again = make(**given)  # the round in which it was ended is saved, though only every tenth is
    again.start(Grid(client()), initial(), num_rounds=3)
    assert [event.round for event in events[3:]] == [3] and again.history["round"] == [1, 2, 3]


def test_a_callback_that_fails_costs_no_finished_round(tmp_path):
    def fail(event: fs.Event) -> None:
        if event.round == 2:
            raise RuntimeError("a full disk")

    rare = fs.Checkpoints(tmp_path, every=10)
    with pytest.raises(RuntimeError, match="a full disk"):
        flower.FedExP(callbacks=[fail], checkpoint=rare).start(Grid(unchanged_client()), initial(), num_rounds=3)
    grid, again = Grid(unchanged_client()), flower.FedExP(checkpoint=rare)
    result = again.start(grid, initial(), num_rounds=3)
    assert again.history["round"] == [1, 2, 3] and list(result.evaluate_metrics_clientapp) == [1, 2, 3]
    assert {m.content["config"]["server-round"] for m in grid.sent if m.metadata.message_type == "train"} == {3}


def test_a_monitor_serves_the_figures_of_a_strategy():
    with closing(fs.loggers.Prometheus(port=0)) as monitor:
        flower.FedExP(callbacks=[monitor]).start(Grid(unchanged_client()), initial(), num_rounds=2)
        lines = monitor.text.splitlines()
    assert "fedstride_round 2" in lines and "fedstride_participants 3" in lines
    assert any(line.startswith('fedstride_metric{name="eval_loss"} ') for line in lines)


@pytest.mark.parametrize("client", [unchanged_client, fedstride_client])
def test_subclasses_may_change_messages_and_models(client):
    class Mine(flower.FedAvgM if client is unchanged_client else flower.FedSLS):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 0.5**server_round
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            saved.append(row(arrays))
            return ArrayRecord({name: value for name, value in arrays.items()}), metrics

    saved, grid = [], Grid(client())
    result = Mine().start(grid, initial(), num_rounds=2, train_config=ConfigRecord({"mine": 1}))
    sent = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    assert (sent[-1]["lr"], sent[-1]["mine"], sent[-1]["server-round"]) == (0.25, 1, 2)
    assert torch.equal(row(result.arrays), saved[-1])


def test_flower_may_lead_the_run_and_wrap_the_strategy():
    plain = FlowerStrategy.start(flower.FedExP(), Grid(unchanged_client()), initial(), num_rounds=3)
    assert torch.equal(row(plain.arrays), row(flower.FedExP().start(Grid(unchanged_client()), initial(), 3).arrays))
    private = DifferentialPrivacyServerSideFixedClipping(flower.FedAvgM(), 1e-3, 0.01, 3)
    clipped = private.start(Grid(unchanged_client()), initial(), num_rounds=3)
    assert 0 < float((row(clipped.arrays) - row(initial())).norm()) < 0.1


def test_a_lost_client_is_left_out_and_counted():
    grid = Grid(fedstride_client())
    grid.spoil = lambda reply: None if reply.metadata.src_node_id == 7 and grid.count > 8 else reply
    strategy = flower.DeltaSGD(fraction_evaluate=0.0)
    strategy.start(grid, initial(), num_rounds=2, timeout=1.5)
    assert strategy.history["lost"] == [0, 1] and strategy.history["participants"] == [3, 2]
    assert strategy.history[-1]["refused"] == {"late": 1}


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()


def own_loop(msg: Message, context) -> Message:
    model = normalised()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    inputs, targets = DATA[context.node_config["partition-id"]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


def of_fedstride(msg: Message, context) -> Message:
    data = DATA[context.node_config["partition-id"]]
    return flower.train(msg, context, normalised(), "cross_entropy", data, local_steps=2)


@pytest.mark.parametrize(("client", "training"), [(own_loop, "app"), (of_fedstride, "fedstride")])
def test_batch_statistics_are_averaged_and_not_extrapolated(client, training):
    app = ClientApp()
    app.train()(client)
    algorithm = fs.Algorithm(server=fs.AdamServer(), step=fs.Constant(0.1 if training == "app" else 0.2))
    strategy = flower.Strategy(algorithm, training=training, fraction_evaluate=0.0)
    result = strategy.start(Grid(app), ArrayRecord(normalised().state_dict()), num_rounds=3)
    algorithm = fs.Algorithm(server=fs.AdamServer(), step=fs.Constant(0.2))
    expected = fs.train(normalised(), "cross_entropy", DATA, algorithm, rounds=3, weights="samples", local_steps=2)
    for name, value in expected.model.state_dict().items():
        found = torch.from_numpy(result.arrays[name].numpy())
        assert found.dtype == value.dtype and torch.allclose(found, value, rtol=0, atol=1e-10), name
    assert int(result.arrays["1.num_batches_tracked"].numpy()) == 6
