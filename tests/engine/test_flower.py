"""The Flower engine on a grid without processes: agreement with the local engine, and behaviour when nodes fail."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES

pytest.importorskip("flwr")

from flwr.app import Array, Message
from flwr.common.serde import message_to_proto

from fedstride.core.files import read_tensors
from fedstride.data.federation import Found, elsewhere
from fedstride.engine import flower
from fedstride.engine.flower import node as node_module
from fedstride.engine.flower import nodes as nodes_module
from fedstride.engine.flower import records as records_module
from fedstride.engine.flower import replies as replies_module
from fedstride.engine.flower.project import arguments
from tests.engine.grid import Grid
from tests.problems import Classifier, classification, records, same_bits
from tests.tiers import slow

DATA = classification()
CLIENTS = len(DATA)


class Normed(nn.Module):
    """A model with BatchNorm, optional dropout, and a frozen layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(dropout), nn.Linear(5, 3))

    def forward(self, inputs):
        return self.body(self.frozen(inputs))


def make_model(settings):
    kind = settings.get("kind", "classifier")
    layers = {"linear": 3, "wide": 2000}
    if kind in layers:
        model = nn.Linear(4, layers[kind])
    else:
        model = Classifier() if kind == "classifier" else Normed(kind == "dropout")
    return model.to(getattr(torch, settings.get("dtype", "float64")))


def load_data(settings, node):
    inputs, targets = DATA[node.get("client", node.get("partition-id"))]
    return inputs.to(getattr(torch, settings.get("dtype", "float64"))), targets


