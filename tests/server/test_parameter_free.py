"""Servers that find their own step: what they promise of scale, of zero updates and of the distance to the solution."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import mse_loss

import fedstride as fs
from fedstride.wire import Mean
from tests.problems import STEPS, linear, minimiser, regression

SCALE_FREE = [fs.DoG(1e-2), fs.DAdaptation(1e-2), fs.DAdaptation(1e-2, 0.5), fs.Prodigy(d0=1e-2, eps=1e-30)]
SERVERS = [*SCALE_FREE, fs.ScheduleFree(), fs.Hypergradient()]
H = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
START = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)

every = pytest.mark.parametrize("rule", SERVERS, ids=repr)
scale_free = pytest.mark.parametrize("rule", SCALE_FREE, ids=repr)


def follow(rule, update, rounds=30, x=START):
    """(iterates, states) where the mean update at x is update(x)."""
    state, xs, states = rule.init(x), [x], []
    for _ in range(rounds):
        x = rule.step(x, Mean({"update": update(x)}, 1.0, 1, 1), state)
        xs.append(x)
        states.append(dict(state))
    return xs, states


def descent(x):
    """One step of size 0.1 on <h, x^2> / 2, whose minimiser is 0."""
    return 0.1 * H * x


@scale_free
@pytest.mark.parametrize("scale", [100.0, 1e-8])
def test_the_scale_of_the_updates_changes_nothing(rule, scale):
    one, other = follow(rule, descent)[0], follow(rule, lambda x: scale * descent(x))[0]
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@scale_free
def test_a_hundred_times_the_loss_changes_nothing(rule):
    """With one local step; with more, the clients' own rate matters."""

    def run(scale):
        loss = lambda output, target: scale * mse_loss(output, target)  # noqa: E731
        return fs.train(linear(), loss, regression(), fs.Algorithm(server=rule), rounds=8, local_steps=1).x

    torch.testing.assert_close(run(100.0), run(1.0), rtol=0, atol=1e-9)


@every
def test_updates_of_zero_move_nothing_and_leave_the_rule_usable(rule):
    xs, states = follow(rule, torch.zeros_like, 3)
    assert all(torch.equal(x, START) for x in xs)
    assert torch.equal(rule.output(xs[-1], states[-1]), START)
    assert all(torch.isfinite(v).all() for state in states for v in state.values())
    rounds = iter([0.0, 0.0, *[1.0] * 20])
    xs, _ = follow(rule, lambda x: next(rounds) * descent(x), 22)
    assert torch.isfinite(xs[-1]).all()
    assert (H * xs[-1] ** 2).sum() < (H * START**2).sum()


@every
def test_a_quadratic_is_descended(rule):
    xs, states = follow(rule, descent, 400)
    assert (H * rule.output(xs[-1], states[-1]) ** 2).sum() < 0.05 * (H * START**2).sum()


def test_dogs_first_move_is_as_long_as_it_was_told_and_no_later_one_is_longer_than_the_distance_so_far():
    xs, _ = follow(fs.DoG(1e-3), descent)
    moves = [float((b - a).norm()) for a, b in pairwise(xs)]
    assert moves[0] == pytest.approx(1e-3 * (1 + float(START.norm())), rel=1e-12)
    far = moves[0]
    for x, move in zip(xs, moves, strict=False):
        far = max(far, float((x - START).norm()))
        assert move <= far * (1 + 1e-12)


def test_prodigys_estimate_never_exceeds_the_distance_to_the_solution():
    """On a convex function, r / |s|_1 <= |x_0 - x*|_inf; the solution is 0."""
    _, states = follow(fs.Prodigy(d0=1e-3), descent, 300)
    found = [float(state["d"]) for state in states]
    assert found == sorted(found)
    assert 0.1 * float(START.abs().max()) < found[-1] <= float(START.abs().max())


def test_d_adaptations_estimate_never_exceeds_twice_the_distance_to_the_solution():
    """sum l_i <g_i, s_i> / |s| <= |x_0 - x*| on a convex function; the SGD variant takes twice that."""
    _, states = follow(fs.DAdaptation(1e-3), descent, 300)
    found = [float(state["d"]) for state in states]
    assert found == sorted(found)
    assert 0.1 * float(START.norm()) < found[-1] <= 2 * float(START.norm())


def test_schedule_free_returns_the_mean_of_its_iterates_and_starts_clients_nearer_to_it():
    xs, states = follow(fs.ScheduleFree(beta=0.9), descent, 7)
    mean = torch.stack([state["z"] for state in states]).mean(0)
    torch.testing.assert_close(states[-1]["x"], mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(xs[-1], 0.1 * states[-1]["z"] + 0.9 * mean, rtol=1e-13, atol=0)


def test_hypergradient_steps_grow_with_agreement_shrink_with_opposition_and_stay_in_bounds():
    along = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    _, states = follow(fs.Hypergradient(2.0), lambda x: 0.5 * along, 8)
    assert [float(s["eta"]) for s in states] == pytest.approx([1, 1.25, 1.5, 1.75, 2, 2, 2, 2])
    signs = iter([1, -1] * 4)
    _, states = follow(fs.Hypergradient(2.0), lambda x: 0.5 * next(signs) * along, 8)
    assert [float(s["eta"]) for s in states] == pytest.approx([1, 0.75, *[0.5] * 6])


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.Algorithm(fs.PerStep(0.05), fs.ScheduleFree(), drift=fs.GradientCorrection()),
        fs.Algorithm(fs.PerStep(0.05), fs.Hypergradient(), drift=fs.GradientCorrection()),
        fs.Algorithm(fs.NGN(), drift=fs.GradientCorrection()),
        fs.Algorithm(fs.DecSPS(lr_max=1.0), drift=fs.GradientCorrection()),
    ],
    ids=["schedule-free", "hypergradient", "ngn", "decsps"],
)
def test_corrected_clients_stay_at_the_minimum(algorithm):
    data = regression()
    x = minimiser(data, [1.0] * len(data))
    run = fs.train(linear(x), "mse", data, algorithm, rounds=2, local_steps=STEPS)
    torch.testing.assert_close(run.x, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("server", SERVERS, ids=repr)
@pytest.mark.parametrize("step", [fs.Armijo(), fs.NGN(), fs.DecSPS(), fs.AdamW()], ids=repr)
def test_they_compose_with_clients_without_a_rate(server, step):
    run = fs.train(linear(), "mse", regression(), fs.Algorithm(step, server), rounds=15, local_steps=3)
    assert all(math.isfinite(row["train_loss"]) for row in run.history)
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


def scripted(rule, *lengths):
    """The steps that a rule takes along one axis, for updates of these lengths."""
    updates = iter(lengths)
    zero = torch.zeros(1, dtype=torch.float64)
    xs, states = follow(rule, lambda x: torch.full_like(x, next(updates)), len(lengths), zero)
    return [float(x) for x in xs], [float(state["eta"]) for state in states]


def test_dog_remembers_the_farthest_iterate():
    """Updates to and fro: after the way back, the distance that counts is that of the turning point."""
    xs, etas = scripted(fs.DoG(0.1), 1.0, 1.0, 1.0, -3.0, 0.5)
    assert abs(xs[4]) < 0.1 < abs(xs[3])
    assert etas[4] == pytest.approx(abs(xs[3]) / math.sqrt(3 + 9 + 0.25))


def test_fedhyper_stays_between_its_limits():
    assert scripted(fs.Hypergradient(2.0), 3.0, 3.0, -3.0, -3.0)[1] == [1.0, 2.0, 0.5, 2.0]
