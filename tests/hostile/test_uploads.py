"""One hostile client of six: it is left out, and leaves no trace. `make test-hostile` tries every attack."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fedstride as fs
from tests.hostile.engine import Hostile, alternating, becomes, times
from tests.hostile.uploads import ATTACKS, false_moments
from tests.problems import classification, classifier, learn, same_bits

SIX = classification((6, 9, 5, 8, 7, 6))
ABSENT = "out of range", "too long", "not finite"
FIELDS = {
    "update": ("fedavg", times(1e3)),
    "first gradient": ("fedlin", times(1e4, "gradient")),
    "control": ("scaffold", becomes(1e30, "control")),
    "control of both signs": ("scaffold", alternating(1e30, "control")),
    "negative effective steps": ("fednova", becomes(-1.0, "effective_steps")),
    "too many effective steps": ("fednova", becomes(1e6, "effective_steps")),
    "loss": ("auto", becomes(-1e30, "loss")),
    "loss below zero": ("auto", becomes(-5.0, "loss")),
    "mean squares": ("auto", becomes(1e30, "mean_squares")),
    "mean squares a thousand times too large": ("auto", times(1e3, "mean_squares")),
    "negative mean squares": ("auto", becomes(-1.0, "mean_squares")),
    "negative count": ("fedavg", becomes(-1, "gradients")),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_false_field_costs_one_client(name, tmp_path):
    algorithm, change = FIELDS[name]
    kind = "gradients" if "gradient" in name else "updates"
    engine = Hostile(change, kind=kind)
    run = learn(algorithm, clients=SIX, rounds=4, engine=engine, checkpoint=tmp_path)
    assert all(row["lost"] == 1 and set(row["refused"]) <= set(ABSENT) for row in run.history)
    resumed = learn(algorithm, clients=SIX, rounds=6, checkpoint=tmp_path, engine=engine.engine)
    assert torch.isfinite(resumed.x).all()
    assert resumed.history[-1]["train_loss"] < 1.5  # 1.3 before training


@pytest.mark.parametrize("value", [1e30, -1.0, math.inf])
def test_a_false_squared_norm_is_replaced_by_the_true_one(value):
    engine = Hostile(becomes(value, "square"))
    assert same_bits(learn("fedexp", clients=SIX, engine=engine), learn("fedexp", clients=SIX, engine=engine.engine))


def test_negative_variances_are_refused():
    def change(row, round):
        row["stats"][:, 3:6] = -1e3

    model = classifier(middle=lambda: nn.BatchNorm1d(3))
    run = learn(model=model, clients=SIX, engine=Hostile(change), test=SIX[1])
    assert run.history["refused"] == [{"out of range": 1}] * 3
    assert math.isfinite(run.history[-1]["test_loss"])


@pytest.mark.parametrize("part", [(1e30, slice(1, None)), (-1.0, slice(9, None)), (2.0**62, slice(0, 1))])
def test_false_sums_over_inputs_do_not_scale_them(part):
    engine = Hostile(false_moments(*part), kind="moments")
    run = learn(clients=SIX, normalise=True, engine=engine)
    mean = torch.cat([inputs for inputs, _ in SIX[1:]]).mean(0)
    torch.testing.assert_close(run.model.mean, mean)


def test_clients_whose_squared_errors_differ_much_are_not_outliers():
    """The gradients of a squared error grow with the square of the inputs: here, their mean squares differ by 5,000."""
    source = torch.Generator().manual_seed(0)
    inputs = [scale * torch.randn(20, 4, generator=source).double() for scale in (8.0, 1.0, 1.0, 1.0, 1.0, 1.0)]
    clients = [(v, v.sum(1, keepdim=True)) for v in inputs]
    run = learn("auto", model=nn.Linear(4, 1).double(), loss="mse", clients=clients, rounds=3, normalise=False)
    assert run.history["lost"] == [0] * 3


def test_an_attack_repeats_only_one_round():
    run = learn(clients=SIX, rounds=5, engine=Hostile(times(1e3)))
    assert run.history["attempts"] == [2, 1, 1, 1, 1]


def test_no_further_attempts_are_needed_to_leave_an_outlier_out():
    run = learn(clients=SIX, rounds=2, engine=Hostile(times(1e3)), guard=fs.Guard(retries=0))
    assert run.history["lost"] == [1, 1]


def test_limits_of_earlier_rounds_do_not_stop_a_run_whose_updates_grow():
    """Client 0 is hostile in the first round; later the others take steps that are a thousand times longer."""

    def change(row, round):
        times(1e3 if round == 0 else 1.0)(row, round)

    grows = fs.Algorithm(step=fs.Constant(1e-5, schedule=lambda t, rounds: 1.0 if t == 0 else 1e4))
    run = learn(grows, clients=SIX, rounds=3, engine=Hostile(change))
    assert run.history["lost"] == [1, 0, 0]


def test_a_single_client_that_still_learns_is_not_an_outlier():
    """Late in a run, five of six clients have nothing left to learn."""
    one = (torch.ones(4, 4).double(), torch.tensor([0, 1, 2, 0]))
    same = [(torch.zeros(5, 4).double(), torch.tensor([0, 1, 2, 0, 1]))] * 5
    run = learn(clients=[one, *same], rounds=40, local_steps=5, algorithm=fs.recipes.fedavg(lr=0.5))
    assert run.history["lost"] == [0] * 40


def test_one_client_cannot_take_the_momentum_of_auto_away_with_the_steps_that_it_is_asked_for():
    """Steps in epochs follow from the number of samples, which a node can claim."""
    seen = []

    class Spy(fs.Average):
        def step(self, x, mean, state):
            seen.append(mean.steps)
            return super().step(x, mean, state)

    learn(fs.Algorithm(server=Spy()), clients=SIX, rounds=1, local_steps=[2, 2, 2, 2, 2, 500])
    assert seen == [2]


@pytest.mark.parametrize("spread", [0.5, "wide", True])
def test_an_invalid_spread_is_refused(spread):
    with pytest.raises(fs.InvalidInput, match="Guard: spread="):
        fs.Guard(spread=spread)


def test_without_a_spread_an_attack_succeeds():
    """The control experiment: the tests above can fail."""
    run = learn(clients=SIX, engine=Hostile(times(1e3)), guard=fs.Guard(spread=math.inf))
    assert run.history["lost"] == [0] * 3
    assert run.history[-1]["update"] > 1.0


def test_a_state_that_is_not_finite_is_not_kept():
    class Poisoned(fs.Average):
        def init(self, x):
            return {**super().init(x), "memory": x.new_zeros(())}

        def step(self, x, mean, state):
            state["memory"] = state["memory"] + math.inf
            return super().step(x, mean, state)

    with pytest.raises(fs.Diverged) as caught:
        learn(fs.Algorithm(server=Poisoned()), rounds=9)
    assert caught.value.run.history["rollbacks"] == [1, 1, 1]


CHOSEN = ("fedavg(lr=0.3): update x -1000", "auto: update x 1000", "fedavg(lr=0.3), TrimmedMean(0.2): update x -5")


@pytest.mark.slow
@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.name in CHOSEN], ids=lambda a: a.name)
def test_accuracy_survives(attack):
    seen = attack.run()
    assert seen.held, seen.text


def test_the_chosen_attacks_exist():
    assert {attack.name for attack in ATTACKS} >= set(CHOSEN)