def load_test(settings):
    parts = [load_data(settings, {"client": client}) for client in range(CLIENTS)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


PROJECT = flower.Project(make_model, "cross_entropy", load_data, load_test)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the nodes' working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_grid(first: int = 100, **node) -> Grid:
    app = flower.client_app(PROJECT)
    return Grid(app, {first + client: {"partition-id": client, **node} for client in range(CLIENTS)})


def settings(**more):
    given = {"clients": CLIENTS, "rounds": 3, "algorithm": "fedavg", "batch_size": 4, "seed": 3, **more}
    return {name.replace("_", "-"): value for name, value in given.items()}


def local(given: dict, project: flower.Project = PROJECT, **more) -> fs.Run:
    data = [project.data(given, {"partition-id": client}) for client in range(CLIENTS)]
    test = None if project.test is None else project.test(given)
    return fs.train(project.build(given), project.loss, data, test=test, **arguments(given), **more)


def agree(remote: fs.Run, here: fs.Run, tolerance: float = 1e-10) -> bool:
    """Compare models and histories up to rounding, because nodes do not share a matrix; counts and bytes exactly.

    The bytes of compressed uploads are measured here, and computed by the local engine.
    """
    same = torch.allclose(remote.x, here.x, rtol=0, atol=tolerance) and len(remote.history) == len(here.history)
    for mine, theirs in zip(records(remote), records(here), strict=True):
        for name, value in theirs.items():
            if name == "bytes_up" and theirs["compression"]:
                continue
            close = isinstance(value, float) and mine[name] == pytest.approx(value, abs=max(tolerance, 1e-8), rel=1e-6)
            close = close or (name == "client_steps" and mine[name] == pytest.approx(value))
            same = same and (close or mine[name] == value)
    mine, theirs = remote.model.state_dict(), here.model.state_dict()
    return same and all(torch.allclose(mine[k], v, rtol=0, atol=tolerance) for k, v in theirs.items())


COHORTS = [(name, *how) for name in RECIPES for how in (("none", "uniform"), (3, "samples"))]
COHORTS.remove(("fedsplit", 3, "samples"))  # needs everybody
FAST = [(name, 3, "samples") for name in ("auto", "fedavg", "fedlin", "scaffold")]


@pytest.mark.parametrize(("name", "cohort", "weights"), [c if c in FAST else slow(*c) for c in COHORTS])
def test_every_recipe_trains_as_on_the_local_engine(name, cohort, weights):
    size = "none" if name == "fedtrack" else 4
    given = settings(algorithm=name, rounds=10, cohort=cohort, weights=weights, batch_size=size, local_steps=3)
    assert agree(flower.train(PROJECT, a_grid(), given), local(given))


WITHOUT_TEST = flower.Project(make_model, "cross_entropy", load_data)


@pytest.mark.parametrize(
    "more",
    [
        {"personal": "head.*"},
        slow({"personal": "head.*", "personal_steps": 2, "algorithm": "scaffold"}, name="fedrep-scaffold"),
        slow({"personal": "head.*", "algorithm": 'custom(up={part="TopK", k=5})'}, name="fedper-topk"),
        slow({"personal": "head.*", "secure": "10, control=100", "algorithm": "scaffold"}, name="secure-scaffold"),
        {"algorithm": "ditto"},
    ],
    ids=lambda more: " ".join(more),
)
def test_personal_parameters_stay_at_the_nodes(more, folder):
    given = settings(**{"rounds": 5, "cohort": 3, "local_steps": 3, **more})
    app = flower.client_app(WITHOUT_TEST)
    grid = Grid(app, {100 + client: {"partition-id": client} for client in range(CLIENTS)})
    remote, here = flower.train(WITHOUT_TEST, grid, given), local(given, WITHOUT_TEST)
    if "secure" not in more:
        assert agree(remote, here)
    assert remote.personal is None and here.personal is not None
    name = "own" if "algorithm" in more and "personal" not in more else "personal"
    for client in range(CLIENTS):
        files = list(folder.glob(f"fedstride-memory/*/{client}/*.safetensors"))
        newest = max(files, key=lambda path: int(path.stem.split("-")[0]))
        own, entries = read_tensors(newest)[0][name], here.personal.recall(client)["values"]
        torch.testing.assert_close(own, entries, rtol=0, atol=1e-5 if "secure" in more else 1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedstride.FedstrideWarning")
def test_controls_that_are_shortened_are_those_of_shared_parameters(folder):
    given = settings(rounds=2, personal="head.*", secure="10, control=0.01", algorithm="scaffold", local_steps=3)
    grid = Grid(flower.client_app(WITHOUT_TEST), {100 + c: {"partition-id": c} for c in range(CLIENTS)})
    flower.train(WITHOUT_TEST, grid, given)
    for path in folder.glob("fedstride-memory/*/*/*.safetensors"):
        control = read_tensors(path)[0]["control"]
        assert 0 < float(control[:15].norm()) <= 0.05 and not control[15:].any()


def test_a_server_cannot_test_models_that_nodes_keep_to_themselves():
    with pytest.raises(fs.Refused, match="stay at the nodes"):
        flower.train(
            flower.Project(make_model, "cross_entropy", load_data, lambda s: [load_test(s)] * CLIENTS),
            a_grid(),
            settings(personal="head.*"),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "float32"},
        {"kind": "linear", "batch_size": "none"},
        {"kind": "normed", "batch_size": 3},
        {"kind": "normed", "buffers": "frozen"},
        {"kind": "dropout", "algorithm": "scaffold", "batch_size": 3},
        {"algorithm": 'fedlin(up={part="TopK", k=5}, down={part="TopK", k=5})'},
        {"algorithm": 'custom(up={part="TopK", k=5})'},
        {"algorithm": 'custom(up={part="Quantize"}, step={part="DeltaSGD"})'},
        {"algorithm": 'fedlin(up={part="TopK", k=0.1}, down={part="TopK", k=0.1})', "kind": "wide"},
        {"algorithm": 'custom(up={part="RandomK", k=0.1})', "kind": "wide"},
        {"algorithm": 'custom(up={part="Quantize"})', "kind": "wide"},
        {"algorithm": 'custom(aggregate={part="Median"})'},
        {"weight_decay": 0.1, "clip_norm": 0.5, "epochs": 2, "local_steps": "none", "readout": "average"},
    ],
    ids=str,
)
def test_models_compressors_and_options_make_no_difference(more):
    given = settings(**{"rounds": 5, "cohort": 3, "local_steps": 3, **more})
    assert agree(flower.train(PROJECT, a_grid(), given), local(given), 1e-5 if "dtype" in more else 1e-10)


def test_local_statistics_stay_on_the_nodes():
    project = flower.Project(make_model, "cross_entropy", load_data)
    grid = a_grid()
    grid.app = flower.client_app(project)
    given = settings(kind="normed", buffers="local", cohort=3, rounds=5, batch_size=3)
    assert agree(flower.train(project, grid, given), local(given, project))
    assert list(Path("fedstride-memory").rglob("*.safetensors"))


