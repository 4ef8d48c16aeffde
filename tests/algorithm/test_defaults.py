"""The defaults of recipes and parts are those of the papers."""

from __future__ import annotations

import inspect

import pytest

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES

ARMIJO = {"lr_max": 1.0, "c": 0.1, "backtrack": 0.9, "reset": "grow", "growth": 2.0}
PAPERS = {
    "fedsls": {**ARMIJO, "server_lr": 1.0},
    "fedexpsls": {**ARMIJO, "eps": 1e-3, "server_lr_max": None},
    "delta_sgd": {"lr0": 0.2, "theta0": 1.0, "gamma": 2.0, "delta": 0.1, "reuse_gradient": False},  # App. B.1
    "fedsps": {"c": 0.5, "lr_max": None, "f_star": 0.0, "growth": None},  # Delta-SGD footnote 4
    "fedexp": {"eps": 1e-3, "server_lr_max": None, "exact": False},
    "fedexpm": {"eps": 1e-3, "beta": 0.9},
    "scaffold_exp": {"eps": 1e-3, "server_lr_max": None},
    "fedexprox": {"alpha": "grads"},
    "fedlin": {"server_lr": 1.0, "up": None, "down": None, "error_feedback": None},
    "fedtrack": {"block": 1, "server_lr": 1.0},
    "fedavgm": {"beta": 0.9, "server_lr": 1.0},
    "fedadam": {"betas": (0.9, 0.99), "tau": 1e-3, "server_lr": 0.1, "bias_correction": False},  # Reddi et al.
    "fedyogi": {"betas": (0.9, 0.99), "tau": 1e-3, "server_lr": 0.1},
    "fedadagrad": {"betas": (0.0, 0.0), "tau": 1e-3, "server_lr": 0.1},
    "moon": {"mu": 1.0, "temperature": 0.5},
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_defaults_of_a_recipe_are_those_of_its_paper(name):
    found = {k: p.default for k, p in inspect.signature(RECIPES[name]).parameters.items()}
    assert {k: found[k] for k in PAPERS[name]} == PAPERS[name]


@pytest.mark.parametrize(
    ("part", "defaults"),
    [
        (fs.Armijo(), ARMIJO),
        (fs.DeltaSGD(), PAPERS["delta_sgd"]),
        (fs.Polyak(), PAPERS["fedsps"]),
        (fs.FedExP(), {"eps": 1e-3, "lr_max": None, "exact": False, "last_two": True}),
        (fs.FedExPM(), {"eps": 1e-3, "beta": 0.9}),
        (fs.AdamServer(), {"lr": 0.1, "betas": (0.9, 0.99), "tau": 1e-3}),
        (fs.Exponential(), {"factor": 0.998}),  # FedExP app. D.3
        (fs.Stepwise(), {"factor": 0.1, "at": (0.5, 0.75)}),  # Delta-SGD sec. 4
        (fs.Moon(), PAPERS["moon"]),
        (RECIPES["fedexpsls"]().server, {"last_two": False}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_defaults_of_a_part_are_those_of_its_paper(part, defaults):
    assert {k: getattr(part, k) for k in defaults} == defaults
