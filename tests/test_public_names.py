"""The public names, pinned: adding or removing one is a decision."""

from __future__ import annotations

import ast
from pathlib import Path

import fedstride as fs

MODULES = {"data", "engine", "faults", "loggers", "models", "optim", "recipes"}
STEPS = {"Adagrad", "Adam", "AdamW", "Armijo", "CappedPolyak", "Constant", "DecSPS", "DeltaSGD", "Momentum", "NGN"}
STEPS |= {"PerStep", "Polyak"}
SCHEDULES = {"Exponential", "Stepwise"}
OBJECTIVES = {"FedDynObjective", "FedSplitProx", "Moon", "Plain", "Proximal"}
GRADIENTS = {"IAG", "Minibatch", "Noisy"}
DRIFTS = {"GradientCorrection", "Scaffold"}
SERVERS = {
    "AdagradServer",
    "AdamServer",
    "Auto",
    "Average",
    "DAdaptation",
    "DoG",
    "FedDyn",
    "FedExP",
    "FedExPM",
    "FedExProx",
    "FedNova",
    "FedSplit",
    "Hypergradient",
    "Prodigy",
    "ScheduleFree",
    "ServerMomentum",
    "YogiServer",
}
WIRE = {"Median", "Quantize", "RandomK", "TopK", "TrimmedMean"}
SAMPLERS = {"Bernoulli", "Uniform", "Weighted"}
ERRORS = {"Corrupt", "Diverged", "FedstrideError", "FedstrideWarning", "GivenUp", "InvalidInput", "Refused", "TooFew"}
ERRORS |= {"Unsaved"}
RUNS = {"Algorithm", "Checkpoints", "Event", "Guard", "Privacy", "Run", "load", "train"}

RECIPES = [
    *(
        "auto",
        "fedavg",
        "fedavgm",
        "fedprox",
        "fednova",
        "feddyn",
        "moon",
        "scaffold",
        "fedadam",
        "fedadagrad",
        "fedyogi",
    ),
    *(
        "fedexp",
        "fedexpm",
        "scaffold_exp",
        "fedexprox",
        "fedsls",
        "fedexpsls",
        "delta_sgd",
        "fedsps",
        "fedlin",
        "fedtrack",
    ),
    "fedsplit",
    *("feddog", "fedprodigy", "feddadapt", "fedschedulefree", "fedhyper", "feddecsps", "fedngn", "fedadamw"),
]


def test_the_names_of_fedstride():
    tree = ast.parse(Path(fs.__file__).read_text())
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == (
        MODULES | STEPS | SCHEDULES | OBJECTIVES | GRADIENTS | DRIFTS | SERVERS | WIRE | SAMPLERS | ERRORS | RUNS
    )
    assert all(hasattr(fs, name) for name in imported)


def test_the_names_of_the_recipes():
    assert list(fs.recipes.RECIPES) == RECIPES
    assert all(getattr(fs.recipes, name)().name == name for name in RECIPES)


def test_the_names_of_data():
    assert set(fs.data.__all__) == {
        *("Federation", "Lazy", "Source", "SOURCES", "Table", "federate", "from_datasets", "get", "load", "partition")
    }
    assert all(hasattr(fs.data, name) for name in fs.data.__all__)


def test_the_optimizers():
    assert all(hasattr(fs.optim, name) for name in ("Armijo", "DeltaSGD", "Polyak"))


def test_every_error_is_a_fedstride_error():
    assert all(issubclass(getattr(fs, name), fs.FedstrideError) for name in ERRORS - {"FedstrideWarning"})
    assert issubclass(fs.InvalidInput, ValueError)
    assert issubclass(fs.Refused, ValueError)


def test_the_package_is_typed_and_has_a_version():
    assert (Path(fs.__file__).parent / "py.typed").is_file()
    assert fs.__version__ == "0.1.0"