def test_clients_without_memory_write_no_files():
    flower.train(PROJECT, a_grid(), settings())
    assert not Path("fedstride-memory").exists()


@pytest.mark.parametrize("every", [3, "auto"])
def test_the_app_takes_everything_from_the_run_configuration(tmp_path, every):
    given = settings(algorithm="fedexp(lr=0.2)", out=str(tmp_path / "out"), evaluate_every=every)
    context = type("Context", (), {"run_config": given})()
    flower.server_app(PROJECT)(a_grid(), context)
    saved, expected = fs.load(tmp_path / "out", make_model(given)), local(given)
    assert agree(saved, expected)
    assert saved.settings["training"]["evaluate_every"] == (
        3 if every == 3 else expected.settings["training"]["evaluate_every"]
    )
    assert [row["test_loss"] is None for row in saved.history] == [row["test_loss"] is None for row in expected.history]


def test_callbacks_see_every_round():
    seen = []
    run = flower.train(PROJECT, a_grid(), settings(), [lambda event: seen.append((event.round, event.x))])
    assert [round for round, _ in seen] == [0, 1, 2, 3] and torch.equal(seen[-1][1], run.x)


def test_one_run_may_train_several_algorithms():
    grid = a_grid()
    for algorithm in ("scaffold", "fedlin"):
        given = settings(algorithm=algorithm)
        assert agree(flower.train(PROJECT, grid, given), local(given))


# What goes wrong at nodes


def of_client(grid: Grid, reply: Message) -> int:
    node = grid.nodes[reply.metadata.src_node_id]
    return node.get("client", node.get("partition-id"))


def spoiled(grid: Grid, client: int, change) -> Grid:
    """Change the answers of one client to the orders of the second round."""

    def spoil(reply: Message):
        ordered = reply.metadata.message_type.startswith("train") and reply.metadata.group_id == "1"
        return change(reply) if ordered and of_client(grid, reply) == client else reply

    grid.spoil = spoil
    return grid


def part(reply: Message, record: str):
    """Return a record of a reply; "vectors": the one that has the vectors, which depends on their size."""
    if record == "vectors":
        record = "fields" if "fields" in reply.content else "upload"
    return reply.content[record]


def rewrite(record: str, name: str, value):
    def change(reply: Message) -> Message:
        old = part(reply, record)[name]
        part(reply, record)[name] = value(old) if callable(value) else value
        return reply

    return change


def more(record: str, name: str, value):
    def change(reply: Message) -> Message:
        reply.content[record][name] = value
        return reply

    return change


def drop(record: str, name: str | None = None):
    def change(reply: Message) -> Message:
        if name is None:
            del reply.content[record]
        else:
            del part(reply, record)[name]
        return reply

    return change


def array(change):
    def changed(old: Array | bytes) -> Array | bytes:
        new = Array(change(records_module.tensor_of(old).clone()).numpy())
        return new.data if isinstance(old, bytes) else new

    return changed


def nan(v):
    v[3] = torch.nan
    return v


def rubbish(old: Array | bytes) -> Array | bytes:
    return b"rubbish" if isinstance(old, bytes) else Array("float64", (27,), "numpy.ndarray", b"rubbish")


BAD = {
    "stale": rewrite("upload", "round", 0),
    "of another client": rewrite("upload", "client", 1),
    "corrupt: no upload": drop("upload"),
    "corrupt: no round": drop("upload", "round"),
    "corrupt: rubbish": rewrite("vectors", "update", rubbish),
    "wrong shape: a size that it declares": more("upload", "bytes", 1),
    "corrupt: half a gradient": rewrite("upload", "metrics.gradients", 0.5),
    "wrong shape: too long": rewrite("vectors", "update", array(lambda v: v.repeat(2))),
    "wrong shape: far too long": rewrite("vectors", "update", array(lambda v: v.repeat(10**4))),
    "wrong shape: a matrix": rewrite("vectors", "update", array(lambda v: v[None])),
    "wrong shape: type": rewrite("vectors", "update", array(lambda v: v.float())),
    "wrong shape: no update": drop("vectors", "update"),
    "wrong shape: no loss": drop("upload", "metrics.train_loss"),
    "wrong shape: a list": rewrite("upload", "metrics.train_loss", [1.0]),
    "not finite": rewrite("vectors", "update", array(nan)),
    "not finite: loss": rewrite("upload", "metrics.train_loss", float("nan")),
    "not finite: huge": rewrite("upload", "metrics.failed", 1e305),
    "too long": rewrite("vectors", "update", array(lambda v: 1e12 * v)),
}


