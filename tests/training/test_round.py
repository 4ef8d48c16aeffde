"""A round is a pure function of its state, and a state is saved and restored as a whole."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.client.exchange import exchanges
from fedstride.client.local import LocalOptions
from fedstride.core.errors import Corrupt
from fedstride.core.model import Replica
from fedstride.data.federation import federation
from fedstride.engine import Task
from fedstride.engine.faults import Faulty
from fedstride.engine.local import LocalClients, one_thread
from fedstride.training import validate
from fedstride.training.attempt import Attempt, FailedAttempt
from fedstride.training.checkpoint import files
from fedstride.training.history import History
from fedstride.training.retry import complete_round
from fedstride.training.round import advance, choose_cohort, quartiles
from fedstride.training.setup import Setup
from fedstride.training.state import initial_state, pack, run_of, unpack
from fedstride.training.stop import interrupts_raise
from tests.problems import Always, classification, classifier, learn, records, same_bits


@contextmanager
def started(algorithm="fedavg", engine=None, sampler=None, guard=None, rounds=3):
    """Return setup and initial state of the run of learn()."""
    a, model, clients = validate.algorithm_of(algorithm), classifier(), federation(classification())
    probed = validate.try_out(model, "cross_entropy", clients, ())
    task = Task(
        model=model,
        loss=probed.loss,
        reduction=probed.reduction,
        clients=probed.clients,
        weights=[1.0] * len(clients),
        batch_size=None,
        seed=0,
        rounds=rounds,
        moving=probed.moving,
        buffers="average",
        random=False,
        full=a.exchanges_gradients or not a.gradient.batches,
    )
    at_work = (engine or fs.engine.Local()).open(task, exchanges(a, LocalOptions()), a.memory)
    steps = validate.steps_of(None, None, None, clients.sizes)
    setup = Setup(a, LocalOptions(), task, at_work, sampler or Always((0, 1, 2, 3)), steps, guard=guard or fs.Guard())
    try:
        with one_thread():
            yield setup, initial_state(a, Replica(model).row(), Replica(model).stats())
    finally:
        at_work.close()


def packed(state):
    """Return copies of all contents of a state, except times."""
    tensors, facts = pack(state)
    rows = [{**row, "seconds": 0} for row in state.history]
    return {k: v.clone() for k, v in tensors.items() if k != "history"}, facts, rows


def same(one, other):
    (a, facts, rows), (b, others, more) = one, other
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) and (facts, rows) == (others, more)


PRIVATE = replace(fs.recipes.fedexp(lr=0.1), privacy=fs.Privacy(noise=1.0, clip=0.5, quantile=0.5))
ALGORITHMS = {
    "auto": "auto",
    "scaffold": "scaffold",
    "feddyn": "feddyn",
    "fedadam": "fedadam",
    "fedlin": fs.recipes.fedlin(up=fs.TopK(3), down=fs.TopK(3)),
    "average": replace(fs.recipes.fedexp(), readout="average"),
    "private": PRIVATE,
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_does_not_change_its_arguments(name):
    sampler = fs.Uniform(4) if name == "private" else None
    with started(ALGORITHMS[name], sampler=sampler) as (setup, state):
        for _ in range(3):
            before = packed(state)
            first, row = advance(setup, state)
            setup.clients.discard()
            again, _ = advance(setup, state)
            assert same(packed(first), packed(again))
            assert same(packed(state), before)
            assert first.round == state.round + 1 == row["round"]
            setup.clients.commit()
            state = again


@pytest.mark.parametrize("name", ["auto", "scaffold", "fedlin", "average"])
def test_train_is_a_loop_of_rounds(name):
    with started(ALGORITHMS[name]) as (setup, state):
        while state.round < 3:
            state, _ = complete_round(setup, state)
            setup.clients.commit()
        run = run_of(setup, state)
    assert same_bits(run, learn(ALGORITHMS[name]))


def test_the_sampler_chooses_the_cohort():
    with started(sampler=Always((3, 0))) as (setup, state):
        assert sorted(client for client, _ in choose_cohort(setup, state, attempt=1)) == [0, 3]
        assert advance(setup, state)[1]["participants"] == 2


def test_a_failed_attempt_records_costs_and_lost_clients():
    with (
        started(engine=Faulty(dropout=1.0)) as (setup, state),
        pytest.raises(FailedAttempt) as caught,
    ):
        advance(setup, state, Attempt(number=2, calls=3))
    failed = caught.value.attempt
    assert (failed.number, failed.calls, failed.asked) == (2, 4, tuple(failed.lost))
    assert set(failed.lost.values()) == {"no answer"}
    assert failed.refused == {"no answer": 4}
    again = failed.again()
    assert (again.number, again.lost, again.asked, again.refused) == (3, {}, (), failed.refused)
    assert again.bytes_down == failed.bytes_down > 0


def test_failed_attempts_discard_client_memory():
    guard = fs.Guard(quorum=1.0, retries=200)
    with started("scaffold", Faulty(dropout=0.25, seed=5), Always((0, 2, 3)), guard) as (setup, state):
        while state.round < 3:
            state, _ = complete_round(setup, state)
            setup.clients.commit()
        assert max(state.history["attempts"]) > 1
    assert torch.equal(state.x, learn("scaffold", cohort=Always((0, 2, 3))).x)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_state_is_packed_and_unpacked_without_loss(name):
    sampler = fs.Uniform(4) if name == "private" else None
    with started(ALGORITHMS[name], sampler=sampler) as (setup, start):
        state = replace(advance(setup, start)[0], scaling=torch.ones(8, dtype=torch.float64), unbilled=7)
        found = unpack(start, *pack(state), "a test")
    assert same(packed(found), packed(state))
    for f in fields(state):
        assert type(getattr(found, f.name)) is type(getattr(state, f.name)), f.name


def test_every_part_of_a_packed_state_is_needed():
    with started("scaffold") as (setup, start):
        tensors, facts = pack(advance(setup, start)[0])
    for name in tensors:
        with pytest.raises(Corrupt, match=f"^a test: .*{name}"):
            unpack(start, {k: v for k, v in tensors.items() if k != name}, facts, "a test")
        with pytest.raises(Corrupt, match=r"^a test: "):
            unpack(start, {**tensors, name: torch.zeros(2, 2)}, facts, "a test")
    for name in facts:
        for wrong in (None, "1", [1], True, {"update": 1.0}):
            with pytest.raises(Corrupt, match=f"^a test: {name}=.* is invalid: expected a value like"):
                unpack(start, tensors, {**facts, name: wrong}, "a test")


def test_appending_to_a_history_does_not_change_the_shorter_one():
    short = History({"round": i} for i in range(199))
    longer = short.plus({"round": 199})
    assert longer.plus({"round": 200})["round"] == list(range(201))
    assert (len(short), len(longer), short["round"]) == (199, 200, list(range(199)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("where", ["exchange", "evaluate", "commit"])
def test_an_interrupted_round_leaves_a_consistent_checkpoint(where, error, tmp_path, monkeypatch):
    """Finished rounds are saved, unless the clients' memory may be ahead of the state."""
    real, calls = getattr(LocalClients, where), []

    def fails(self, *given):
        calls.append(given)
        if len(calls) == 3 and where != "commit":
            raise error("interrupted")
        found = real(self, *given)
        if len(calls) == 3:
            raise error("interrupted after the clients' memory changed")
        return found

    given = {"algorithm": "scaffold", "rounds": 5, "test": classification((9,))[0]}
    whole = learn(**given)
    with monkeypatch.context() as patched:
        patched.setattr(LocalClients, where, fails)
        with interrupts_raise(), pytest.raises(error, match="interrupted"):
            learn(**given, checkpoint=fs.Checkpoints(tmp_path, every=100))
    saved = [p.name for p in files(tmp_path)]
    assert saved == ([] if where == "commit" else ["checkpoint-000002.safetensors"])
    assert same_bits(learn(**given, checkpoint=tmp_path), whole)


