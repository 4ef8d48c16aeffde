"""Noisy gradients: standard deviation sigma, drawn anew for every client, round and step, and for the exchange."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import fedstride as fs
from fedstride.client.step import Constant

D, SIGMA = 2000, 0.5


class Noted(Constant):
    """Constant steps that keep the gradients they received."""

    seen: list

    def step(self, W, L, G, state, oracle):
        self.seen.extend(G.clone())
        return super().step(W, L, G, state, oracle)


class Flat(torch.nn.Module):
    """A model whose output does not depend on its parameters: all of its gradients are noise."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(D, dtype=torch.float64))

    def forward(self, inputs):
        return 0 * self.x.sum() * inputs


def received(drift=None):
    step = Noted(0.1)
    object.__setattr__(step, "seen", [])
    clients = [(torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))] * 3
    algorithm = fs.Algorithm(step, gradient=fs.Noisy(SIGMA), drift=drift)
    fs.train(Flat(), "mse", clients, algorithm, rounds=2, local_steps=2, engine=fs.engine.Local(workers=1))
    return torch.stack(step.seen) / SIGMA


def test_noise_is_normal_with_standard_deviation_sigma():
    G = received()
    assert len(G) == 3 * 2 * 2
    assert G.var(1).tolist() == pytest.approx([1.0] * 12, abs=0.15)
    assert G.mean(1).tolist() == pytest.approx([0.0] * 12, abs=0.1)
    assert ((G.abs() < 1).double().mean(1) - 0.683).abs().max() < 0.05


def test_noise_is_drawn_anew_for_every_client_round_and_step():
    assert all(abs(float(a @ b)) / D < 0.1 for a, b in combinations(received(), 2))


def test_exchanged_gradients_have_noise_of_their_own():
    """n + mean(a) - a_i: the variance is 1 + 2/3, if the noise of the exchange is independent of that of the steps."""
    assert received(fs.GradientCorrection()).var(1).tolist() == pytest.approx([5 / 3] * 12, abs=0.25)