@pytest.mark.parametrize("small", [records_module.SMALL, 0])
@pytest.mark.parametrize("case", BAD)
def test_an_unusable_answer_is_left_out_and_counted(case, small, monkeypatch):
    monkeypatch.setattr(records_module, "SMALL", small)  # bytes of vectors that are sent with the numbers
    given = settings()
    run = flower.train(PROJECT, spoiled(a_grid(), 2, BAD[case]), given)
    reason = case.partition(":")[0]
    assert [row["refused"] for row in run.history] == [{}, {reason: 1}, {}]
    assert [row["participants"] for row in run.history] == [4, 3, 4]
    without = flower.train(PROJECT, spoiled(a_grid(), 2, drop("upload")), given)
    assert torch.equal(run.x, without.x)


def test_a_false_norm_of_an_update_changes_nothing():
    given = settings(algorithm="fedexp")
    lie = rewrite("upload", "fields.square", 1e9)
    assert same_bits(flower.train(PROJECT, spoiled(a_grid(), 2, lie), given), flower.train(PROJECT, a_grid(), given))


def test_an_oversized_raw_update_is_refused():
    for lie in (
        rewrite("vectors", "raw", array(lambda v: 1e12 * v)),
        rewrite("upload", "fields.effective_steps", 1e-12),
    ):
        run = flower.train(PROJECT, spoiled(a_grid(), 2, lie), settings(algorithm="fednova"))
        assert [row["refused"] for row in run.history] == [{}, {"too long": 1}, {}]


def test_a_node_that_does_not_answer_in_time_is_late():
    given = settings(deadline=0.5)
    run = flower.train(PROJECT, spoiled(a_grid(), 1, lambda reply: None), given)
    assert [row["refused"] for row in run.history] == [{}, {"late": 1}, {}]


def test_a_node_whose_app_raises_has_crashed():
    def data(settings, node):
        if node["partition-id"] == 1 and broken:
            raise RuntimeError("disk on fire")
        return load_data(settings, node)

    broken = []
    project = flower.Project(make_model, "cross_entropy", data)
    grid = Grid(flower.client_app(project), a_grid().nodes)
    spoiled(grid, 1, lambda reply: reply)
    inner = grid.spoil

    def forget(reply):  # a new process for every message, as in a deployment
        node_module.station.cache_clear()
        node_module.worker.cache_clear()
        broken[:] = [1] if reply.metadata.group_id == "0" else []
        return inner(reply)

    grid.spoil = forget
    run = flower.train(project, grid, settings(rounds=2, cohort="none"))
    assert sum(row["refused"].get("crashed", 0) for row in run.history) == 1


def test_nodes_that_are_offline_are_lost_at_once():
    grid = a_grid()

    def spoil(reply):
        if reply.metadata.group_id == "0":
            grid.online.discard(103)
        return reply

    grid.spoil = spoil
    run = flower.train(PROJECT, grid, settings())
    assert [row["refused"] for row in run.history][1:] == [{"offline": 1}, {"offline": 1}]


def test_a_node_that_leaves_during_an_exchange_is_offline(monkeypatch):
    monkeypatch.setattr(nodes_module, "LOOK", 0.0)
    grid = a_grid()

    def leave(reply):
        grid.online.discard(101)

    run = flower.train(PROJECT, spoiled(grid, 1, leave), settings())
    assert [row["refused"] for row in run.history] == [{}, {"offline": 1}, {"offline": 1}]


