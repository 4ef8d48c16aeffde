"""Compositions: compatible parts run, incompatible ones are refused with the reason."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parameters_to_vector

import fedstride as fs
from tests.problems import STEPS, classification, classifier, learn

REFUSED = {
    "scaffold-momentum": ({"step": fs.Momentum(), "drift": fs.Scaffold()}, "Scaffold with client Momentum"),
    "scaffold-adam": ({"step": fs.Adam(), "drift": fs.Scaffold()}, "Scaffold with client Adam"),
    "scaffold-adagrad": ({"step": fs.Adagrad(), "drift": fs.Scaffold()}, "Scaffold with client Adagrad"),
    "armijo-iag": ({"step": fs.Armijo(), "gradient": fs.IAG()}, "Armijo with IAG"),
    "armijo-noisy": ({"step": fs.Armijo(), "gradient": fs.Noisy()}, "Armijo with Noisy"),
    "polyak-iag": ({"step": fs.Polyak(), "gradient": fs.IAG()}, "Polyak with IAG"),
    "capped-polyak-iag": ({"step": fs.CappedPolyak(), "gradient": fs.IAG()}, "CappedPolyak with IAG"),
    "delta-iag": ({"step": fs.DeltaSGD(), "gradient": fs.IAG()}, "DeltaSGD with IAG"),
    "fednova-armijo": ({"step": fs.Armijo(), "server": fs.FedNova()}, "FedNova with Armijo"),
    "fednova-delta": ({"step": fs.DeltaSGD(), "server": fs.FedNova()}, "FedNova with DeltaSGD"),
    "fednova-polyak": ({"step": fs.Polyak(), "server": fs.FedNova()}, "FedNova with Polyak"),
    "fednova-adam": ({"step": fs.Adam(), "server": fs.FedNova()}, "FedNova with Adam"),
    "fednova-momentum-prox": (
        {"step": fs.Momentum(), "server": fs.FedNova(), "objective": fs.Proximal(0.1)},
        "FedNova with Momentum and a proximal term",
    ),
    "feedback-of-nothing": ({"error_feedback": True}, "error_feedback=True without a compressor"),
    "feedback-of-scaled-random-k": ({"up": fs.RandomK(3, unbiased=True)}, "with error feedback"),
    "down-without-exchange": ({"down": fs.TopK(3)}, "down= compresses the mean of exchanged gradients"),
    "down-with-scaffold": ({"down": fs.TopK(3), "drift": fs.Scaffold()}, "down= compresses"),
    "half-a-feddyn": ({"objective": fs.FedDynObjective()}, "FedDyn has two halves"),
    "other-half-of-feddyn": ({"server": fs.FedDyn()}, "FedDyn has two halves"),
    "two-alphas": ({"objective": fs.FedDynObjective(0.1), "server": fs.FedDyn(0.2)}, "alpha=0.1 .* 0.2"),
    "feddyn-scaffold": (
        {"objective": fs.FedDynObjective(), "server": fs.FedDyn(), "drift": fs.Scaffold()},
        "FedDyn with a drift correction",
    ),
    "half-a-fedsplit": ({"objective": fs.FedSplitProx()}, "FedSplit has two halves"),
    "other-half-of-fedsplit": ({"server": fs.FedSplit()}, "FedSplit has two halves"),
    "fedsplit-corrected": (
        {"objective": fs.FedSplitProx(), "server": fs.FedSplit(), "drift": fs.GradientCorrection()},
        "FedSplit with a drift correction",
    ),
    "fedsplit-compressed": (
        {"objective": fs.FedSplitProx(), "server": fs.FedSplit(), "up": fs.TopK(3)},
        "FedSplit with a compressor",
    ),
    "auto-server-alone": ({"server": fs.Auto()}, "Auto needs 'loss'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_incompatible_parts_are_refused_with_the_reason(case):
    parts, reason = REFUSED[case]
    with pytest.raises(fs.Refused, match=reason):
        fs.Algorithm(**parts)


@pytest.mark.parametrize("part", ["step", "server", "objective", "gradient", "drift", "up", "down"])
@pytest.mark.parametrize(
    "value", [0.1, "constant", fs.engine.Local(), object()], ids=["number", "name", "engine", "object"]
)
def test_a_part_of_another_kind_is_refused_by_name(part, value):
    with pytest.raises(fs.InvalidInput, match=f"Algorithm: {part}="):
        fs.Algorithm(**{part: value})


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("step", fs.Constant),
        ("server", fs.FedExP),
        ("objective", fs.Proximal),
        ("gradient", fs.IAG),
        ("drift", fs.Scaffold),
        ("up", fs.TopK),
        ("down", fs.TopK),
    ],
)
def test_a_class_in_place_of_an_instance_is_refused(part, value):
    with pytest.raises(fs.InvalidInput, match=f"Algorithm: {part}=.*an instance, as in {value.__name__}"):
        fs.Algorithm(**{part: value})


@pytest.mark.parametrize("part", ["step", "server", "objective", "gradient"])
def test_values_that_are_not_parts_are_refused(part):
    with pytest.raises(fs.InvalidInput, match=f"Algorithm: {part}="):
        fs.Algorithm(**{part: None})


@pytest.mark.parametrize(("feedback", "on"), [(None, True), (True, True), (False, False)])
def test_error_feedback_is_on_wherever_there_is_a_compressor(feedback, on):
    both = fs.recipes.fedlin(up=fs.TopK(3), down=fs.TopK(3), error_feedback=feedback)
    assert (both.feeds_back_up, both.feeds_back_down) == (on, on)
    assert not fs.recipes.fedlin(down=fs.TopK(3), error_feedback=feedback).feeds_back_up


def test_algorithms_are_values():
    assert fs.recipes.fedavg(lr=0.2) == fs.recipes.fedavg(lr=0.2) != fs.recipes.fedavg(lr=0.3)
    with pytest.raises(AttributeError):
        fs.recipes.fedavg().step = fs.Armijo()


def test_a_rate_beyond_single_precision_is_legal():
    assert fs.Algorithm(fs.Constant(1e200)).step.lr == 1e200


def test_moon_does_not_change_fednovas_effective_steps():
    """MOON's mu is the weight of a contrastive term, not of a proximal one: a_i = tau_i."""
    contrastive = fs.Algorithm(objective=fs.Moon(mu=5.0))
    start = parameters_to_vector(classifier().parameters()).detach()
    normalised = [
        (start - learn(contrastive, clients=[data], local_steps=tau, rounds=1).x) / tau
        for data, tau in zip(classification(), STEPS, strict=True)
    ]
    expected = start - sum(STEPS) / 4 * sum(normalised) / 4
    run = learn(fs.Algorithm(server=fs.FedNova(), objective=fs.Moon(mu=5.0)), local_steps=STEPS, rounds=1)
    torch.testing.assert_close(run.x, expected, rtol=0, atol=1e-12)


def test_moon_with_momentum_suits_fednova():
    assert fs.Algorithm(fs.Momentum(), fs.FedNova(), fs.Moon())


class Signs:
    """A custom step rule: any object with init and step."""

    def init(self, x, context):
        return {"eta": torch.full_like(context.size, 0.01)}

    def step(self, W, L, G, state, oracle):
        return -state["eta"] * G.sign()


def test_a_custom_part_needs_no_base_class():
    start = parameters_to_vector(classifier().parameters()).detach()
    run = learn(fs.Algorithm(Signs(), drift=fs.Scaffold()), rounds=1, local_steps=1)
    assert (run.x - start).abs().max() <= 0.01 + 1e-12
