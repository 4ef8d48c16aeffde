"""The identities hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstride import Algorithm, Average, Constant, GradientCorrection, Scaffold
from fedstride.algorithm.recipes import fedavg, fedlin, scaffold
from fedstride.research.verify import identities as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


class Sum(Average):
    """Adds the updates up instead of averaging them."""

    def step(self, x, mean, state):
        return x - mean.participants * mean.update


class Mixing(Constant):
    """Steps along the mean of the rows, as if they were one client's."""

    def step(self, W, L, G, state, oracle):
        return -state["eta"] * G.mean(0)


class Flipped(GradientCorrection):
    def correction(self, broadcast, memory):
        return -super().correction(broadcast, memory)


class FlippedScaffold(Scaffold):
    def correction(self, broadcast, memory):
        return -super().correction(broadcast, memory)


MISTAKES = {
    "gradient descent, other steps": (laws.gradient_descent, {"recipe": lambda lr: fedavg(lr=2 * lr)}),
    "like clients, a sum": (laws.like_clients, {"recipes": {"sum": lambda: Algorithm(server=Sum())}}),
    "rows that mix": (laws.rows, {"recipes": {"mixing": lambda: Algorithm(Mixing())}}),
    "x*, no correction": (laws.fixed_point, {"algorithms": {"FedAvg": fedavg(lr=0.02)}}),
    "x*, FedLin's sign": (laws.fixed_point, {"algorithms": {"FedLin": replace(fedlin(0.05), drift=Flipped())}}),
    "x*, SCAFFOLD's sign": (
        laws.fixed_point,
        {"algorithms": {"SCAFFOLD": replace(scaffold(), drift=FlippedScaffold())}},
    ),
    "TOP-3 of 4": (laws.switched_off, {"d": 3}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)


@pytest.mark.parametrize("mean", [True, False])
def test_the_weighted_minimiser_is_the_pooled_one_where_weights_and_loss_say_so(mean):
    problem = laws.unequal(mean=mean)
    A, b = torch.cat(list(problem.A)), torch.cat(list(problem.b))
    found = laws.weighted_minimiser(problem, "samples" if mean else "uniform")
    torch.testing.assert_close(found, torch.linalg.lstsq(A, b[:, None]).solution[:, 0])