def test_the_server_waits_for_half_of_a_cohort(monkeypatch):
    grid = a_grid()
    naps, done = [], []

    def come_back(seconds):
        if seconds == nodes_module.WAIT:
            naps.append(seconds)
            grid.online = set(grid.nodes)

    def spoil(reply):
        done.append(reply.metadata.group_id)
        if done[-1] == "0" and done.count("0") == CLIENTS:  # the first round's last reply
            grid.online = {103}
        return reply

    grid.spoil = spoil
    monkeypatch.setattr(nodes_module.time, "sleep", come_back)
    run = flower.train(PROJECT, grid, settings(rounds=2))
    assert naps and not any(row["refused"] for row in run.history)


def test_a_node_unknown_to_the_grid_is_offline():
    grid = a_grid()
    push, gone = grid._push, []

    def unknown(message):
        if message.metadata.group_id == "1" and message.metadata.dst_node_id == 102:
            gone.append(message)
            return ""
        return push(message)

    grid._push = unknown
    run = flower.train(PROJECT, grid, settings())
    assert gone and [row["refused"] for row in run.history] == [{}, {"offline": 1}, {}]


def test_too_few_answers_end_the_run_with_the_last_good_model():
    grid = a_grid()
    grid.spoil = lambda reply: None if reply.metadata.group_id == "1" and of_client(grid, reply) != 0 else reply
    with pytest.raises(fs.TooFew, match="late: 3") as caught:
        flower.train(PROJECT, grid, settings(deadline=0.05))
    assert len(caught.value.run.history) == 1


def test_a_run_that_diverges_ends_as_on_the_local_engine():
    given = settings(algorithm="fedavg(lr=1e200)", rounds=5)
    with pytest.raises(fs.Diverged) as here:
        local(given)
    with pytest.raises(fs.Diverged) as there:
        flower.train(PROJECT, a_grid(), given)
    assert str(there.value) == str(here.value)


def test_the_quorum_is_enforced():
    grid = spoiled(a_grid(), 1, drop("upload"))
    run = flower.train(PROJECT, grid, settings(quorum=0.5))
    assert [row["attempts"] for row in run.history] == [1, 1, 1]
    with pytest.raises(fs.TooFew, match=r"quorum=1\.0 requires 4"):
        flower.train(PROJECT, spoiled(a_grid(), 1, drop("upload")), settings(quorum=1.0))


# What clients remember


STATEFUL = ["scaffold", 'fedlin(up={part="TopK", k=5})', "moon"]


@pytest.mark.parametrize("algorithm", STATEFUL)
def test_a_restarted_node_with_another_id_keeps_its_memory(algorithm):
    given, grid = settings(algorithm=algorithm, rounds=6, cohort=3), a_grid()

    def restart(reply):
        if reply.metadata.message_type.startswith("train"):
            node_module.station.cache_clear()
            node_module.worker.cache_clear()
        if reply.metadata.group_id == "2" and 100 in grid.nodes and not grid.waiting:
            grid.nodes[200] = grid.nodes.pop(100)
            grid.online = set(grid.nodes)
        return reply

    grid.spoil = restart
    run = flower.train(PROJECT, grid, given)
    assert 200 in grid.nodes and agree(run, local(given))


@pytest.mark.parametrize("algorithm", STATEFUL)
def test_a_client_with_lost_memory_continues_with_a_warning(algorithm):
    grid, emptied = a_grid(), []

    def lose(reply):
        over = reply.metadata.group_id == "1" and reply.metadata.message_type == "train.updates"
        if over and not emptied and not grid.waiting:
            files = list(Path("fedstride-memory").glob("*/1/*.safetensors"))
            emptied.extend(files)
            for file in files:
                file.write_bytes(b"")
        return reply

    grid.spoil = lose
    with pytest.warns(fs.FedstrideWarning, match=r"client 1, round \d: cannot read the client.s memory in"):
        run = flower.train(PROJECT, grid, settings(algorithm=algorithm, rounds=5))
    refused = [row["refused"] for row in run.history]
    assert sum(row.get("memory lost", 0) for row in refused) == 1 and refused[-1] == {}


def uninterrupted(algorithm: str, rounds: int) -> fs.Run:
    return flower.train(PROJECT, a_grid(memory="other"), settings(algorithm=algorithm, cohort=3, rounds=rounds))


def trained(grid: Grid, algorithm: str, rounds: int) -> fs.Run:
    return flower.train(PROJECT, grid, settings(algorithm=algorithm, cohort=3, rounds=rounds, out="server"))


class ServerGone(Exception):
    pass


