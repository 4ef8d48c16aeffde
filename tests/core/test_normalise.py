"""normalise=True: the federation's statistics, the same on every engine, and a model that takes raw inputs."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.text import algorithm_of
from fedstride.app import run_folder
from fedstride.app.config import resolve
from fedstride.core.errors import FedstrideWarning
from fedstride.core.normalise import Normalised, moments, scaled, scaling_of
from fedstride.engine import Local, Torchrun
from fedstride.engine.faults import Faulty
from fedstride.training.result import Weights
from tests.problems import Classifier, same_bits, seeded
from tests.ranks import ranks

SIZES = (30, 45, 20, 60, 35)
ROUNDS = 6


def people(seed: int = 0, sizes=SIZES, dtype=torch.float64):
    """age ~ 40 +- 12 and income ~ 50000 +- 20000, another age for each client; the label depends on both."""
    source = torch.Generator().manual_seed(seed)
    clients = []
    for i, n in enumerate(sizes):
        z = torch.randn(n, 3, generator=source, dtype=torch.float64)
        z[:, 0] += 0.3 * i
        inputs = torch.stack([40 + 12 * z[:, 0], 50_000 + 20_000 * z[:, 1]], 1)
        clients.append((inputs.to(dtype), (z[:, 0] + z[:, 1] + 0.3 * z[:, 2] > 0.5).long()))
    return clients


def together(clients):
    return tuple(torch.cat(part) for part in zip(*clients, strict=True))


def by_hand(clients, test):
    X = together(clients)[0].double()
    mean, deviation = X.mean(0), X.std(0, correction=0)
    dtype = clients[0][0].dtype
    return [(((x.double() - mean) / deviation).to(dtype), y) for x, y in (*clients, test)]


def softmax(dtype=torch.float64):
    return seeded(lambda: nn.Linear(2, 2), dtype)


def mlp(dtype=torch.float64):
    return seeded(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)), dtype)


MODELS = {"softmax": softmax, "mlp": mlp}


def learn(model=None, clients=None, algorithm="auto", rounds=ROUNDS, **options):
    given = {"cohort": 3, "batch_size": 10, "test": together(people(99)), "normalise": True, **options}
    clients = people() if clients is None else clients
    return fs.train(model or mlp(), "cross_entropy", clients, algorithm, rounds=rounds, **given)


# The result.


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_as_good_as_columns_standardised_by_hand(make, seed):
    clients, test = people(seed, dtype=torch.float32), together(people(100 + seed, dtype=torch.float32))
    run = learn(make(torch.float32), clients, test=test, seed=seed, rounds=20)
    *hand, held = by_hand(clients, test)
    twin = learn(make(torch.float32), hand, test=held, seed=seed, rounds=20, normalise=False)
    assert abs(run.history[-1]["test_accuracy"] - twin.history[-1]["test_accuracy"]) <= 0.02
    assert run.history[-1]["test_accuracy"] > 0.85
    assert run.engine["oracle"] == twin.engine["oracle"]
    with pytest.warns(FedstrideWarning, match="normalise=True"):
        raw = learn(make(torch.float32), clients, test=test, seed=seed, rounds=20, normalise=False)
    assert raw.history[-1]["test_accuracy"] < run.history[-1]["test_accuracy"] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["auto", "fedavg", "scaffold", "fedlin", "fedsls", "fednova"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_equal_to_standardisation_by_hand_up_to_rounding(make, algorithm, weights):
    clients, test = people(), together(people(99))
    *hand, held = by_hand(clients, test)
    run = learn(make(), clients, algorithm, weights=weights)
    twin = learn(make(), hand, algorithm, test=held, normalise=False, weights=weights)
    torch.testing.assert_close(run.x, twin.x, rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(run.history, twin.history, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert mine["test_accuracy"] == theirs["test_accuracy"]


@pytest.mark.parametrize("readout", [None, "last", "average"])
def test_the_model_takes_raw_inputs_and_has_the_accuracy_of_the_history(readout):
    inputs, targets = test = together(people(99))
    model = mlp()
    before = [p.clone() for p in model.parameters()]
    run = learn(model, test=test, readout=readout)
    with torch.no_grad():
        output = run.model(inputs)
    assert float((output.argmax(1) == targets).double().mean()) == run.history[-1]["test_accuracy"]
    assert float(nn.functional.cross_entropy(output, targets)) == pytest.approx(run.history[-1]["test_loss"])
    assert run.engine["normalise"] is True
    assert not run.model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    if readout == "last":
        assert torch.equal(nn.utils.parameters_to_vector(run.model.parameters()), run.x)


def test_without_it_nothing_is_wrapped_or_recorded():
    run = learn(clients=[(torch.randn(20, 2).double(), torch.randint(2, (20,))) for _ in range(3)], normalise=False)
    assert not isinstance(run.model, Normalised)
    assert "normalise" not in run.engine


def test_every_sample_counts_once_whatever_the_weights():
    X = together(people())[0]
    for weights in ("uniform", "samples", [5.0, 1.0, 1.0, 1.0, 9.0]):
        run = learn(weights=weights, cohort=2, rounds=1)
        torch.testing.assert_close(run.model.mean, X.mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(run.model.scale, X.std(0, correction=0), rtol=1e-12, atol=0)


def test_the_bytes_of_the_exchange_are_in_the_first_round():
    run = learn(algorithm="fedavg", rounds=2, cohort=None, batch_size=None)
    first, second = run.history[0], run.history[1]
    assert first["bytes_up"] - second["bytes_up"] == len(SIZES) * 8 * (1 + 3 * 2)
    assert first["bytes_down"] == second["bytes_down"] == len(SIZES) * 8 * (len(run.x) + 2 * 2)


# The statistics.


def test_small_deviations_of_large_values_are_not_lost():
    source = torch.Generator().manual_seed(0)
    columns = [(2020.0, 2.0), (50_000.0, 20_000.0), (1.7e9, 1e4), (1e-6, 1e-7), (0.0, 1e8)]
    parts = []
    for n in (7, 300, 1, 41):
        z = torch.randn(n, len(columns), generator=source, dtype=torch.float64)
        parts.append(torch.stack([m + s * z[:, j] for j, (m, s) in enumerate(columns)], 1))
    X = torch.cat(parts)
    scaling = scaling_of(sum(moments(p) for p in parts), torch.float64)
    torch.testing.assert_close(scaling[:5], X.mean(0), rtol=1e-12, atol=1e-6)
    torch.testing.assert_close(scaling[5:], X.std(0, correction=0), rtol=1e-4, atol=0)
    torch.testing.assert_close(scaling[5:7], X.std(0, correction=0)[:2], rtol=1e-9, atol=0)
    years = [p[:, :2].float() for p in parts]
    rounded = scaling_of(sum(moments(p) for p in years), torch.float32)
    expected = torch.cat(years).double().std(0, correction=0)
    torch.testing.assert_close(rounded[2:].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_get_the_scale_one(dtype):
    constants = torch.tensor([0.1, 0.0, 1e9, -3.7, 1 / 3], dtype=dtype)
    parts = [constants.expand(n, -1) for n in (3, 1, 17, 1000)]
    scaling = scaling_of(sum(moments(p) for p in parts), dtype)
    assert torch.equal(scaling[5:], torch.ones(5, dtype=dtype))
    torch.testing.assert_close(scaled(parts[0], scaling), torch.zeros(3, 5, dtype=dtype), rtol=0, atol=1e-6)


def test_blocks_change_nothing_but_rounding(monkeypatch):
    X = together(people())[0]
    whole = moments(X)
    monkeypatch.setattr("fedstride.core.normalise.BLOCK", 14)
    torch.testing.assert_close(moments(X), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,), (4, 3), (3, 4, 5), (3, 2, 4, 5)])
def test_features_are_columns_or_channels(shape):
    source = torch.Generator().manual_seed(0)
    X = 100 + 5 * torch.randn(50, *shape, generator=source, dtype=torch.float64)
    Z = scaled(X, scaling_of(moments(X), X.dtype))
    axis = 1 if len(shape) >= 3 else len(shape)
    over = [d for d in range(Z.dim()) if d != axis or not shape]
    assert Z.shape == X.shape
    features = 3 if shape else 1
    assert len(moments(X)) == 1 + 3 * features
    torch.testing.assert_close(Z.mean(over), torch.zeros(shape and 3, dtype=X.dtype) if shape else Z.mean() * 0)
    torch.testing.assert_close(Z.std(over, correction=0), torch.ones_like(Z.std(over, correction=0)))


def test_images_are_normalised_by_channel():
    source = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 1000.0])[:, None, None]
    clients = [
        (scale * (3 + torch.randn(8, 2, 5, 5, generator=source)), torch.randint(3, (8,), generator=source))
        for _ in range(3)
    ]
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)), torch.float32)
    run = fs.train(model, "cross_entropy", clients, rounds=2, normalise=True, test=clients[0])
    X = together(clients)[0]
    torch.testing.assert_close(run.model.mean, X.mean((0, 2, 3)))
    torch.testing.assert_close(run.model.scale, X.std((0, 2, 3), correction=0))
    accuracy = (run.model(clients[0][0]).argmax(1) == clients[0][1]).double().mean()
    assert float(accuracy) == run.history[-1]["test_accuracy"]


# Saved, loaded, resumed.


def test_saved_and_loaded_with_the_users_own_model(tmp_path):
    run, inputs = learn(), together(people(99))[0]
    run.save(tmp_path)
    again = fs.load(tmp_path, mlp())
    assert torch.equal(again.model(inputs), run.model(inputs))
    assert torch.equal(again.x, run.x)
    assert again.engine["normalise"] is True
    assert torch.equal(fs.load(tmp_path, run.model).model(inputs), run.model(inputs))
    alone = fs.load(tmp_path)
    assert isinstance(alone.model, Weights)
    assert torch.equal(alone.model.scale, run.model.scale)
    again.save(tmp_path / "copy")
    assert torch.equal(fs.load(tmp_path / "copy", mlp()).model(inputs), run.model(inputs))
    with pytest.raises(fs.InvalidInput, match="do not fit the model"):
        fs.load(tmp_path, softmax())


def test_a_returned_model_can_be_trained_further():
    run = learn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = learn(run.model, normalise=False, rounds=2)
    assert torch.equal(more.model.mean, run.model.mean)
    with pytest.raises(fs.Refused, match=r"normalises its inputs already.*run\.model\.model"):
        learn(run.model)
    assert isinstance(learn(run.model.model, rounds=1).model, Normalised)


def crash_after(rounds):
    def crash(event):
        if event.round == rounds:
            raise OSError("crash")

    return crash


@pytest.mark.parametrize("algorithm", ["auto", "scaffold", "fedlin"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_resumed_to_the_same_bits(tmp_path, rounds, algorithm):
    whole = learn(algorithm=algorithm)
    with pytest.raises(OSError, match="crash"):
        learn(algorithm=algorithm, checkpoint=tmp_path, callbacks=[crash_after(rounds)])
    again = learn(algorithm=algorithm, checkpoint=tmp_path)
    assert same_bits(again, whole)
    inputs = together(people(99))[0]
    assert torch.equal(again.model(inputs), whole.model(inputs))


def test_the_inputs_are_measured_once(tmp_path, monkeypatch):
    half = learn(rounds=2, checkpoint=tmp_path)

    def never(*args):
        raise AssertionError("measured again")

    monkeypatch.setattr("fedstride.client.exchange.moments", never)
    again = learn(checkpoint=tmp_path)
    assert torch.equal(again.model.scale, half.model.scale)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)])
@pytest.mark.filterwarnings("ignore::fedstride.core.errors.FedstrideWarning")
def test_a_checkpoint_of_the_other_kind_is_refused(tmp_path, first, then):
    learn(rounds=1, normalise=first, checkpoint=tmp_path)
    with pytest.raises(fs.InvalidInput, match="belongs to another run: normalise was"):
        learn(rounds=2, normalise=then, checkpoint=tmp_path)


# Engines.


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["auto", "scaffold", "fedlin", "moon"])
@pytest.mark.parametrize("buffers", ["average", "local", "frozen"])
def test_the_same_bits_with_any_number_of_workers_and_any_buffers(algorithm, buffers):
    def make():
        return seeded(
            lambda: (
                Classifier(nn.BatchNorm1d(3))
                if algorithm == "moon"
                else nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
            )
        )

    clients = [(torch.cat([x, 100 * x], 1), y) for x, y in people()]
    test = None if buffers == "local" else clients[0]
    runs = [learn(make(), clients, algorithm, test=test, buffers=buffers, engine=Local(workers=n)) for n in (1, 3)]
    assert same_bits(*runs)
    X = together(clients)[0]
    for run in runs:  # training never changes them
        torch.testing.assert_close(run.model.mean, X.mean(0), rtol=1e-12, atol=0)


class People(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, i):
        return self.data[0][i], self.data[1][i]


def test_the_same_bits_from_tensors_datasets_and_lazy_clients(monkeypatch):
    clients = people()
    expected = learn(clients=clients)
    assert same_bits(learn(clients=[People(c) for c in clients]), expected)
    assert same_bits(learn(clients=fs.data.Lazy(list(SIZES), lambda i: clients[i])), expected)
    monkeypatch.setattr("fedstride.engine.worker.SCALED_NUMBERS", 0)
    assert same_bits(learn(clients=clients), expected)


def test_wide_linear_models_are_still_worked_on_in_the_span_of_their_samples():
    source = torch.Generator().manual_seed(0)
    clients = [
        (1000 + 50 * torch.randn(5, 40, generator=source).double(), torch.randn(5, 1, generator=source).double())
        for _ in range(3)
    ]
    model = seeded(lambda: nn.Linear(40, 1))
    run = fs.train(model, "mse", clients, "fedavg", rounds=3, local_steps=4, normalise=True)
    *hand, _ = by_hand(clients, clients[0])
    twin = fs.train(model, "mse", hand, "fedavg", rounds=3, local_steps=4)
    torch.testing.assert_close(run.x, twin.x, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_torchrun_has_the_same_bits_in_all_processes(tmp_path):
    done = ranks(2, "tests.core.test_normalise", tmp_path)
    assert done.returncode == 0, done.stderr
    for algorithm in ("auto", "scaffold"):
        expected = learn(algorithm=algorithm)
        for rank in range(2):
            found = json.loads((tmp_path / f"{algorithm}-{rank}.json").read_text())
            assert found["x"] == expected.x.tolist()
            assert found["mean"] == expected.model.mean.tolist()
            assert found["output"] == expected.model(together(people(99))[0]).tolist()
            assert found["accuracy"] == expected.history["test_accuracy"]


def torchrun_process(folder: Path) -> None:
    for algorithm in ("auto", "scaffold"):
        run = learn(algorithm=algorithm, engine=Torchrun())
        found = {
            "x": run.x.tolist(),
            "mean": run.model.mean.tolist(),
            "output": run.model(together(people(99))[0]).tolist(),
            "accuracy": run.history["test_accuracy"],
        }
        (folder / f"{algorithm}-{os.environ['RANK']}.json").write_text(json.dumps(found))


def small_ages(clients):
    return [(x * torch.tensor([1e-4, 1.0], dtype=x.dtype), y) for x, y in clients]


def flower_project(clients, test=None):
    from fedstride.engine import flower

    return flower.Project(
        lambda settings: mlp(),
        "cross_entropy",
        lambda settings, node: clients[node["partition-id"]],
        lambda settings: together(people(99)) if test is None else test,
    )


def flower_train(clients=None, crash=(), look=None, test=None, **more):
    pytest.importorskip("flwr")
    from fedstride.engine import flower
    from fedstride.engine.flower.server import train
    from tests.engine.grid import Grid

    clients = people() if clients is None else clients
    project = flower_project(clients, test)
    grid = Grid(flower.client_app(project), {100 + c: {"partition-id": c} for c in range(len(clients))})
    grid.spoil = look or grid.spoil
    settings = {
        "clients": len(clients), "algorithm": "auto", "rounds": ROUNDS, "cohort": 3, "batch-size": 10, "seed": 0,
        "normalise": True, "deadline": 30.0, **more,
    }  # fmt: skip
    return train(project, grid, settings, crash)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["auto", "scaffold(lr=0.1)", "fedlin(lr=0.1)"])
def test_flower_agrees_with_the_local_engine(tmp_path, monkeypatch, algorithm):
    monkeypatch.chdir(tmp_path)
    run = flower_train(algorithm=algorithm)
    expected = learn(algorithm=algorithm_of(algorithm))
    assert torch.equal(run.model.mean, expected.model.mean)
    assert torch.equal(run.model.scale, expected.model.scale)
    torch.testing.assert_close(run.x, expected.x, rtol=1e-9, atol=1e-11)
    assert run.history["test_accuracy"] == expected.history["test_accuracy"]
    assert run.history[0]["bytes_up"] == expected.history[0]["bytes_up"]
    assert run.engine["normalise"] is True


def test_flower_resumes_and_saves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = flower_train(algorithm="scaffold(lr=0.1)")
    with pytest.raises(OSError, match="crash"):
        flower_train(algorithm="scaffold(lr=0.1)", out="run", crash=[crash_after(2)])
    again = flower_train(algorithm="scaffold(lr=0.1)", out="run")
    assert same_bits(again, whole)
    inputs = together(people(99))[0]
    assert torch.equal(fs.load("run", mlp()).model(inputs), whole.model(inputs))


def test_flower_nodes_refuse_whole_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.InvalidInput, match="token ids"):
        flower_train([(torch.randint(5, (9, 2)), torch.randint(2, (9,))) for _ in range(3)])


SECURE = "10, mean_squares=1000, loss=100, control=100, gradient=100"


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("algorithm", ["auto", "scaffold(lr=0.1)", "fedlin(lr=0.1)"])
def test_secure_sums_give_the_scaling_of_plain_ones(tmp_path, monkeypatch, algorithm, weights):
    """The scales of the columns, 1e-3 and 2e4, are far apart. Every sample counts once, whatever the weights."""
    monkeypatch.chdir(tmp_path)
    clients, test = small_ages(people()), together(small_ages(people(99)))
    run = flower_train(clients, test=test, secure=SECURE, algorithm=algorithm, weights=weights)
    plain = learn(clients=clients, test=test, algorithm=algorithm_of(algorithm), weights=weights)
    torch.testing.assert_close(run.model.mean, plain.model.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(run.model.scale, plain.model.scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(run.x, plain.x, rtol=0, atol=1e-4)
    assert run.history[-1]["test_accuracy"] == pytest.approx(plain.history[-1]["test_accuracy"], abs=0.01)
    assert run.engine["normalise"] is True


def test_no_message_of_a_secure_sum_tells_the_moments_of_a_client(tmp_path, monkeypatch):
    """Replies in the clear hold keys, shares and masked numbers. In a plain run the same look finds the moments."""
    pytest.importorskip("flwr")
    from flwr.common.serde import message_to_proto

    monkeypatch.chdir(tmp_path)
    known = [part.tobytes() for x, _ in people() for part in moments(x)[1:].numpy()]
    for setting, told in (({}, True), ({"secure": SECURE}, False)):
        seen, kinds = bytearray(), set()

        def look(reply, seen=seen, kinds=kinds):
            seen += message_to_proto(reply).SerializeToString()
            kinds.add(reply.metadata.message_type)
            return reply

        flower_train(look=look, rounds=1, **setting)
        assert [part in seen for part in known] == [told] * len(known)
        assert ("train.moments" in kinds) == told
        assert (b"moments" in seen) == told


def test_a_client_that_drops_out_of_a_secure_sum_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    silent = (101, "train")
    run = flower_train(
        look=lambda r: None if (r.metadata.src_node_id, r.metadata.message_type) == silent else r,
        secure=SECURE, rounds=1, deadline=0.5, cohort="none",
    )  # fmt: skip
    X = together([client for i, client in enumerate(people()) if i != 1])[0]
    torch.testing.assert_close(run.model.mean, X.mean(0), rtol=1e-12, atol=0)


def test_inputs_beyond_the_bound_are_refused_at_the_roll_call_and_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    with pytest.raises(
        fs.InvalidInput, match=r"client \d: .*exceed the bound inputs=20000\. .* setting `secure`"
    ) as caught:
        flower_train(secure=f"{SECURE}, inputs=2e4", look=lambda r: seen.append(r.metadata.message_type) or r)
    assert set(seen) == {"query.about"}
    numbers = {float(n) for n in re.findall(r"[-+.\de]*\d", str(caught.value))}
    assert not numbers & {float(v) for x, _ in people() for v in x.flatten()}
    run = flower_train(secure=f"{SECURE}, inputs=2e5", rounds=1)
    torch.testing.assert_close(run.model.mean, together(people())[0].mean(0), rtol=1e-12, atol=0)


# Clients that fail.


def test_lost_clients_are_left_out_and_the_bits_do_not_depend_on_workers():
    engine = Faulty(Local(workers=1), dropout=0.3, seed=1)
    run = learn(engine=engine, guard=fs.Guard(quorum=0.4))
    assert same_bits(run, learn(engine=replace(engine, engine=Local(workers=3)), guard=fs.Guard(quorum=0.4)))
    X = together(people())[0]
    assert not torch.allclose(run.model.mean, X.mean(0), rtol=1e-9)  # somebody was lost
    torch.testing.assert_close(run.model.mean, X.mean(0), rtol=0.2, atol=0)


def test_damaged_sums_do_not_count():
    exploding = Faulty(exploding=0.2, seed=1)
    run = learn(engine=exploding, guard=fs.Guard(quorum=0.5, retries=20))
    torch.testing.assert_close(run.model.mean, together(people())[0].mean(0), rtol=0.2, atol=0)
    for kind in ("nan", "infinite", "shape", "corrupt", "stale"):
        damaged = learn(engine=Faulty(**{kind: 0.2}, seed=1), rounds=2, guard=fs.Guard(quorum=0.3, retries=20))
        torch.testing.assert_close(damaged.model.mean, run.model.mean, rtol=0.2, atol=0)


def test_too_few_answers_end_the_run_before_the_first_round():
    with pytest.raises(
        fs.TooFew, match=r"normalise=True: 0 of 5 clients.*no answer: 5.*quorum=0.5 requires 3"
    ) as caught:
        learn(engine=Faulty(dropout=1.0))
    assert caught.value.round == 0
    assert len(caught.value.run.history) == 0
    assert not isinstance(caught.value.run.model, Normalised)


# Refusals.


def test_refusals():
    tokens = [(torch.randint(9, (20, 4)), torch.randint(2, (20,))) for _ in range(3)]
    embedding = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(fs.Refused, match=r"inputs of type torch.int64.*token ids.*normalise=False"):
        fs.train(embedding, "cross_entropy", tokens, rounds=1, normalise=True)
    private = replace(fs.recipes.fedavg(lr=0.1), privacy=fs.Privacy(noise=1.0, clip=1.0))
    with pytest.raises(fs.Refused, match="normalise=True with Privacy: sums of raw inputs are unbounded"):
        learn(algorithm=private)
    with pytest.raises(fs.Refused, match="normalise='scale' with Privacy: sums of raw inputs are unbounded"):
        learn(algorithm=private, normalise="scale")
    for wrong in ("yes", 1, 0.5):
        with pytest.raises(fs.InvalidInput, match=r'normalise=.* is invalid: expected True, False, "scale" or None'):
            learn(normalise=wrong)


# Warnings.


def warned(inputs, targets=None, parts: int = 2, **options):
    """What is said of inputs that are dealt out to clients."""
    targets = torch.zeros(len(inputs), dtype=torch.int64) if targets is None else targets
    clients = options.pop("clients", None) or list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 2)).to(inputs.dtype)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fs.train(model, "cross_entropy", clients, fs.recipes.fedavg(lr=1e-12), rounds=1, **options)
    return [str(w.message) for w in found if issubclass(w.category, FedstrideWarning)]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_hot(n, classes):
    return nn.functional.one_hot(torch.arange(n) % classes, classes).float()


def test_columns_of_different_scales_give_one_warning_that_names_them():
    (said,) = warned(normal(60, 5) * torch.tensor([1.0, 1.0, 500.0, 1.0, 1.0]))
    assert "feature 2 is" in said
    assert "normalise=True" in said
    assert said.count("feature ") <= 3
    (said,) = warned(2020 + 2 * normal(60, 1))
    assert "feature 0 is 2.02e+03 +- " in said
    (said,) = warned(torch.cat([normal(60, 3), 1e-3 * normal(60, 1)], 1))
    assert "feature 3" in said
    rare = torch.zeros(60, 1)
    rare[::7] = 9e4  # as capital gains
    (said,) = warned(torch.cat([normal(60, 3), rare], 1))
    assert "feature 3" in said


def test_what_else_is_no_reason_to_warn():
    ordinary = {
        "normal": normal(60, 5),
        "scales within a factor of a hundred": normal(60, 5) * torch.tensor([1.0, 30.0, 1.0, 1.0, 1.0]),
        "constant columns": torch.cat([normal(60, 3), torch.full((60, 1), 1e6), torch.zeros(60, 1)], 1),
        "one-hot columns": torch.cat([normal(60, 2), one_hot(60, 50)], 1),
        "sparse columns": normal(60, 50) * (torch.rand(60, 50, generator=torch.Generator().manual_seed(1)) < 0.03),
        "images of different channels": normal(60, 2, 4, 4) * torch.tensor([1.0, 1e4])[:, None, None],
        "few samples": normal(4, 3) * torch.tensor([1.0, 500.0, 1.0]),
        "nothing varies": torch.ones(60, 3),
    }
    for name, inputs in ordinary.items():
        assert warned(inputs) == [], name
    assert warned(normal(60, 5) * torch.tensor([1.0, 1.0, 500.0, 1.0, 1.0]), normalise=True) == []


@pytest.mark.parametrize("shape", [(60, 5), (60, 3, 4, 4)], ids=["columns", "images"])
@pytest.mark.parametrize(("factor", "word"), [(255, "large"), (0.05, "small")])
def test_inputs_that_are_very_large_or_very_small_give_one_warning(shape, factor, word):
    inputs = torch.rand(*shape, generator=torch.Generator().manual_seed(1))
    (said,) = warned(factor * inputs)
    assert f"clients: the inputs are {word}" in said
    assert float(re.search(r"(?:above|below) (\S+) in size", said)[1]) == pytest.approx(factor / 2, rel=0.3)
    assert "normalise=True" in said
    assert warned(factor * inputs, normalise=True) == []
    assert warned(factor * inputs[:4]) == []  # too few to tell


def test_flat_images_give_no_warning():
    pixels = torch.zeros(60, 100)
    pixels[:, 10:90] = torch.rand(60, 80, generator=torch.Generator().manual_seed(0))
    pixels[3, 2] = 1 / 255  # at the border, once
    assert warned(pixels) == []
    assert warned((pixels - 0.13) / 0.3) == []  # the background is not zero any more
    digits = fs.data.load("digits").train
    assert warned(digits[0].flatten(1)[:500], digits[1][:500] % 2) == []


def test_datasets_and_lazy_clients_are_looked_at_too():
    inputs, targets = normal(60, 3) * torch.tensor([1.0, 500.0, 1.0]), torch.zeros(60, dtype=torch.int64)
    assert len(warned(inputs, clients=[People((inputs, targets))] * 2)) == 1
    lazy = fs.data.Lazy([60, 60], lambda i: (inputs, targets))
    assert len(warned(inputs, clients=lazy)) == 1


def flower_warned(**more):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        flower_train(**{"algorithm": "fedavg(lr=1e-12)", "rounds": 2, "normalise": False, **more})
    return [str(w.message) for w in found if issubclass(w.category, FedstrideWarning)]


def test_a_flower_server_is_told_of_scales_and_of_no_value(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    even = [(normal(n, 2).double(), torch.zeros(n, dtype=torch.int64)) for n in SIZES]
    seen = []
    (said,) = flower_warned(clients=[*people()[:3], *even[3:]], look=lambda r: seen.append(r) or r)
    assert said.startswith("clients: at 3 of 5 nodes the scales of the input features are far apart")
    assert "Use normalise=true" in said
    assert not re.search(r"\+-|feature \d", said)
    abouts = [r.content.config_records["about"] for r in seen if r.metadata.message_type == "query.about"]
    told = {about["client"]: about.pop("scales far apart") for about in abouts}
    assert told == {0: True, 1: True, 2: True, 3: False, 4: False}
    known = {"client", "samples", "found", "kind of samples", "name", "time"}
    assert {name for about in abouts for name in about} == known
    logged = [r.getMessage() for r in caplog.records if r.name == "flwr.fedstride" and r.levelname == "WARNING"]
    assert len(logged) == 3  # at each of the three nodes
    assert all("feature 1 is " in text and "normalise=True" in text for text in logged)


def test_a_flower_server_is_told_of_no_scales_where_there_is_nothing_to_do(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert flower_warned(normalise=True) == []
    assert flower_warned(clients=[(normal(n, 2).double(), torch.zeros(n, dtype=torch.int64)) for n in SIZES]) == []
    assert not [r for r in caplog.records if "far apart" in r.getMessage()]


def test_under_privacy_the_scales_are_told_to_the_log_of_a_node_only(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    private = replace(fs.recipes.fedavg(lr=1e-12), privacy=fs.Privacy(noise=1.0, delta=0.01))
    monkeypatch.setitem(RECIPES, "private", lambda: private)
    assert flower_warned(algorithm="private", seed=7) == []
    logged = [r.getMessage() for r in caplog.records if "far apart" in r.getMessage()]
    assert len(logged) == len(SIZES)
    assert all("Scale each column by a known constant" in text for text in logged)


@pytest.mark.parametrize("task", ["digits", "breast_cancer"])
def test_presets_give_no_warning_and_are_not_normalised(task):
    config = resolve(task, settings={"training.rounds": 1})
    assert config.arguments(None)["normalise"] is None
    prepared = run_folder.prepare(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedstrideWarning)
        weights = config.arguments(None)["weights"]
        run = fs.train(prepared.model, prepared.loss, prepared.clients, rounds=1, cohort=3, weights=weights)
    assert not isinstance(run.model, Normalised)


# Inputs that `auto` scales.


def images(factor: float = 1.0, clients: int = 4, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images of two classes, brighter on the left or on the right, with values up to `factor`."""
    pixels = torch.rand(clients, 40, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    targets = (torch.arange(40) % 2).expand(clients, 40)
    for half, columns in enumerate((slice(0, 3), slice(3, 6))):
        pixels[..., columns] *= torch.where(targets == half, 1.0, 0.5)[:, :, None, None, None]
    return [(factor * x, y) for x, y in zip(pixels, targets, strict=True)]


def convolutional(*first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    return nn.Sequential(*first, *layers)


def on_images(factor: float, model: nn.Module | None = None, algorithm="auto", **options):
    options = {"rounds": 12, "batch_size": 10, "test": images(factor, 1, seed=1)[0], **options}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run = fs.train(model or convolutional(), "cross_entropy", images(factor), algorithm, **options)
    return run, [str(w.message) for w in found if issubclass(w.category, FedstrideWarning)]


@pytest.mark.parametrize("factor", [0.02, 255.0])
def test_auto_learns_the_same_from_inputs_of_any_size(factor):
    run, said = on_images(factor)
    reference, _ = on_images(64.0)  # scaled as well
    assert not said
    assert run.engine["normalise"] == "scale"
    torch.testing.assert_close(run.x, reference.x, rtol=1e-3, atol=1e-4)
    (x, y), (z, _) = images(factor, 1, seed=1)[0], images(64.0, 1, seed=1)[0]
    torch.testing.assert_close(run.model(x), reference.model(z), rtol=1e-2, atol=1e-3)  # it takes raw inputs
    assert float((run.model(x).argmax(1) == y).float().mean()) > 0.9
    assert isinstance(run.model, Normalised)
    size = torch.cat([x for x, _ in images(factor)]).square().mean().sqrt()
    torch.testing.assert_close(run.model.scale, size.reshape(1))
    assert not run.model.mean.any()


def test_a_run_with_scaled_inputs_is_saved_and_resumed(tmp_path):
    whole, _ = on_images(255.0, rounds=6)
    on_images(255.0, rounds=3, checkpoint=tmp_path / "checkpoints")
    resumed, _ = on_images(255.0, rounds=6, checkpoint=tmp_path / "checkpoints")
    assert torch.equal(resumed.x, whole.x)
    resumed.save(tmp_path / "run")
    inputs = images(255.0, 1, seed=1)[0][0]
    assert torch.equal(fs.load(tmp_path / "run", convolutional()).model(inputs), whole.model(inputs))


def test_the_user_decides_first():
    run, said = on_images(255.0, rounds=1, normalise=False)
    assert len(said) == 1 and "clients: the inputs are large" in said[0]
    assert not isinstance(run.model, Normalised)
    run, said = on_images(1.0, rounds=1, algorithm=fs.recipes.fedavg(lr=0.1), normalise="scale")
    assert not said and isinstance(run.model, Normalised) and len(run.model.scale.unique()) == 1


class Divide(nn.Module):
    def forward(self, inputs):
        return inputs / 255


def test_inputs_are_left_alone_where_the_first_layer_does_not_see_their_size():
    for first in (Divide(), nn.BatchNorm2d(1), nn.GroupNorm(1, 1)):
        run, said = on_images(255.0, convolutional(first), rounds=1)
        assert not said and not isinstance(run.model, Normalised), first


def test_inputs_are_left_alone_where_the_model_was_trained_on_them():
    trained = on_images(255.0)[0].model
    folded = copy.deepcopy(trained.model)
    with torch.no_grad():
        folded[0].weight /= trained.scale.item()  # knows the same, and takes raw inputs itself
    run, said = on_images(255.0, folded, rounds=1)
    assert not isinstance(run.model, Normalised)
    assert len(said) == 1 and "clients: the inputs are large" in said[0]


def test_columns_that_are_far_apart_are_not_scaled_together():
    columns = torch.rand(80, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([50.0, 5e4])
    clients = [(part, torch.zeros(len(part), dtype=torch.int64)) for part in columns.chunk(2)]
    with pytest.warns(FedstrideWarning, match="far apart"):
        run = fs.train(nn.Linear(2, 2), "cross_entropy", clients, rounds=1)
    assert not isinstance(run.model, Normalised)


# The command line's configuration.


def write_csv(path: Path) -> Path:
    inputs, targets = together(people(sizes=(60, 60, 60)))
    rows = [
        f"{a:.0f},{b:.0f},{int(y)},{i % 3}" for i, ((a, b), y) in enumerate(zip(inputs.tolist(), targets, strict=True))
    ]
    path.write_text("\n".join(["age,income,bought,shop", *rows]))
    return path


def shops(tmp_path, **more):
    settings = {
        "data.source": str(write_csv(tmp_path / "shops.csv")),
        "data.options": {"label": "bought", "client": "shop"},
        "data.partition": "natural",
        "training.rounds": 3,
        "training.cohort": 2,
        "training.batch_size": 10,
        "model.name": "mlp",
        **more,
    }
    return resolve(settings=settings)


def test_tables_in_files_are_normalised_by_default(tmp_path):
    config = shops(tmp_path)
    assert config.normalise
    run = run_folder.execute(run_folder.prepare(config), tmp_path / "run")
    assert isinstance(run.model, Normalised)
    assert run.history[-1]["test_accuracy"] > 0.7
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["normalise"] is True
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert min(clients["accuracy"]) > 0.6  # of the model with raw inputs
    prepared = run_folder.prepare(config)
    loaded = fs.load(tmp_path / "run", prepared.model)
    assert torch.equal(loaded.model(prepared.test[0]), run.model(prepared.test[0]))
    again = run_folder.execute(run_folder.prepare(config), tmp_path / "run")
    assert torch.equal(again.x, run.x)


def test_what_the_configuration_says_wins(tmp_path):
    assert not shops(tmp_path, **{"training.normalise": False}).normalise
    assert not shops(tmp_path, **{"data.normalise": True}).normalise
    private = {"training.privacy": {"noise": 1.0, "clip": 0.5}}
    assert not shops(tmp_path, **private).normalise
    assert resolve(settings={"training.normalise": True}).arguments(None)["normalise"] is True
    assert resolve(settings={"training.normalise": "none"}).arguments(None)["normalise"] is None
    assert resolve(settings={"training.normalise": "scale"}).arguments(None)["normalise"] == "scale"
    for task in ("digits", "breast_cancer", "covtype", "mnist", "cifar10", "shakespeare"):
        assert not resolve(task).normalise
    raw = {"data.options": {"standardize": False}, "data.normalise": False}
    assert resolve("breast_cancer", settings=raw).normalise
    assert not resolve(settings={"data.source": "hf:someone/something"}).normalise
    (tmp_path / "leaf").mkdir()
    assert not resolve(settings={"data.source": str(tmp_path / "leaf")}).normalise


def test_the_warning_names_columns(tmp_path):
    config = shops(tmp_path, **{"training.normalise": False})
    with pytest.warns(FedstrideWarning, match=r"'income' is 4\.75e\+04 .*'age' is 43\.9 "):
        run_folder.execute(run_folder.prepare(config), tmp_path / "run")
    private = shops(tmp_path, **{"training.privacy": {"noise": 1.0, "clip": 0.5}, "training.seed": 5})
    with pytest.warns(FedstrideWarning, match="Scale each column by a known constant"):
        run_folder.execute(run_folder.prepare(private), tmp_path / "private")


if __name__ == "__main__":
    torchrun_process(Path(sys.argv[1]))
