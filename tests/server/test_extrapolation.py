"""The steps of FedExP, FedExP-M and FedExProx for updates whose lengths are known."""

from __future__ import annotations

import pytest
import torch

import fedstride as fs
from fedstride.wire import Mean


def step(rule, square, noise=0.0):
    """eta_g for |Dbar|^2 = 4 and this S."""
    x = torch.zeros(2, dtype=torch.float64)
    state = rule.init(x)
    mean = Mean({"update": x.new_tensor([2.0, 0.0]), "square": x.new_tensor([square])}, 1.0, 4, 4, noise=noise)
    new = rule.step(x, mean, state)
    assert torch.equal(new, -state["eta"] * mean.update)
    return float(state["eta"])


@pytest.mark.parametrize(
    ("rule", "square", "expected"),
    [
        (fs.FedExP(0.0), 40.0, 5.0),
        (fs.FedExP(0.0), 6.0, 1.0),  # never below 1
        (fs.FedExP(1.0), 40.0, 4.0),
        (fs.FedExP(0.0, lr_max=3.0), 40.0, 3.0),
        (fs.FedExP(0.0, exact=True), 40.0, 10.0),
        (fs.FedExPM(0.0), 40.0, 5.0),
        (fs.FedExPM(0.0), 6.0, 0.75),  # may be below 1
        (fs.FedExProx(), 40.0, 10.0),
        (fs.FedExProx(1.5), 40.0, 1.5),
    ],
    ids=repr,
)
def test_the_step_for_known_lengths(rule, square, expected):
    assert step(rule, square) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("noise", "expected"), [(1.0, 20 / 3), (1.3, 40 / 5.4), (1.4, 1.0)])
def test_fedexp_subtracts_the_noise_and_does_not_extrapolate_what_is_not_above_it(noise, expected):
    """|noise|^2 is 1.4 +- 1.4 in two coordinates: 4 - 1.4 is less than two deviations."""
    assert step(fs.FedExP(0.0), 40.0, noise) == pytest.approx(expected, rel=1e-14)
