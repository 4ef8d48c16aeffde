"""Constant steps, schedules, momentum, Adam, AdamW and Adagrad: as torch.optim computes them."""

from __future__ import annotations

import pytest
import torch

import fedstride as fs
from tests.problems import Quadratic, context

H = torch.tensor([[1.0, 5.0, 0.2], [3.0, 0.5, 2.0]], dtype=torch.float64)
X = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (fs.Constant(0.05), lambda p: torch.optim.SGD(p, 0.05)),
        (fs.Momentum(0.05), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
        (fs.Momentum(0.05, beta=0.0), lambda p: torch.optim.SGD(p, 0.05)),
        (fs.Adam(0.05), lambda p: torch.optim.Adam(p, 0.05)),
        (fs.Adam(0.05, (0.5, 0.9), 1e-3), lambda p: torch.optim.Adam(p, 0.05, betas=(0.5, 0.9), eps=1e-3)),
        (fs.AdamW(0.05), lambda p: torch.optim.AdamW(p, 0.05)),
        (
            fs.AdamW(0.1, weight_decay=0.3, schedule=lambda t, T: 0.5),
            lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.3),
        ),
        (fs.AdamW(0.05, weight_decay=0.0), lambda p: torch.optim.Adam(p, 0.05)),
        (fs.Adagrad(0.05), lambda p: torch.optim.Adagrad(p, 0.05)),
    ],
    ids=[
        "sgd",
        "momentum",
        "no momentum",
        "adam",
        "adam with arguments",
        "adamw",
        "adamw with a schedule",
        "adamw without decay",
        "adagrad",
    ],
)
def test_rules_are_those_of_torch(rule, twin):
    oracle, W = Quadratic(H), X.expand(2, -1).clone()
    state = rule.init(X, context((5, 5)))
    for _ in range(5):
        L, G = oracle.grad(W)
        W = W + rule.step(W, L, G, state, oracle)
    for i in range(2):
        p = torch.nn.Parameter(X.clone())
        optimizer = twin([p])
        for _ in range(5):
            optimizer.zero_grad()
            ((H[i] * p**2).sum() / 2).backward()
            optimizer.step()
        torch.testing.assert_close(W[i], p.detach(), rtol=1e-12, atol=1e-12)


def test_per_step_divides_by_the_clients_own_number_of_steps():
    eta = fs.PerStep(0.6).init(X, context((3, 2)))["eta"]
    assert eta.flatten().tolist() == pytest.approx([0.2, 0.3])


@pytest.mark.parametrize("rule", [fs.Constant, fs.PerStep, fs.Momentum, fs.Adam, fs.AdamW, fs.Adagrad])
def test_every_constant_rate_has_a_schedule(rule):
    eta = rule(lr=0.5, schedule=fs.Exponential(0.1)).init(X, context((1,), round=2, rounds=9))["eta"]
    assert eta.item() == pytest.approx(0.005)


def test_schedules():
    assert [fs.Exponential(0.998)(t, 500) for t in (0, 1, 499)] == pytest.approx([1, 0.998, 0.998**499])
    factors = [fs.Stepwise()(t, 100) for t in (0, 49, 50, 74, 75, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])  # Delta-SGD: a tenth after 50 % and after 75 %


@pytest.mark.parametrize(("rho", "tau"), [(0.9, 3), (0.5, 1), (0.0, 4)])
def test_fednova_counts_how_often_momentum_applies_each_gradient(rho, tau):
    """a = the sum of all weights that a momentum buffer gives to the gradients of a round."""
    v, a = 0.0, 0.0
    for _ in range(tau):
        v = rho * v + 1
        a += v
    assert fs.Momentum(0.1, rho).effective_steps(context((tau,)), 0.0).item() == pytest.approx(a)


@pytest.mark.parametrize("mu", [0.0, 0.5, 10.0])
def test_fednova_counts_what_the_proximal_term_takes_back(mu):
    y = 0.0
    for _ in range(4):
        y -= 0.1 * (1 + mu * y)  # a constant gradient of 1 and mu/2 y^2
    assert fs.Constant(0.1).effective_steps(context((4,)), mu).item() == pytest.approx(-y / 0.1)
