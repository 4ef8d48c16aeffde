"""Delta-SGD: the recursion of Delta-SGD alg. 1, with both kinds of second gradient."""

from __future__ import annotations

import math

import pytest
import torch

from fedstride import DeltaSGD
from tests.problems import Quadratic, context


def run(rule, oracles, W):
    """The steps taken, one batch after another."""
    state, etas = rule.init(W[0], context((len(oracles),) * len(W))), []
    for oracle in oracles:
        L, G = oracle.grad(W)
        W = W + rule.step(W, L, G, state, oracle)
        etas.append(state["eta"].clone())
    return W, etas


def ones(value, d=3):
    return torch.full((1, d), value, dtype=torch.float64)


def test_the_first_step_grows_from_the_seed():
    _, (eta,) = run(DeltaSGD(), [Quadratic(ones(1.0))], ones(1.0))
    assert eta.item() == pytest.approx(0.2 * math.sqrt(1.1), rel=1e-15)  # 0.20976
    _, (eta,) = run(DeltaSGD(lr0=0.5, theta0=3.0, delta=0.2), [Quadratic(ones(1.0))], ones(1.0))
    assert eta.item() == pytest.approx(0.5 * math.sqrt(1.6), rel=1e-15)


def test_on_a_quadratic_the_step_is_bounded_by_the_curvature():
    _, etas = run(DeltaSGD(), [Quadratic(ones(20.0))] * 4, ones(1.0))
    assert [e.item() for e in etas[1:]] == pytest.approx([1 / 20] * 3)  # gamma / (2 L)


def test_on_a_flat_loss_the_step_grows_as_theta_allows():
    _, etas = run(DeltaSGD(), [Quadratic(ones(1e-9))] * 4, ones(1.0))
    eta, theta = 0.2, 1.0
    for found in etas:
        new = math.sqrt(1 + 0.1 * theta) * eta
        eta, theta = new, new / eta
        assert found.item() == pytest.approx(eta, rel=1e-12)


def test_the_step_grows_by_its_last_change_not_by_what_was_allowed():
    sharp, flat = Quadratic(ones(20.0)), Quadratic(ones(1e-9))
    _, etas = run(DeltaSGD(), [sharp, sharp, flat], ones(1.0))
    theta = (1 / 20) / (0.2 * math.sqrt(1.1))
    assert etas[2].item() == pytest.approx(math.sqrt(1 + 0.1 * theta) / 20, rel=1e-12)


def test_a_model_that_did_not_move_bounds_nothing():
    _, etas = run(DeltaSGD(reuse_gradient=True), [Quadratic(ones(0.0)), Quadratic(ones(5.0))], ones(1.0))
    assert etas[1].item() > 0.2


def test_equal_gradients_bound_nothing():
    constant = Quadratic(ones(0.0))
    _, etas = run(DeltaSGD(), [constant] * 3, ones(1.0))
    assert all(math.isfinite(e.item()) and e.item() > 0 for e in etas)


@pytest.mark.parametrize(("reuse", "evaluations"), [(False, [1, 2, 2]), (True, [1, 1, 1])])
def test_gradients_per_step(reuse, evaluations):
    batches = [Quadratic(ones(h)) for h in (1.0, 2.0, 3.0)]
    run(DeltaSGD(reuse_gradient=reuse), batches, ones(1.0))
    assert [b.grads for b in batches] == evaluations


def test_the_second_gradient_is_of_the_current_batch_unless_reused():
    sharp, flat = Quadratic(ones(40.0)), Quadratic(ones(5.0))
    _, etas = run(DeltaSGD(), [sharp, flat], ones(1.0))
    assert etas[1].item() == pytest.approx(1 / 5)
    W1 = 1 - 0.2 * math.sqrt(1.1) * 40
    _, etas = run(DeltaSGD(reuse_gradient=True), [sharp, flat], ones(1.0))
    assert etas[1].item() == pytest.approx(abs(W1 - 1) / abs(5 * W1 - 40))
