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
    "auto": {},
    "fedavg": {"lr": 0.1, "server_lr": 1.0},
    "fedprox": {"lr": 0.1, "mu": 0.01, "server_lr": 1.0},  # Delta-SGD's program
    "fednova": {"lr": 0.1, "server_lr": 1.0, "beta": 0.0, "mu": 0.0},
    "feddyn": {"lr": 0.1, "alpha": 0.1},
    "ditto": {"lr": 0.1, "lam": 0.1, "server_lr": 1.0},
    "scaffold": {"lr": 0.1, "server_lr": 1.0},
    "fedsplit": {"prox": 0.1, "lr": 0.05},
    "feddog": {"lr": 0.1, "r_eps": 1e-6},  # the authors' program
    "fedprodigy": {"lr": 0.1, "betas": (0.9, 0.999), "d0": 1e-6, "eps": 1e-8},
    "feddadapt": {"lr": 0.1, "d0": 1e-6, "beta": 0.0},
    "fedschedulefree": {"lr": 0.1, "server_lr": 1.0, "beta": 0.9},
    "fedhyper": {"lr": 0.1, "bound": 3.0},
    "feddecsps": {"c0": 1.0, "lr_max": 10.0, "f_star": 0.0, "server_lr": 1.0},
    "fedngn": {"sigma": 1.0, "server_lr": 1.0},
    "fedadamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "server_lr": 1.0},  # torch's
}
for name, rate in {
    "fedlin": 0.1,
    "fedtrack": 0.01,
    **dict.fromkeys(("fedexp", "fedexpm", "scaffold_exp"), 0.1),
}.items():
    PAPERS[name]["lr"] = rate
for name in ("fedexprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"):
    PAPERS[name]["lr"] = 0.1
PAPERS["fedexprox"]["gamma"] = 1.0


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
        (RECIPES["feddog"](), {"readout": "average"}),
        (RECIPES["auto"](), {"readout": "average"}),
        (fs.CappedPolyak(), {"cap": 0.06}),
        (fs.Auto(), {"beta": 0.8, "rho": 0.1}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_defaults_of_a_part_are_those_of_its_paper(part, defaults):
    assert {k: getattr(part, k) for k in defaults} == defaults


def test_every_recipe_is_here():
    assert PAPERS.keys() | {"fedsps"} == RECIPES.keys()


ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
PARTS_ALONE = {  # the parts that one uses without a recipe
    fs.Adam: ADAM,
    fs.AdamW: {**ADAM, "weight_decay": 1e-2},
    fs.Adagrad: {"lr": 1e-2, "eps": 1e-10},  # torch's
    fs.Constant: {"lr": 0.1},
    fs.PerStep: {"lr": 0.1},
    fs.DecSPS: {"c0": 1.0, "lr_max": 10.0, "f_star": 0.0},
    fs.Momentum: {"lr": 0.1, "beta": 0.9},
    fs.NGN: {"sigma": 1.0},
    fs.AdagradServer: {"lr": 0.1, "beta": 0.0, "tau": 1e-3},
    fs.AdamServer: {"lr": 0.1, "betas": (0.9, 0.99), "tau": 1e-3, "bias_correction": False},
    fs.YogiServer: {"lr": 0.1, "betas": (0.9, 0.99), "tau": 1e-3},
    fs.Average: {"lr": 1.0},
    fs.DAdaptation: {"d0": 1e-6, "beta": 0.0},
    fs.DoG: {"r_eps": 1e-6},
    fs.FedDyn: {"alpha": 0.1},
    fs.FedDynObjective: {"alpha": 0.1},
    fs.FedExProx: {"alpha": "grads"},
    fs.FedNova: {"lr": 1.0},
    fs.Hypergradient: {"bound": 3.0},
    fs.ServerMomentum: {"lr": 1.0, "beta": 0.9},
    fs.Prodigy: {"betas": (0.9, 0.999), "d0": 1e-6, "eps": 1e-8},
    fs.ScheduleFree: {"lr": 1.0, "beta": 0.9},
    fs.Ditto: {"lam": 0.1},
    fs.FedSplitProx: {"s": 0.1},
    fs.Proximal: {"mu": 0.01},
    fs.IAG: {"block": 1},
    fs.TrimmedMean: {"share": 0.1},
    fs.Quantize: {"bits": 8},
    fs.RandomK: {"unbiased": False},
}


@pytest.mark.parametrize("part", PARTS_ALONE, ids=lambda part: part.__name__)
def test_the_defaults_of_a_part_alone(part):
    found = {k: p.default for k, p in inspect.signature(part).parameters.items()}
    assert {k: found[k] for k in PARTS_ALONE[part]} == PARTS_ALONE[part]
