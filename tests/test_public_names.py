"""The public names, pinned: adding or removing one is a decision."""

from __future__ import annotations

import importlib
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import fedstride as fs
from fedstride import _public
from fedstride.algorithm.compatibility import METHODS
from fedstride.algorithm.parts import FOLDERS, PARTS

MODULES = {"data", "engine", "faults", "loggers", "metrics", "models", "optim", "recipes"}
STEPS = {"Adagrad", "Adam", "AdamW", "Armijo", "CappedPolyak", "Constant", "DecSPS", "DeltaSGD", "Momentum", "NGN"}
STEPS |= {"PerStep", "Polyak"}
SCHEDULES = {"Exponential", "Stepwise"}
OBJECTIVES = {"Ditto", "FedDynObjective", "FedSplitProx", "Moon", "Plain", "Proximal"}
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
WIRE = {"ExactLoRA", "Median", "Quantize", "RandomK", "TopK", "TrimmedMean"}
SAMPLERS = {"Bernoulli", "Uniform", "Weighted"}
ERRORS = {"Corrupt", "Diverged", "FedstrideError", "FedstrideWarning", "GivenUp", "InvalidInput", "Refused", "TooFew"}
ERRORS |= {"Unsaved"}
RUNS = {"Algorithm", "Checkpoints", "EarlyStopping", "Event", "FineTune", "Guard", "PersonalReport", "Privacy", "Run"}
RUNS |= {"STOP", "compare", "evaluate", "load", "personal_report", "train"}

RECIPES = [
    *(
        "auto",
        "fedavg",
        "fedavgm",
        "fedprox",
        "fednova",
        "feddyn",
        "moon",
        "ditto",
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
    public = MODULES | STEPS | SCHEDULES | OBJECTIVES | GRADIENTS | DRIFTS | SERVERS | WIRE | SAMPLERS | ERRORS | RUNS
    assert sorted(_public.__all__) == sorted(public)
    assert all(getattr(fs, name) is getattr(_public, name) for name in public) and public <= set(dir(fs))
    assert not hasattr(fs, "nothing")


def test_the_names_of_the_recipes():
    """Those of the table, and those that parts declare in files of their own."""
    declared = [part.recipe for slot in PARTS.values() for part in slot.values() if "recipe" in vars(part)]
    assert list(fs.recipes.RECIPES) == RECIPES + declared
    assert all(getattr(fs.recipes, name)().name == name for name in RECIPES + declared)


def test_every_part_is_a_public_name():
    built_in = {"step": STEPS, "server": SERVERS, "objective": OBJECTIVES, "gradient": GRADIENTS, "drift": DRIFTS}
    assert PARTS.keys() == built_in.keys()
    for slot, parts in PARTS.items():
        assert parts.keys() >= built_in[slot]
        assert all(getattr(fs, name) is part is getattr(FOLDERS[slot], name) for name, part in parts.items())


@pytest.mark.parametrize("slot", FOLDERS)
def test_every_part_declares_its_slot(slot):
    """Discovery goes by the declaration, so a part without one would be overlooked."""
    for path in sorted(Path(FOLDERS[slot].__path__[0]).glob("*.py")):
        module = importlib.import_module(f"{FOLDERS[slot].__name__}.{path.stem}".removesuffix(".__init__"))
        own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        parts = [c for c in own if is_dataclass(c) and all(hasattr(c, m) for m in METHODS[slot])]
        assert all(c.slot == slot for c in parts), f"{path.name} has a part that does not declare slot = {slot!r}"


def test_the_names_of_data():
    assert set(fs.data.__all__) == {
        *("Federation", "Lazy", "Source", "SOURCES", "Table", "federate", "from_datasets", "from_frame", "get", "load"),
        "partition",
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