def until(grid: Grid, round: int) -> Grid:
    """Stop the server when the last answer of this round has arrived."""

    def end(reply):
        if reply.metadata.group_id == str(round) and not grid.waiting:
            raise ServerGone
        return reply

    grid.spoil = end
    return grid


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", STATEFUL)
def test_a_restarted_server_reproduces_the_run_bitwise(algorithm):
    trained(a_grid(), algorithm, 3)
    assert same_bits(trained(a_grid(500), algorithm, 6), uninterrupted(algorithm, 6))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", STATEFUL)
def test_a_server_that_goes_back_two_rounds_finds_the_memory_of_clients(algorithm):
    trained(a_grid(), algorithm, 4)
    with pytest.raises(ServerGone):
        trained(until(a_grid(), 4), algorithm, 8)  # the nodes have worked on round 5
    newest = Path("server/checkpoint-000004.safetensors")
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.warns(fs.FedstrideWarning, match="continues from checkpoint-000003"):
        run = trained(a_grid(), algorithm, 8)
    assert not any(row["refused"] for row in run.history)
    assert same_bits(run, uninterrupted(algorithm, 8))


def test_nodes_keep_few_files():
    trained(a_grid(), "scaffold", 12)
    for client in range(CLIENTS):
        assert 1 <= len(list(Path("fedstride-memory").glob(f"*/{client}/*"))) <= 4


def test_a_checkpoint_of_another_engine_is_refused():
    given = settings(algorithm="scaffold")
    local(given, checkpoint="server")
    with pytest.raises(fs.InvalidInput, match="belongs to another run"):
        trained(a_grid(), "scaffold", 6)


# Before the first round


def test_two_nodes_that_are_the_same_client_are_refused():
    grid = a_grid()
    grid.nodes[101]["partition-id"] = 0
    with pytest.raises(fs.InvalidInput, match=r"client 0 is node 10[01] and node 10[01]; expected one node per client"):
        flower.train(PROJECT, grid, settings(deadline=0.5))


def test_a_second_node_for_a_client_is_left_out_with_a_warning_later():
    grid, given = a_grid(), settings()

    def another(reply):
        if reply.metadata.group_id == "0":
            grid.nodes[300] = {"client": 2}
            grid.online.add(300)
        return reply

    grid.spoil = another
    with pytest.warns(fs.FedstrideWarning, match=r"client 2 is node 102 and node 300"):
        assert agree(flower.train(PROJECT, grid, given), local(given))


def test_a_second_node_takes_over_when_the_first_is_gone():
    grid, given = a_grid(), settings(algorithm="scaffold", rounds=4)

    def change(reply):
        if reply.metadata.group_id == "0":
            grid.nodes[300] = {"client": 2}
            grid.online.add(300)
        if reply.metadata.group_id == "1" and not grid.waiting:
            grid.online.discard(102)
        return reply

    grid.spoil = change
    with pytest.warns(fs.FedstrideWarning, match=r"client 2 is node 102 and node 300"):
        assert agree(flower.train(PROJECT, grid, given), local(given))
    assert 102 not in grid.online


@pytest.mark.parametrize(
    "project, match",
    [
        (
            flower.Project(lambda s: nn.Linear(4, 3).double(), "cross_entropy", load_data),
            "different parameters from the server's: .*weight",
        ),
        (flower.Project(lambda s: make_model({**s, "seed": 9}), "cross_entropy", load_data), None),
        (flower.Project(lambda s: make_model({**s, "dtype": "float32"}), "cross_entropy", load_data), "torch.float32"),
    ],
    ids=["layers", "trainable weights", "type"],
)
def test_a_node_with_another_model_is_refused(project, match):
    grid = a_grid()
    grid.apps[102] = flower.client_app(project)
    if match is None:
        assert flower.train(PROJECT, grid, settings()).history  # they come from the server
        return
    with pytest.raises(fs.InvalidInput, match=f"client 2.*{match}"):
        flower.train(PROJECT, grid, settings())


def test_frozen_weights_must_agree():
    def other(settings):
        model = make_model(settings)
        model.frozen.weight.data += 1e-9
        return model

    grid = a_grid()
    grid.apps[102] = flower.client_app(flower.Project(other, "cross_entropy", load_data))
    with pytest.raises(
        fs.InvalidInput, match=r"client 2 \(node 102\): different frozen parameters and buffers from the server's"
    ):
        flower.train(PROJECT, grid, settings(kind="normed", batch_size=3))


