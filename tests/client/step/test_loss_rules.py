"""NGN and DecSPS: their values, their limits, and that rows keep to themselves."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from fedstride import IAG, NGN, AdamW, Algorithm, DecSPS, Refused, Scaffold
from fedstride.client.corrected import Corrected
from fedstride.client.objective import Terms
from tests.problems import Quadratic, context

H = torch.tensor([[1.0, 1.0], [10.0, 10.0]], dtype=torch.float64)
W = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)


def steps(rule, oracle=None, count=1, where=None, W=W):
    """(W, the steps taken) on one batch after another."""
    oracle, etas = oracle or Quadratic(H), []
    state = rule.init(W[0], where or context((count,) * len(W)))
    for _ in range(count):
        L, G = oracle.grad(W)
        W = W + rule.step(W, L, G, state, oracle)
        etas.append(state["eta"].flatten().tolist())
    return W, etas


def test_ngn_lies_between_the_largest_step_and_polyaks():
    assert steps(NGN(2.0))[1] == [pytest.approx([2 / 3, 2 / 21])]  # 2f / |g|^2 = 1/h: sigma / (1 + sigma h)
    assert steps(NGN(1e-9))[1] == [pytest.approx([1e-9, 1e-9])]
    assert steps(NGN(1e9))[1] == [pytest.approx([1.0, 0.1])]


@pytest.mark.parametrize("rule", [NGN(1e6), DecSPS(c0=0.5, lr_max=1e6)], ids=repr)
def test_no_step_overshoots_a_quadratic(rule):
    oracle = Quadratic(H)
    after = steps(rule, oracle)[0]
    assert (oracle.loss(after) <= oracle.loss(W)).all()


def test_decsps_follows_its_recursion():
    """Polyak's quotient f / |g|^2 is 1 / (2h) everywhere; only c_k = sqrt(k + 1) shrinks the step."""
    _, etas = steps(DecSPS(), count=3)
    assert [row[0] for row in etas] == pytest.approx([0.5, 0.5 / 2**0.5, 0.5 / 3**0.5])
    assert steps(DecSPS(lr_max=0.2))[1] == [pytest.approx([0.2, 0.05])]
    assert steps(DecSPS(c0=2.0))[1] == [pytest.approx([0.25, 0.025])]


def test_decsps_counts_the_steps_of_earlier_rounds():
    _, etas = steps(DecSPS(), count=2, where=context((2, 2), round=4, rounds=9))
    assert [row[0] for row in etas] == pytest.approx([0.5 / 9**0.5, 0.5 / 10**0.5])


def test_decsps_steps_never_grow():
    growing = [Quadratic(h * H) for h in (1.0, 5.0, 0.1, 0.01)]
    rule, Y, etas = DecSPS(), W, []
    state = rule.init(W[0], context((4, 4)))
    for oracle in growing:
        L, G = oracle.grad(Y)
        Y = Y + rule.step(Y, L, G, state, oracle)
        etas.append(state["eta"])
    assert all((b < a).all() for a, b in pairwise(etas))


@pytest.mark.parametrize("rule", [NGN(), DecSPS(), AdamW(weight_decay=0.0)], ids=repr)
def test_a_gradient_of_zero_means_no_move(rule):
    zero = torch.zeros_like(W)
    after, etas = steps(rule, count=2, W=zero)
    assert torch.equal(after, zero)
    assert torch.isfinite(torch.tensor(etas)).all()


@pytest.mark.parametrize("rule", [NGN(), DecSPS()], ids=repr)
def test_under_a_correction_the_step_comes_from_plain_loss_and_gradient(rule):
    corr = torch.ones(2, 2, dtype=torch.float64)
    plain, corrected = steps(rule), steps(rule, Corrected(Quadratic(H), Terms(), corr))
    assert corrected[1] == plain[1]
    torch.testing.assert_close(corrected[0] - plain[0], -torch.tensor(plain[1][0], dtype=torch.float64)[:, None] * corr)


@pytest.mark.parametrize("rule", [NGN(), DecSPS(), AdamW()], ids=repr)
def test_rows_keep_to_themselves(rule):
    together, _ = steps(rule, count=3)
    for i in range(2):
        alone, _ = steps(rule, Quadratic(H[i : i + 1]), 3, W=W[i : i + 1])
        assert torch.equal(alone[0], together[i])


def test_what_cannot_work_is_refused():
    for step in (NGN(), DecSPS()):
        with pytest.raises(Refused, match="IAG"):
            Algorithm(step, gradient=IAG())
    with pytest.raises(Refused, match="Scaffold with client AdamW"):
        Algorithm(AdamW(), drift=Scaffold())


@pytest.mark.parametrize("rule", [NGN(), DecSPS(f_star=1.0)], ids=repr)
def test_a_loss_below_its_bound_means_no_move(rule):
    x = torch.ones(3, dtype=torch.float64)
    state, W, L = rule.init(x, context((1,))), x[None], torch.full((1, 1), -0.5, dtype=torch.float64)
    assert not rule.step(W, L, W.clone(), state, None).any()
