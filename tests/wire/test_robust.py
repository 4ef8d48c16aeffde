"""Robust aggregation: a few liars cannot move it far, and it is refused where only a mean will do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedstride as fs
from fedstride.engine.faults import Faulty
from tests.problems import classification, learn, same_bits

ROUNDING = 1e-14  # of a sum of eleven numbers below four, in any order


@pytest.mark.parametrize("n", [1, 2, 3, 8, 11])
def test_the_rules_against_numpy(n):
    V = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    assert np.allclose(fs.Median().combine(V), np.median(V.numpy(), axis=0), rtol=0, atol=1e-15)
    for share in (0.1, 0.3, 0.49):
        cut = int(share * n)
        want = np.sort(V.numpy(), axis=0)[cut : n - cut].mean(0)
        assert np.allclose(fs.TrimmedMean(share).combine(V), want, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("rule", [fs.Median(), fs.TrimmedMean(0.4)])
def test_liars_do_not_move_the_model_far(rule):
    calm = fs.Algorithm(step=fs.Constant(0.1))
    robust = fs.Algorithm(step=fs.Constant(0.1), aggregate=rule)
    clients = classification((8,) * 12)

    def go(algorithm, **options):
        return learn(
            algorithm, clients=clients, rounds=6, guard=fs.Guard(spread=float("inf"), explode=float("inf")), **options
        )

    engine = Faulty(exploding=0.06, seed=2)
    honest, lied_to, spoilt = go(calm), go(robust, engine=engine), go(calm, engine=engine)
    assert (lied_to.x - honest.x).norm() < 0.5 * honest.x.norm()
    assert spoilt.x.norm() > 1e6 * honest.x.norm()


@pytest.mark.parametrize("rule", [fs.Median(), fs.TrimmedMean(0.4)])
def test_workers_and_chunks_do_not_matter(rule):
    robust = fs.Algorithm(step=fs.Constant(0.1), aggregate=rule)
    want = learn(robust, engine=fs.engine.Local(workers=1, oracle="loop"))
    assert same_bits(learn(robust, engine=fs.engine.Local(workers=3, oracle="loop")), want)


REFUSED = {
    "Auto": {"step": fs.CappedPolyak(), "server": fs.Auto()},
    "FedExP": {"server": fs.FedExP()},
    "FedNova": {"server": fs.FedNova()},
    "FedDyn": {"server": fs.FedDyn(0.1), "objective": fs.FedDynObjective(0.1)},
    "Scaffold": {"drift": fs.Scaffold()},
    "GradientCorrection": {"drift": fs.GradientCorrection()},
    "compressor": {"up": fs.TopK(3)},
    "Privacy": {"privacy": fs.Privacy(noise=1.0)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_where_only_a_mean_will_do(what):
    with pytest.raises(fs.Refused, match=f"Median with .*{what}"):
        fs.Algorithm(aggregate=fs.Median(), **REFUSED[what])


def test_refused_with_weights():
    with pytest.raises(fs.Refused, match="Median with weights"):
        learn(fs.Algorithm(aggregate=fs.Median()), weights="samples")


@pytest.mark.parametrize("share", [0, 0.5, -0.1, "a", True, None])
def test_a_share_is_checked(share):
    with pytest.raises(fs.InvalidInput, match="TrimmedMean: share="):
        fs.TrimmedMean(share)
