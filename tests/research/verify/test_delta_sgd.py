"""Delta-SGD's laws hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

import pytest
import torch

from fedstride import DeltaSGD
from fedstride.core.rows import norm
from fedstride.research.verify import delta_sgd as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


class Unbounded(DeltaSGD):
    """Knows nothing of smoothness."""

    def step(self, W, L, G, state, oracle):
        last = state["eta"]
        state["eta"] = (1 + self.delta * state["theta"]).sqrt() * last
        state["theta"] = state["eta"] / last
        return -state["eta"] * G


class Uphill(DeltaSGD):
    def step(self, *arguments):
        return -super().step(*arguments)


class Halved(DeltaSGD):
    """Divides by 4 |dg|."""

    def step(self, *arguments):
        return DeltaSGD(self.lr0, self.theta0, self.gamma / 2, self.delta).step(*arguments)


class OtherBatch(DeltaSGD):
    """Takes the earlier gradient from the earlier batch."""

    def step(self, *arguments):
        return DeltaSGD(self.lr0, self.theta0, self.gamma, self.delta, reuse_gradient=True).step(*arguments)


class Leaping(DeltaSGD):
    """Keeps twice its theta."""

    def step(self, W, L, G, state, oracle):
        move = super().step(W, L, G, state, oracle)
        state["theta"] = 2 * state["theta"]
        return move


class Naive(DeltaSGD):
    """Divides by |dg|, whatever it is."""

    def step(self, W, L, G, state, oracle):
        last, eta = state["eta"], (1 + self.delta * state["theta"]).sqrt() * state["eta"]
        if "y" in state:
            quotient = self.gamma * norm(W - state["y"]) / (2 * norm(G - oracle.grad(state["y"])[1]))
            eta = torch.minimum(quotient, eta)
        state["eta"], state["theta"], state["y"] = eta, eta / last, W.clone()
        return -eta * G


THEORY = {"lr0": 0.01, "gamma": 1.0, "delta": 1.0}
MISTAKES = {
    "eq. (5), no smoothness": (laws.lyapunov_function, {"rule": Unbounded(**THEORY)}),
    "eq. (5), uphill": (laws.lyapunov_function, {"rule": Uphill(**THEORY)}),
    "eq. (5), amplified": (laws.lyapunov_function, {"rule": DeltaSGD(lr0=0.01, gamma=6.0, delta=1.0)}),
    "Alg. 1, no smoothness": (laws.step_sizes, {"rule": Unbounded}),
    "Alg. 1, half the quotient": (laws.step_sizes, {"rule": Halved}),
    "Alg. 1, two batches": (laws.step_sizes, {"rule": OtherBatch}),
    "Alg. 1, growing too fast": (laws.step_sizes, {"rule": Leaping}),
    "no difference of gradients": (laws.no_difference, {"rule": Naive}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)


def test_a_carried_step_goes_on_over_the_rounds():
    problem = laws.random_least_squares(clients=1, mean=True)
    x0 = torch.zeros(6, dtype=torch.float64)
    notes = []
    for rounds, steps in ((6, 1), (1, 6)):
        eye = laws.Carried(DeltaSGD(lr0=0.01))
        laws.iterates(problem, x0, laws.Algorithm(eye), rounds, local_steps=steps, engine=laws.Local(chunk=1))
        notes.append([note.eta for note in eye.notes[0]])
    assert notes[0] == pytest.approx(notes[1], rel=1e-12)
    assert len(set(notes[0])) == 6
