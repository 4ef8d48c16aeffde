"""Armijo's search: the first step of the grid that satisfies the condition, and what follows from it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstride import Armijo
from tests.problems import Quadratic, context


def curvatures(C=3, d=4):
    return 10.0 ** torch.linspace(-1, 1.5, C, dtype=torch.float64)[:, None].expand(C, d).contiguous()


def move(rule, oracle, W, state=None, where=None):
    state = rule.init(W[0], where or context((1,) * len(W))) if state is None else state
    L, G = oracle.grad(W)
    return W + rule.step(W, L, G, state, oracle), state


def condition(oracle, W, eta, c):
    L, G = oracle.grad(W)
    return oracle.loss(W - eta * G) <= L - c * eta * (G**2).sum(1, keepdim=True)


@given(st.floats(0.05, 0.9), st.floats(0.3, 0.95), st.floats(0.1, 10))
def test_the_step_is_the_largest_of_the_grid_that_decreases_enough(c, backtrack, lr_max):
    rule, oracle = Armijo(lr_max, c, backtrack), Quadratic(curvatures())
    W = torch.ones(3, 4, dtype=torch.float64)
    _, state = move(rule, oracle, W)
    for i in range(3):
        part, eta = oracle.take([i]), torch.full((1, 1), lr_max, dtype=torch.float64)
        trials = 1
        while not condition(part, W[i : i + 1], eta, c):
            eta, trials = backtrack * eta, trials + 1
        assert state["eta"][i] == eta
        assert state["trials"][i] == trials
        bound = backtrack * min(2 * (1 - c) / float(oracle.H[i, 0]), lr_max)
        assert float(eta) >= bound * (1 - 1e-12)  # FedSLS lemma 6


@pytest.mark.parametrize(("reset", "second"), [("keep", 0.5), ("max", 1.0), ("grow", 0.5 * 2**0.25)])
def test_where_the_next_search_starts(reset, second):
    rule, flat = Armijo(backtrack=0.5, reset=reset), Quadratic(torch.full((1, 4), 1e-9, dtype=torch.float64))
    W = torch.ones(1, 4, dtype=torch.float64)
    where = context((2,), size=40.0, batch=10.0)
    _, state = move(rule, Quadratic(torch.full((1, 4), 2.5, dtype=torch.float64)), W, where=where)
    assert state["eta"].item() == 0.5
    _, state = move(rule, flat, 1e3 * W, state)
    assert state["eta"].item() == pytest.approx(second, rel=1e-15)


def test_no_step_exceeds_the_largest():
    rule, flat = Armijo(lr_max=0.7, growth=8.0), Quadratic(torch.full((1, 4), 1e-3, dtype=torch.float64))
    W, state = torch.ones(1, 4, dtype=torch.float64), None
    for _ in range(4):
        W, state = move(rule, flat, W, state)
        assert state["eta"].item() == 0.7


def test_a_vanishing_gradient_means_no_move_and_no_trial():
    W = torch.tensor([[1.0, 1.0], [1e-10, 0.0]], dtype=torch.float64)
    new, state = move(Armijo(), Quadratic(torch.ones(2, 2, dtype=torch.float64)), W)
    assert torch.equal(new[1], W[1])
    assert (state["eta"][1].item(), state["trials"][1].item(), state["failed"][1].item()) == (0, 0, 0)
    assert state["eta"][0].item() == 1


@pytest.mark.parametrize(("reset", "second"), [("keep", 0.5), ("max", 1.0), ("grow", 0.5)])
def test_searches_go_on_after_a_vanishing_gradient(reset, second):
    rule, W = Armijo(backtrack=0.5, growth=1.0, reset=reset), torch.ones(1, 4, dtype=torch.float64)
    steep, flat = Quadratic(torch.full((1, 4), 2.5, dtype=torch.float64)), Quadratic(0 * W)
    W, state = move(rule, steep, W)
    assert state["eta"].item() == 0.5
    W, state = move(rule, flat, W, state)
    assert state["eta"].item() == 0
    assert state["start"].item() == second


class Rising(Quadratic):
    """A loss that only grows along the step."""

    def loss(self, W):
        return torch.full((len(W), 1), 1e9, dtype=W.dtype)

    def take(self, rows):
        return Rising(self.H[rows])


def test_a_failed_search_takes_a_tiny_step_and_is_counted():
    W = torch.ones(1, 2, dtype=torch.float64)
    new, state = move(Armijo(), Rising(torch.ones(1, 2, dtype=torch.float64)), W)
    assert state["eta"].item() == 1e-6
    assert (state["trials"].item(), state["failed"].item()) == (100, 1)
    torch.testing.assert_close(new, W - 1e-6 * W)


def test_rows_search_for_themselves():
    H = curvatures(5)
    W = torch.ones(5, 4, dtype=torch.float64)
    together = move(Armijo(), Quadratic(H), W)
    for i in range(5):
        alone = move(Armijo(), Quadratic(H[i : i + 1]), W[i : i + 1])
        assert torch.equal(alone[0][0], together[0][i])
        assert all(torch.equal(v[0], together[1][k][i]) for k, v in alone[1].items())