def spoil_data(change):
    def data(settings, node):
        pair = load_data(settings, node)
        return change(*pair) if node["partition-id"] == 2 else pair

    return flower.Project(make_model, "cross_entropy", data)


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda X, y: (X * torch.nan, y), r"client 2: client 2: inputs contain NaN"),
        (lambda X, y: (X, y + 3), r"client 2: client 2: a label is out of range"),
        (lambda X, y: (X[:, :3], y), r"client 2: model: it fails on client 2's inputs"),
        (lambda X, y: (X[:0], y[:0]), r"client 2: client 2: no samples"),
        (lambda X, y: (X.tolist(), y), r"client 2: client 2: got list in batch.*; expected \(inputs, targets\)"),
    ],
)
def test_invalid_data_of_a_node_is_reported_at_the_server(change, match):
    project = spoil_data(change)
    grid = a_grid()
    grid.app = flower.client_app(project)
    with pytest.raises(fs.InvalidInput, match=match):
        flower.train(project, grid, settings())


def test_nodes_have_samples_of_the_same_kind():
    project = spoil_data(lambda X, y: (X, y.to(torch.int32).long()[:, None]))
    project = flower.Project(make_model, lambda out, y: nn.functional.cross_entropy(out, y.reshape(-1)), project.data)
    grid = a_grid()
    grid.app = flower.client_app(project)
    with pytest.raises(fs.InvalidInput, match=r"client 2 .* has samples of \(\[4\] float64, \[1\] int64\), client"):
        flower.train(project, grid, settings())


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda X, y: (X[:, :3], y), "model: it fails on test's inputs"),
        (lambda X, y: (X, y + 3), "test: label [345] is out of range"),
        (lambda X, y: (X[:0], y[:0]), "test: no samples"),
    ],
)
def test_a_test_set_that_does_not_fit_is_refused(change, match):
    project = flower.Project(make_model, "cross_entropy", load_data, lambda settings: change(*load_test(settings)))
    with pytest.raises(fs.InvalidInput, match=match):
        flower.train(project, a_grid(), settings())


def test_remote_data_is_refused_by_other_engines():
    clients = elsewhere([3, 4], Found("mean", (), False))
    with pytest.raises(fs.InvalidInput, match=r"clients\[1\]: its data is on another machine"):
        fs.train(make_model({}), "cross_entropy", clients, rounds=1)


def test_errors_of_the_project_at_a_node_are_reported_at_the_server():
    def data(settings, node):
        raise ValueError("no data here; start the node with data=FILE")

    grid = a_grid()
    grid.apps[102] = flower.client_app(flower.Project(make_model, "cross_entropy", data))
    with pytest.raises(
        fs.InvalidInput, match=r"node 102: client 2: ValueError in data, test_flower.py line \d+; see the log"
    ):
        flower.train(PROJECT, grid, settings())


def test_batches_of_one_are_refused_at_the_node():
    with pytest.raises(
        fs.InvalidInput, match=r"client (\d): BatchNorm with a batch of one sample, which client \1 meets"
    ):
        flower.train(PROJECT, a_grid(), settings(kind="normed", batch_size=1))


@pytest.mark.parametrize("number", [{}, {"client": "two"}, {"client": -1}, {"client": True}])
def test_a_node_without_a_number_is_refused(number):
    grid = a_grid()
    grid.nodes[102] = number
    with pytest.raises(fs.InvalidInput, match=r"expected the number of this node's client"):
        flower.train(PROJECT, grid, settings(deadline=0.5))


def test_missing_clients_are_named():
    grid = a_grid()
    grid.online -= {101, 103}
    with pytest.raises(fs.InvalidInput, match=r"after 0.1 s there is no node for client\(s\) 1, 3"):
        flower.train(PROJECT, grid, settings(deadline=0.1))


def test_nodes_beyond_the_number_of_clients_are_left_out():
    grid = a_grid()
    run = flower.train(PROJECT, grid, settings(clients=3, cohort="none"))
    assert all(row["participants"] == 3 for row in run.history)