def test_statistics_of_the_model_are_part_of_the_state(tmp_path):
    given = {
        "model": classifier(torch.float32, lambda: nn.BatchNorm1d(3)),
        "clients": classification(dtype=torch.float32),
    }
    whole = learn(rounds=4, **given)
    learn(rounds=2, checkpoint=tmp_path, **given)
    resumed = learn(rounds=4, checkpoint=tmp_path, **given)
    assert same_bits(resumed, whole)
    assert records(resumed) == records(whole)


def test_private_sums_of_failed_attempts_are_accounted_for():
    with started(PRIVATE, sampler=fs.Uniform(4)) as (setup, state):
        after, row = advance(setup, state, Attempt(number=3, releases=2))
    assert after.releases == 3
    assert row["epsilon"] == PRIVATE.privacy.epsilon(setup.sampler, 4, 3)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_quartiles_have_the_bits_of_torchs_quantiles(n):
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) * 1e3
    at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    assert quartiles(values) == torch.quantile(values, at).tolist()
    assert all(math.isnan(v) for v in quartiles(torch.cat([values, torch.tensor([math.nan])])))


def test_a_server_is_told_the_median_number_of_local_steps():
    seen = []

    class Told(fs.Average):
        def step(self, x, mean, state):
            seen.append((mean.steps, mean.participants, mean.clients, mean.share))
            return super().step(x, mean, state)

    options = {"local_steps": [2, 4, 1, 30], "rounds": 1, "weights": [1.0, 2.0, 3.0, 4.0]}
    learn(fs.Algorithm(server=Told()), **options)
    learn(fs.Algorithm(server=Told()), **options, cohort=Always((0, 1, 3)))
    assert seen == [(3.0, 4, 4, 1.0), (4, 3, 4, pytest.approx(0.7))]
