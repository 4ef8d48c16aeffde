"""FedSLS's laws hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

import pytest
import torch

from fedstride import Armijo
from fedstride.algorithm.recipes import fedavg
from fedstride.research.verify import fedsls as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


class AcceptsEverything(Armijo):
    def step(self, W, L, G, state, oracle):
        state["eta"] = state["start"]
        return -state["eta"] * G


class Uphill(Armijo):
    def step(self, *arguments):
        return -super().step(*arguments)


class Timid(Armijo):
    """Backtracks once more than it must."""

    def step(self, W, L, G, state, oracle):
        move = super().step(W, L, G, state, oracle)
        state["eta"] = self.backtrack * state["eta"]
        return self.backtrack * move


class Uncapped(Armijo):
    def init(self, x, context):
        return {**super().init(x, context), "start": torch.full_like(context.size, 2 * self.lr_max)}


class Lenient(Armijo):
    """Searches with c / 2."""

    def step(self, *arguments):
        return Armijo(self.lr_max, self.c / 2, self.backtrack, self.reset).step(*arguments)


class Crawling(Armijo):
    def step(self, *arguments):
        return 1e-3 * super().step(*arguments)


MISTAKES = {
    "Fig. 1, no search": (laws.figure_1, {"make": lambda **_: fedavg(lr=1e-4)}),
    "Thm 3, uphill": (laws.linear_convergence, {"step": Uphill}),
    "Thm 3, steps too short": (laws.linear_convergence, {"step": Crawling}),
    "Lemma 6, every step is accepted": (laws.accepted_steps, {"step": AcceptsEverything}),
    "Lemma 6, uphill": (laws.accepted_steps, {"step": Uphill}),
    "Lemma 6, steps too short": (laws.accepted_steps, {"step": Timid}),
    "Lemma 6, steps beyond lr_max": (laws.accepted_steps, {"step": Uncapped}),
    "Lemma 6, another c": (laws.accepted_steps, {"step": Lenient}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)


def test_every_search_of_a_run_is_seen():
    assert len(laws.searches(Armijo())) == 3 * 8 * 5
