"""Strategies for Flower apps: change one line at the server, and, for rules whose clients do more, one at the clients.

docs/flower.md explains them. A whole app that fedstride writes is in engine/flower.
"""

from __future__ import annotations

from fedstride.core.errors import InvalidInput

try:
    from flwr.serverapp.strategy import Strategy as _Strategy  # noqa: F401
except ImportError as error:
    raise InvalidInput(
        f"fedstride.flower needs Flower with the Message API ({error}): pip install 'fedstride[flower]'."
    ) from error

from fedstride.flower.client import train
from fedstride.flower.rules import (
    Auto,
    DeltaSGD,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAdamW,
    FedAvg,
    FedAvgM,
    FedDAdapt,
    FedDecSPS,
    FedDoG,
    FedDyn,
    FedExP,
    FedExPM,
    FedExProx,
    FedExpSLS,
    FedHyper,
    FedLin,
    FedNGN,
    FedNova,
    FedProdigy,
    FedProx,
    FedScheduleFree,
    FedSLS,
    FedSplit,
    FedSPS,
    FedTrack,
    FedYogi,
    Moon,
    Scaffold,
    ScaffoldExP,
)
from fedstride.flower.strategy import Strategy

__all__ = [
    "Strategy",
    "train",
    "Auto",
    "FedSLS",
    "FedExpSLS",
    "DeltaSGD",
    "FedSPS",
    "FedDecSPS",
    "FedNGN",
    "FedProx",
    "FedExProx",
    "FedNova",
    "Scaffold",
    "ScaffoldExP",
    "FedLin",
    "FedTrack",
    "FedDyn",
    "Moon",
    "Ditto",
    "FedSplit",
    "FedAdamW",
    "FedAvg",
    "FedAvgM",
    "FedAdam",
    "FedAdagrad",
    "FedYogi",
    "FedExP",
    "FedExPM",
    "FedDoG",
    "FedProdigy",
    "FedDAdapt",
    "FedScheduleFree",
    "FedHyper",
]