@pytest.mark.parametrize(
    "more, match",
    [
        ({"clients": 0}, "clients=0"),
        ({"rounds": "many"}, "rounds='many'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"algorithm": "fedavgg"}, "fedavgg"),
        ({"algorithm": "fedavg(lrr=1)"}, "lrr"),
        ({"algorithm": 3}, "expected a text"),
        ({"seed": "none"}, "seed=None"),
        ({"deadline": -1}, "deadline=-1"),
        ({"buffers": "some"}, "buffers='some'"),
    ],
)
def test_invalid_settings_are_refused(more, match):
    with pytest.raises(fs.InvalidInput, match=match):
        flower.train(PROJECT, a_grid(), settings(**more))


@pytest.mark.parametrize(
    "algorithm",
    [
        *("fedavg", "scaffold", "fednova", "delta_sgd"),
        'fedlin(up={part="TopK", k=0.1}, down={part="TopK", k=0.01})',
        'custom(up={part="RandomK", k=0.2})',
        'custom(up={part="Quantize"})',
    ],
)
def test_the_history_records_the_bytes_on_the_wire(algorithm):
    grid, up, down = a_grid(), [], []

    def look(reply: Message) -> Message:
        if reply.metadata.message_type.startswith("train"):
            up.append(message_to_proto(reply).ByteSize())
        return reply

    grid.spoil = look
    given = settings(rounds=4, algorithm=algorithm, kind="wide", local_steps=2)
    run = flower.train(PROJECT, grid, given, [lambda event: down.append(grid.bytes)])
    for told, sent in ((run.history["bytes_down"], down[-1] - down[0]), (run.history["bytes_up"], sum(up))):
        assert (
            sum(told) * 0.85 < sent < sum(told) + 4 * 4000 * CLIENTS
        )  # zeros are not sent; names, settings and headers are
    dense = CLIENTS * 8 * 2000 * 5
    assert (run.history["bytes_up"][-1] < dense) == (algorithm.startswith("custom"))


def sparse(change):
    """Change the parts of an update that TOP-k compressed."""

    def spoil(reply: Message) -> Message:
        upload, names = reply.content["upload"], ("update.where", "update.values")
        for name, v in zip(names, change(*(records_module.tensor_of(upload[n]).clone() for n in names)), strict=True):
            upload[name] = Array(v.numpy()).data
        return reply

    return spoil


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("wrong shape", lambda where, values: (where, values[1:])),
        ("wrong shape", lambda where, values: (where + 1, values)),
        ("wrong shape", lambda where, values: (where.flip(0), values)),
        ("wrong shape", lambda where, values: (where, values.float())),
        ("wrong shape", lambda where, values: (where.repeat(30), values)),
        ("not finite", lambda where, values: (where, values / 0)),
        ("too long", lambda where, values: (where, 1e12 * values)),
    ],
)
def test_an_unusable_sparse_answer_is_left_out_and_counted(reason, change):
    given = settings(algorithm='custom(up={part="TopK", k=0.1})', kind="wide")
    run = flower.train(PROJECT, spoiled(a_grid(), 2, sparse(change)), given)
    assert [row["refused"] for row in run.history] == [{}, {reason: 1}, {}]


def test_a_run_without_failures_has_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flower.train(PROJECT, a_grid(), settings(algorithm="scaffold"))


def test_memory_files_are_not_pickle():
    flower.train(PROJECT, a_grid(), settings(algorithm="scaffold"))
    file = next(Path("fedstride-memory").rglob("*.safetensors"))
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert set(header) == {"__metadata__", "control"}


@pytest.mark.parametrize("silent", range(CLIENTS))
def test_silent_nodes_do_not_block_other_answers(silent, monkeypatch):
    """Replies are polled one at a time here; at the deadline, all that have arrived count."""
    monkeypatch.setattr(replies_module, "TOGETHER", 1)
    grid = a_grid()
    grid.spoil = lambda reply: (
        None
        if (reply.metadata.src_node_id, reply.metadata.message_type)
        == (
            100 + silent,
            "train.updates",
        )
        else reply
    )
    run = flower.train(PROJECT, grid, settings(rounds=1, deadline=0.5))
    assert run.history[0]["refused"] == {"late": 1}
