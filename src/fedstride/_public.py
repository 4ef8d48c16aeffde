"""The public names of fedstride. The package imports this module when a name is first used."""

from fedstride import data, engine, models, optim
from fedstride.algorithm import Algorithm, recipes
from fedstride.algorithm.parts import export as _export
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Bernoulli, Uniform, Weighted
from fedstride.app import loggers
from fedstride.app.compare import compare
from fedstride.client.drift import GradientCorrection, Scaffold
from fedstride.client.gradient import IAG, Minibatch, Noisy
from fedstride.client.objective import Ditto, FedDynObjective, FedSplitProx, Moon, Plain, Proximal
from fedstride.client.step import (
    NGN,
    Adagrad,
    Adam,
    AdamW,
    Armijo,
    CappedPolyak,
    Constant,
    DecSPS,
    DeltaSGD,
    Exponential,
    Momentum,
    PerStep,
    Polyak,
    Stepwise,
)
from fedstride.core import metrics
from fedstride.core.errors import (
    Corrupt,
    Diverged,
    FedstrideError,
    FedstrideWarning,
    GivenUp,
    InvalidInput,
    Refused,
    TooFew,
    Unsaved,
)
from fedstride.engine import faults
from fedstride.server import (
    AdagradServer,
    AdamServer,
    Auto,
    Average,
    DAdaptation,
    DoG,
    FedDyn,
    FedExP,
    FedExPM,
    FedExProx,
    FedNova,
    FedSplit,
    Hypergradient,
    Prodigy,
    ScheduleFree,
    ServerMomentum,
    YogiServer,
)
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.evaluate import evaluate
from fedstride.training.fine_tune import FineTune
from fedstride.training.guard import Guard
from fedstride.training.personal_report import PersonalReport, personal_report
from fedstride.training.result import Run, load
from fedstride.training.rounds import Event
from fedstride.training.stop import STOP, EarlyStopping
from fedstride.training.train import train
from fedstride.wire import ExactLoRA, Median, Quantize, RandomK, TopK, TrimmedMean

__all__ = [
    "data",
    "engine",
    "models",
    "optim",
    "Algorithm",
    "recipes",
    "Privacy",
    "Bernoulli",
    "Uniform",
    "Weighted",
    "loggers",
    "compare",
    "GradientCorrection",
    "Scaffold",
    "IAG",
    "Minibatch",
    "Noisy",
    "Ditto",
    "FedDynObjective",
    "FedSplitProx",
    "Moon",
    "Plain",
    "Proximal",
    "NGN",
    "Adagrad",
    "Adam",
    "AdamW",
    "Armijo",
    "CappedPolyak",
    "Constant",
    "DecSPS",
    "DeltaSGD",
    "Exponential",
    "Momentum",
    "PerStep",
    "Polyak",
    "Stepwise",
    "metrics",
    "Corrupt",
    "Diverged",
    "FedstrideError",
    "FedstrideWarning",
    "GivenUp",
    "InvalidInput",
    "Refused",
    "TooFew",
    "Unsaved",
    "faults",
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
    "Checkpoints",
    "evaluate",
    "FineTune",
    "Guard",
    "PersonalReport",
    "personal_report",
    "Run",
    "load",
    "Event",
    "STOP",
    "EarlyStopping",
    "train",
    "ExactLoRA",
    "Median",
    "Quantize",
    "RandomK",
    "TopK",
    "TrimmedMean",
]
_export(globals())
