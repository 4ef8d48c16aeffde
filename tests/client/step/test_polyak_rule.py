"""The Polyak step: its value, its cap, its growth, and what it looks at under a correction."""

from __future__ import annotations

import pytest
import torch

from fedstride import Polyak
from fedstride.client.corrected import Corrected
from fedstride.client.objective import Terms
from tests.problems import Quadratic, context

H = torch.tensor([[1.0, 1.0], [10.0, 10.0]], dtype=torch.float64)
W = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)


def step(rule, oracle=None, where=None):
    oracle = oracle or Quadratic(H)
    state = rule.init(W[0], where or context((1, 1)))
    L, G = oracle.grad(W)
    return rule.step(W, L, G, state, oracle), state["eta"].flatten().tolist()


def test_the_step_is_the_loss_over_the_squared_gradient():
    _, etas = step(Polyak())
    assert etas == pytest.approx([1.0, 0.1], rel=1e-8)  # (h |w|^2 / 2) / (h^2 |w|^2 / 2)
    _, etas = step(Polyak(c=1.0))
    assert etas == pytest.approx([0.5, 0.05], rel=1e-8)


def test_it_reaches_the_minimum_of_a_quadratic_in_one_step():
    move, _ = step(Polyak())
    torch.testing.assert_close(W + move, torch.zeros_like(W), rtol=0, atol=1e-7)


def test_the_cap():
    assert step(Polyak(lr_max=0.3))[1] == pytest.approx([0.3, 0.1], rel=1e-8)


def test_a_target_above_the_loss_means_no_step():
    assert step(Polyak(f_star=1e6))[1] == [0, 0]


def test_growth_is_limited_from_one():
    flat = Quadratic(1e-3 * H)  # would like 1000 and 100
    assert step(Polyak(growth=2.0), flat, context((1, 1), size=4.0, batch=1.0))[1] == pytest.approx([2**0.25] * 2)


def test_under_a_correction_the_step_comes_from_plain_loss_and_gradient():
    corr = torch.ones(2, 2, dtype=torch.float64)
    move, etas = step(Polyak(), Corrected(Quadratic(H), Terms(), corr))
    assert etas == pytest.approx([1.0, 0.1], rel=1e-8)
    torch.testing.assert_close(move, -torch.tensor(etas, dtype=torch.float64)[:, None] * (H * W + corr))


def test_a_batch_without_loss_does_not_bound_the_next_step():
    rule, oracle, where = Polyak(growth=2.0), Quadratic(H), context((1, 1), size=4.0, batch=1.0)
    state = rule.init(W[0], where)
    L, G = oracle.grad(W)
    assert not rule.step(W, 0 * L, G, state, oracle).any()
    rule.step(W, L, G, state, oracle)
    assert state["eta"].flatten().tolist() == pytest.approx([1.0, 0.1], rel=1e-8)
