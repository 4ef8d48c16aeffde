"""Training with each oracle: independent of workers, oracles agree, the longest work starts first."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import fedstride as fs
from fedstride.engine.local import LocalClients, chunks
from fedstride.models import McMahanCNN
from fedstride.wire import WeightedMean
from tests.problems import Classifier, classification, classifier, learn, same_bits, seeded

Local = fs.engine.Local
ORACLES = ("linear", "vmap", "loop")
ALGORITHMS = ["fedavg", "fedlin", "scaffold", "fedsls", "delta_sgd", "auto", "fedprox", "feddyn", "fedtrack", "fednova"]
SIZES, STEPS = (6, 9, 5, 8, 1, 30, 9), (2, 4, 1, 3, 4, 2, 6)


def run(algorithm="fedavg", engine=None, **options):
    given = {"model": seeded(lambda: nn.Linear(4, 3)), "clients": classification(SIZES), "local_steps": STEPS}
    return learn(algorithm, engine=engine or Local(), **{**given, "rounds": 2, **options})


def batches(algorithm):
    return [None] if algorithm == "fedtrack" else [None, 3]  # whose components are its batches


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_do_not_depend_on_workers(algorithm, oracle):
    for size in batches(algorithm):
        runs = [run(algorithm, Local(w, oracle, chunk=2), batch_size=size, cohort=6) for w in (1, 2, 3)]
        assert same_bits(runs[0], runs[1])
        assert same_bits(runs[0], runs[2])
        assert runs[2].engine["oracle"] == oracle


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_oracles_agree(algorithm):
    for size in batches(algorithm):
        runs = [run(algorithm, Local(oracle=o, chunk=c), batch_size=size) for o in ORACLES for c in (None, 2)]
        for other in runs[:-1]:
            assert_close(other.x, runs[-1].x, rtol=1e-10, atol=1e-10)
            for name in ("gradients", "forwards", "trials", "bytes_up", "participants"):
                assert other.history[name] == runs[-1].history[name]
            assert_close(other.history["train_loss"], runs[-1].history["train_loss"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("oracle", ORACLES)
def test_repeated_runs_are_bitwise_equal(oracle):
    assert same_bits(run("fedsls", Local(oracle=oracle)), run("fedsls", Local(oracle=oracle)))


@pytest.fixture
def cohorts(monkeypatch):
    """Record the cohorts of all exchanges."""
    seen, ask = [], LocalClients.exchange

    def spy(self, order):
        seen.append(list(order.cohort))
        return ask(self, order)

    monkeypatch.setattr(LocalClients, "exchange", spy)
    return seen


@pytest.mark.parametrize("size", [None, 4])
def test_the_longest_work_starts_first(size, cohorts):
    run(batch_size=size, cohort=5)
    for cohort in cohorts:
        work = [tau * min(SIZES[client], size or 100) for client, tau in cohort]
        assert work == sorted(work, reverse=True)
        assert all(STEPS[client] == tau for client, tau in cohort)
        assert len({client for client, _ in cohort}) == 5
    assert cohorts[0] != cohorts[1]


def test_each_client_keeps_its_number_and_its_weight(cohorts):
    """Metrics in the history and the weights of their means are both in cohort order."""
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    data = classification(SIZES)
    found = run(weights=weights, rounds=1)
    model = seeded(lambda: nn.Linear(4, 3))
    losses = [float(nn.functional.cross_entropy(model(inputs), targets).detach()) for inputs, targets in data]
    expected = sum(w * value for w, value in zip(weights, losses, strict=True)) / sum(weights)
    assert found.history[0]["train_loss"] == pytest.approx(expected, rel=1e-12)
    assert [client for client, _ in cohorts[0]] != sorted(client for client, _ in cohorts[0])


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 130])
@pytest.mark.parametrize("most", [1, 2, 3, 64])
def test_chunks_have_similar_sizes_and_are_sorted(n, most):
    luck = random.Random(n)
    cohort = [(client, luck.randint(1, 5)) for client in range(n)]
    parts = list(chunks(cohort, most))
    assert sorted(p for part in parts for p in part) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(map(len, parts)) <= most
    count = math.ceil(n / most)
    assert len(parts) == (count if count in (1, n) else count + count % 2)
    assert [min(part) for part in parts] == sorted(min(part) for part in parts)  # the longest work comes first
    for part in parts:
        steps = [cohort[p][1] for p in part]
        assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("oracle", ORACLES)
def test_results_do_not_depend_on_the_order_of_arrival(oracle, monkeypatch):
    expected = run("fedexp", Local(1, oracle, chunk=1))
    add, late = WeightedMean.add, []

    def hold(self, position, weight, fields):
        late.append((position, weight, {k: v.clone() for k, v in fields.items()}))

    def finish(self, done=WeightedMean.finish):
        random.Random(0).shuffle(late)
        for one in late:
            add(self, *one)
        late.clear()
        return done(self)

    monkeypatch.setattr(WeightedMean, "add", hold)
    monkeypatch.setattr(WeightedMean, "finish", finish)
    assert same_bits(run("fedexp", Local(1, oracle, chunk=1)), expected)


def test_results_do_not_change_with_the_number_of_workers_during_a_run(monkeypatch):
    """Timing chooses the number of workers; here it is 3, 1, 2, 3, ..."""
    expected, seen, ask = run("fedlin", Local(1), rounds=6, batch_size=2), [], LocalClients.exchange

    def exchange(self, *given):
        self.worker_count.workers = (3, 1, 2)[len(seen) % 3]
        seen.append(self.worker_count.workers)
        return ask(self, *given)

    monkeypatch.setattr(LocalClients, "exchange", exchange)
    assert same_bits(run("fedlin", Local(3), rounds=6, batch_size=2), expected)
    assert len(seen) == 12


class Slow(Classifier):
    """A model that is interrupted at its tenth call, as by Ctrl-C, and is slow afterwards."""

    calls, lock = 0, threading.Lock()

    def forward(self, inputs):
        with Slow.lock:
            Slow.calls += 1
            if Slow.calls == 10:
                os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)
        return super().forward(inputs)


def test_an_interrupted_round_ends_soon():
    Slow.calls, many = 0, 400
    clients = classification((3,) * many)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
    try:
        with pytest.warns(fs.FedstrideWarning, match="interrupted in round 1"):
            run = learn(model=seeded(Slow), clients=clients, engine=Local(2, "loop"), rounds=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Slow.calls < many / 2 and (run.ended, len(run.history)) == ("interrupted", 0)


# Mixed precision


def image_clients(dtype=torch.float32, sizes=(8, 12)):
    source = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 1, 28, 28, generator=source).to(dtype), torch.randint(3, (n,), generator=source)) for n in sizes
    ]


MIXED = {
    "vmap": lambda: {"model": classifier(torch.float32), "clients": classification(dtype=torch.float32)},
    "vmap, linear": lambda: {
        "model": seeded(lambda: nn.Linear(4, 3), torch.float32),
        "clients": classification(dtype=torch.float32),
    },
    "loop": lambda: {
        "model": seeded(lambda: McMahanCNN((1, 28, 28), 3), torch.float32),
        "clients": image_clients(),
        "rounds": 2,
    },
    "loop, batch norm": lambda: {
        "model": classifier(torch.float32, lambda: nn.BatchNorm1d(3)),
        "clients": classification(dtype=torch.float32),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls"])
@pytest.mark.parametrize("kind", MIXED)
def test_mixed_precision_stays_close(kind, algorithm, bfloat16):
    mixed, full = (learn(algorithm, precision=p, **MIXED[kind]()) for p in ("bfloat16", None))
    assert mixed.engine["oracle"] == kind.partition(",")[0]
    assert mixed.x.dtype == torch.float32
    assert mixed.model.training is False
    assert next(mixed.model.parameters()).dtype == torch.float32
    assert not torch.equal(mixed.x, full.x)
    assert torch.isfinite(mixed.x).all()
    start = torch.nn.utils.parameters_to_vector(MIXED[kind]()["model"].parameters()).detach()
    if algorithm == "fedavg":  # a search may take another step of its grid
        assert (mixed.x - full.x).norm() < 0.1 * (full.x - start).norm()
    assert mixed.history["train_loss"] == pytest.approx(full.history["train_loss"], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vmap", "loop"])
def test_mixed_precision_does_not_depend_on_workers(kind, bfloat16):
    assert same_bits(*(learn(precision="bfloat16", engine=Local(w), **MIXED[kind]()) for w in (1, 3)))


@pytest.mark.parametrize("precision", ["float16", "bf16", "", 16, True, torch.bfloat16])
def test_other_precisions_are_refused(precision):
    with pytest.raises(fs.InvalidInput, match=r"precision=.* is unknown; expected None, or \"bfloat16\""):
        learn(precision=precision)


@pytest.mark.slow
def test_mixed_precision_has_no_closed_form(bfloat16):
    given = MIXED["vmap, linear"]()
    assert learn(**given).engine["oracle"] == "linear"
    with pytest.raises(fs.Refused, match='oracle="linear"'):
        learn(precision="bfloat16", engine=Local(oracle="linear"), **given)


@pytest.mark.slow
def test_targets_and_the_tested_loss_keep_their_precision(bfloat16):
    """Outputs are bfloat16, with three digits; the loss must not lose more."""
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=source)
    data = inputs, 1000 + inputs.sum(1, keepdim=True)
    with torch.no_grad():
        model = nn.Sequential(nn.Linear(4, 1), nn.Flatten())
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(1000.0)
    run = fs.train(model, "mse", [data], fs.recipes.fedavg(lr=1e-9), rounds=1, test=data, precision="bfloat16")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = float(nn.functional.mse_loss(run.model(inputs).float(), data[1]))
    assert run.history[0]["test_loss"] == pytest.approx(expected, rel=1e-3)
    assert run.history[0]["train_loss"] == pytest.approx(expected, rel=1e-3)
