"""Federated learning that finds its own step sizes."""

from fedstride import data, engine, faults, loggers, models, optim, recipes
from fedstride.algorithm import Algorithm
from fedstride.checkpoint import Checkpoints
from fedstride.client.drift import GradientCorrection, Scaffold
from fedstride.client.gradient import IAG, Minibatch, Noisy
from fedstride.client.objective import FedDynObjective, FedSplitProx, Moon, Plain, Proximal
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
from fedstride.errors import (
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
from fedstride.guard import Guard
from fedstride.privacy import Privacy
from fedstride.result import Run, load
from fedstride.run import Event, train
from fedstride.sampling import Bernoulli, Uniform, Weighted
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
from fedstride.wire import Median, Quantize, RandomK, TopK, TrimmedMean

__version__ = "0.1.0"
