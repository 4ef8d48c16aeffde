"""Recipes: the table, and the arguments they refuse."""

from __future__ import annotations

import inspect

import pytest
import torch

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES, get
from tests.problems import STEPS, learn

RATES = {"lr", "server_lr", "lr_max", "lr0", "c", "backtrack", "gamma", "alpha", "prox", "temperature", "server_lr_max"}
NO_NUMBERS = {
    "schedule",
    "reset",
    "exact",
    "reuse_gradient",
    "bias_correction",
    "betas",
    "up",
    "down",
    "error_feedback",
    "block",
}
ANY_SIGN = {"f_star"}


def numbers(rates):
    """Return (recipe, argument) of all numeric arguments: the rates, or the others."""
    found = [(name, p) for name, make in RECIPES.items() for p in inspect.signature(make).parameters]
    return [(name, p) for name, p in found if p not in NO_NUMBERS and (p in RATES) == rates]


@pytest.mark.parametrize(("name", "argument"), numbers(rates=True))
@pytest.mark.parametrize("value", [0, -1, 0.0, -0.1, float("nan"), -float("inf"), "0.1"], ids=repr)
def test_a_rate_must_be_a_positive_number(name, argument, value):
    with pytest.raises(fs.InvalidInput, match=f"={value!r}"):
        RECIPES[name](**{argument: value})


@pytest.mark.parametrize(("name", "argument"), numbers(rates=False))
@pytest.mark.parametrize("value", [-1, -0.1, float("nan"), "0.1"], ids=repr)
def test_other_numbers_are_checked_too(name, argument, value):
    if argument in ANY_SIGN and value in (-1, -0.1):
        assert RECIPES[name](**{argument: value})
    else:
        with pytest.raises(fs.InvalidInput, match=f"={value!r}"):
            RECIPES[name](**{argument: value})


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad", "fedprodigy", "fedadamw"])
@pytest.mark.parametrize("betas", [(1.0, 0.9), (-0.1, 0.9), (float("nan"), 0.9), 0.9, (), "ab"])
def test_betas_are_two_numbers_below_one(name, betas):
    with pytest.raises(fs.InvalidInput, match="beta"):
        RECIPES[name](betas=betas)


@pytest.mark.parametrize("block", [0, -1, 1.5, "2"])
def test_a_block_is_a_whole_number_of_samples(block):
    with pytest.raises(fs.InvalidInput, match="block="):
        fs.recipes.fedtrack(block=block)


ZEROS = [("fedexp", "eps"), ("fedexpsls", "eps"), ("fedprox", "mu"), ("moon", "mu"), ("fednova", "mu"), ("fednova", "beta"), ("fedavgm", "beta"), ("fedexpm", "beta"), ("delta_sgd", "delta"), ("feddadapt", "beta"), ("fedadamw", "weight_decay")]  # fmt: skip


@pytest.mark.parametrize(("name", "argument"), ZEROS)
def test_zero_means_off(name, argument):
    assert torch.isfinite(learn(RECIPES[name](**{argument: 0.0})).x).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fs.recipes.fedprox(mu=0.0), fs.recipes.fedavg()),
        (fs.recipes.fedavgm(beta=0.0), fs.recipes.fedavg()),
        (fs.recipes.moon(mu=0.0), fs.recipes.fedavg()),
        (fs.Algorithm(up=fs.TopK(27)), fs.recipes.fedavg()),
        (fs.Algorithm(up=fs.TopK(1.0), error_feedback=False), fs.recipes.fedavg()),
        (fs.recipes.fedlin(up=fs.TopK(27), down=fs.TopK(27)), fs.recipes.fedlin()),
        (fs.Algorithm(gradient=fs.Noisy(0.0)), fs.recipes.fedavg()),
        (fs.Algorithm(fs.Constant(0.1, fs.Exponential(1.0))), fs.recipes.fedavg()),
        (fs.recipes.fedexp(server_lr_max=1.0), fs.recipes.fedavg()),
        (fs.recipes.fedexprox(gamma=10.0, alpha=1.0), fs.recipes.fedprox(mu=0.1)),
        (fs.Algorithm(fs.PerStep(0.4)), fs.Algorithm(fs.Constant(0.1))),
        (fs.recipes.fednova(), fs.recipes.fedavg()),
        (fs.recipes.fedhyper(bound=1.0), fs.recipes.fedavg()),
        (fs.recipes.fedschedulefree(beta=0.0), fs.recipes.fedavg()),
        (fs.recipes.fedadamw(weight_decay=0.0), fs.Algorithm(fs.Adam())),
        (fs.recipes.fedadagrad(betas=(0.5, 0.1)), fs.recipes.fedadagrad(betas=(0.5, 0.9))),
    ],
)
def test_recipes_that_must_agree(one, other):
    torch.testing.assert_close(learn(one, local_steps=4).x, learn(other, local_steps=4).x, rtol=0, atol=1e-12)


def test_fednova_differs_where_clients_take_unequal_steps():
    assert not torch.allclose(learn("fednova", local_steps=STEPS).x, learn("fedavg", local_steps=STEPS).x, atol=1e-4)


def test_fedsls_does_not_extrapolate():
    with pytest.raises(fs.InvalidInput, match=r"server_lr=1\.5"):
        fs.recipes.fedsls(server_lr=1.5)


@pytest.mark.parametrize("cap", [0.5, 0.0, float("nan")])
def test_the_cap_of_an_extrapolation_is_at_least_one(cap):
    with pytest.raises(fs.InvalidInput, match="lr_max="):
        fs.recipes.fedexp(server_lr_max=cap)


@pytest.mark.parametrize(("typo", "meant"), [("fedavgg", "fedavg"), ("FedAvg", "fedavg"), ("scafold", "scaffold")])
def test_a_misspelt_name_gets_the_nearest_one(typo, meant):
    with pytest.raises(fs.InvalidInput, match=f"algorithm='{typo}' is unknown; did you mean.*'{meant}'"):
        get(typo)
    with pytest.raises(AttributeError, match=meant):
        getattr(fs.recipes, typo)


def test_an_unknown_name_gets_the_list():
    with pytest.raises(fs.InvalidInput, match=r"expected one of: .*delta_sgd.*scaffold"):
        get("zzzzzz")


def test_new_recipes_are_added_to_the_table():
    @fs.recipes.recipe
    def doubled(lr: float = 0.1) -> fs.Algorithm:
        return fs.Algorithm(fs.Constant(lr), fs.Average(2.0), name="doubled")

    try:
        assert torch.equal(learn("doubled").x, learn(fs.recipes.fedavg(server_lr=2.0)).x)
    finally:
        del RECIPES["doubled"]
