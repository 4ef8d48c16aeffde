"""FedExP's laws hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstride import Average, FedExP
from fedstride.algorithm.recipes import fedexp
from fedstride.core.rows import sq
from fedstride.research.verify import fedexp as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


class WithoutMax(FedExP):
    def step(self, x, mean, state):
        state["eta"], state["previous"] = mean.square / (2 * (sq(mean.update) + self.eps)), x
        return x - state["eta"] * mean.update


class Tripled(FedExP):
    def step(self, x, mean, state):
        return x - 3 * (x - super().step(x, mean, state))


def capped(lr, eps):
    return fedexp(lr=lr, eps=eps, server_lr_max=5.0)


MISTAKES = {
    "App. D.2, not there yet": (laws.linear_regression, {"rounds": 3}),
    "eq. (12), steps too long": (laws.oscillation, {"server": Tripled(eps=0.0, exact=True)}),
    "eq. (12), no extrapolation": (laws.oscillation, {"server": Average()}),
    "eq. (6), local steps too long": (laws.approximate_projection, {"step": 2.5}),
    "eq. (6), server steps too long": (laws.approximate_projection, {"server": Tripled(eps=0.0)}),
    "eq. (9), no max": (laws.server_step, {"server": WithoutMax}),
    "the blow-up is hidden": (laws.blow_up, {"make": capped}),
    "the blow-up is everywhere": (laws.blow_up, {"make": lambda lr, eps: fedexp(lr=lr, eps=0.0)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)


def test_the_toy_has_the_gradients_of_the_paper():
    w = torch.tensor([1.0, -2.0], dtype=torch.float64)
    problem = laws.toy()
    found = [float(problem.loss(A @ w, b)) for A, b in problem.clients]
    assert found == pytest.approx([(3 * 1 - 2 - 3) ** 2, (1 - 2 - 3) ** 2])


def test_a_watched_server_changes_nothing():
    problem = laws.random_least_squares()
    plain = fedexp(lr=0.01)
    eye = laws.RecordedServer(plain.server)
    runs = [laws.iterates(problem, laws.zeros(problem), a, 3)[1] for a in (plain, replace(plain, server=eye))]
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.equal(eye.seen[0][0], laws.zeros(problem))
    assert len(eye.seen) == 3
