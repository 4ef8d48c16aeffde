"""FedTrack's laws hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedstride import Minibatch
from fedstride.algorithm.recipes import fedtrack
from fedstride.research.verify import fedtrack as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


def short_steps(lr, **options):
    return fedtrack(lr=0.1 * lr, **options)


def without_correction(**options):
    return replace(fedtrack(**options), drift=None)


def full_gradients(**options):
    return replace(fedtrack(**options), gradient=Minibatch())


def single_samples(lr, block):
    return fedtrack(lr=lr, block=1)


MISTAKES = {
    "Thm 1, steps too short": (laws.strongly_convex, short_steps),
    "Thm 1, no correction": (laws.strongly_convex, without_correction),
    "Thm 3, steps too short": (laws.polyak_lojasiewicz, short_steps),
    "Thm 3, no correction": (laws.polyak_lojasiewicz, without_correction),
    "Thm 2, no correction": (laws.non_convex, without_correction),
    "Thm 2, steps too short": (laws.non_convex, short_steps),
    "Alg. 1, full gradients": (laws.as_printed, full_gradients),
    "Alg. 1, other components": (laws.as_printed, single_samples),
    "cost of full gradients": (laws.cost, full_gradients),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "make"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, make):
    assert not is_kept(check, make=make)
