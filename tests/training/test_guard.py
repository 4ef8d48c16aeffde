"""The guard: lost clients, and exploding models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import fedstride as fs
from fedstride.engine.faults import Faulty
from tests.problems import Always, learn, linear, regression, same_bits


@pytest.mark.parametrize(
    ("quorum", "cohort", "least"), [(0.5, 10, 5), (0.5, 5, 3), (0.3, 10, 3), (1.0, 7, 7), (4, 9, 4)]
)
def test_a_quorum_is_a_share_or_a_number(quorum, cohort, least):
    assert fs.Guard(quorum=quorum).least(cohort) == least


@pytest.mark.parametrize(
    "bad",
    [
        {"quorum": 0},
        {"quorum": 1.5},
        {"quorum": True},
        {"retries": -1},
        {"norm": 0},
        {"explode": 0.5},
        {"explode": torch.tensor([1.0, 2.0])},
        {"spread": "inf"},
        {"rollbacks": 1.5},
    ],
)
def test_invalid_guards_are_refused(bad):
    with pytest.raises(fs.InvalidInput, match=f"Guard: {next(iter(bad))}="):
        fs.Guard(**bad)


def test_a_round_without_a_quorum_is_repeated_with_another_cohort():
    run = learn(
        "fedavg", cohort=2, rounds=12, engine=Faulty(dropout=0.4, seed=3), guard=fs.Guard(quorum=1.0, retries=20)
    )
    attempts = run.history["attempts"]
    assert max(attempts) > 1
    assert run.history["participants"] == [2] * 12
    assert run.history["lost"] == [0] * 12
    refused = [row["refused"].get("no answer", 0) for row in run.history]
    assert all((n > 0) == (tries > 1) for n, tries in zip(refused, attempts, strict=True))


def test_the_cost_of_failed_attempts_is_counted():
    calm = learn("fedavg", cohort=2, rounds=1)
    tried = learn(
        "fedavg", cohort=2, rounds=1, engine=Faulty(crash=0.6, seed=1), guard=fs.Guard(quorum=1.0, retries=50)
    )
    assert tried.history[0]["bytes_down"] == tried.history[0]["attempts"] * calm.history[0]["bytes_down"]


@pytest.mark.parametrize(
    "algorithm", ["scaffold", "feddyn", "fedlin", fs.recipes.fedlin(up=fs.TopK(3), down=fs.TopK(3))]
)
def test_a_failed_attempt_leaves_no_trace(algorithm):
    """A round that fails a few times, at any exchange, gives the same result as one that succeeds at once."""
    guard = fs.Guard(quorum=1.0, retries=200)
    given = {"rounds": 5, "cohort": Always((0, 1, 3))}
    run = learn(algorithm, engine=Faulty(dropout=0.25, seed=5), guard=guard, **given)
    assert max(run.history["attempts"]) > 1
    assert torch.equal(run.x, learn(algorithm, **given).x)


def test_too_few_clients_end_the_run_with_the_last_good_model(tmp_path):
    with pytest.raises(
        fs.TooFew, match=r"Round 1 .* 6 attempts: 0 of 4 clients .*no answer: 4.*quorum=0.5 requires 2"
    ) as caught:
        learn("fedavg", rounds=3, engine=Faulty(dropout=1.0), checkpoint=tmp_path)
    assert caught.value.round == 1
    assert sorted(caught.value.clients) == [0, 1, 2, 3]
    assert list(caught.value.run.history) == []


def test_finished_rounds_are_saved_before_a_run_is_given_up(tmp_path):
    class FailsLater(fs.faults.Faulty):
        def fault(self, source):
            return super().fault(source) if len(done) == 4 else None

    done = []

    with pytest.raises(fs.TooFew, match="Round 4 ") as caught:
        learn(
            "fedavg",
            rounds=6,
            engine=FailsLater(dropout=1.0),
            checkpoint=fs.Checkpoints(tmp_path, every=100),
            callbacks=[done.append],
        )
    assert len(caught.value.run.history) == 3
    assert same_bits(learn("fedavg", rounds=6, checkpoint=tmp_path), learn("fedavg", rounds=6))


def test_updates_beyond_the_norm_are_left_out():
    free = learn("fedavg", rounds=1)
    bound = free.history[0]["update"] / 1e3
    with pytest.raises(fs.Diverged, match="exploded"):
        learn("fedavg", rounds=1, guard=fs.Guard(norm=bound))
    assert same_bits(learn("fedavg", rounds=1, guard=fs.Guard(norm=1e3)), free)


@dataclass(frozen=True)
class Wild:
    """A server rule whose steps become NaN or infinite in some rounds."""

    rounds: tuple[int, ...]
    factor: float = float("inf")
    needs: ClassVar[tuple[str, ...]] = ()

    def init(self, x):
        return {"eta": x.new_ones(()), "t": x.new_zeros(())}

    def broadcast(self, state):
        return {}

    def step(self, x, mean, state):
        state["t"] = state["t"] + 1
        state["eta"] = x.new_tensor(self.factor if int(state["t"]) in self.rounds else 1.0)
        return x - state["eta"] * mean.update

    def output(self, x, state):
        return x


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e12])
def test_an_exploding_step_is_replaced_by_a_plain_mean(factor):
    run = learn(fs.Algorithm(step=fs.Constant(0.1), server=Wild((3,), factor)), rounds=4)
    # the rule's state of round 3 is taken back too, so round 4 is its third, and wild again
    assert run.history["rollbacks"] == [0, 0, 1, 1]
    assert torch.equal(run.x, learn(fs.Algorithm(step=fs.Constant(0.1)), rounds=4).x)
    assert run.history["server_step"] == [1.0] * 4


def test_a_run_stops_after_several_exploding_steps():
    with pytest.raises(fs.Diverged, match=r"round 4: the server step of size inf") as caught:
        learn(fs.Algorithm(step=fs.Constant(0.1), server=Wild((1, 2, 3, 4))), rounds=9)
    assert caught.value.run.history["rollbacks"] == [1, 1, 1]
    assert torch.isfinite(caught.value.run.x).all()


def test_steady_growth_is_not_an_explosion():
    """Experiments on divergence must remain possible: only a single long step counts as an explosion."""
    run = fs.train(linear(), "mse", regression(), fs.recipes.fedavg(lr=3.0), rounds=30)
    assert run.history["rollbacks"] == [0] * 30
    assert run.history[-1]["update"] > 1e6 * run.history[0]["update"]
