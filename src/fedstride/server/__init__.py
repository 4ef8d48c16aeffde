"""Server rules: from the mean update to the next model. They receive only means over the cohort."""

from __future__ import annotations

from typing import ClassVar, Protocol

from fedstride.core.rows import State, Vec
from fedstride.server.adaptive import AdagradServer, AdamServer, YogiServer
from fedstride.server.auto import Auto
from fedstride.server.average import Average
from fedstride.server.dadaptation import DAdaptation
from fedstride.server.dog import DoG
from fedstride.server.feddyn import FedDyn
from fedstride.server.fedexp import FedExP
from fedstride.server.fedexpm import FedExPM
from fedstride.server.fedexprox import FedExProx
from fedstride.server.fednova import FedNova
from fedstride.server.fedsplit import FedSplit
from fedstride.server.hypergradient import Hypergradient
from fedstride.server.momentum import ServerMomentum
from fedstride.server.prodigy import Prodigy
from fedstride.server.schedule_free import ScheduleFree
from fedstride.wire import Mean

__all__ = [
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
    "Server",
    "ServerMomentum",
    "YogiServer",
]


class Server(Protocol):
    """A server rule. state["eta"] holds its last step size, for the history."""

    needs: ClassVar[tuple[str, ...]]  # fields that clients upload in addition to the update, such as "square"

    def init(self, x: Vec) -> State:
        """Return the state before the first round."""
        ...

    def broadcast(self, state: State) -> State:
        """Return the values that clients receive in addition to the model."""
        ...

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        """Return the next model, and update the state."""
        ...

    def output(self, x: Vec, state: State) -> Vec:
        """Return the model that is evaluated and returned; training continues from x."""
        ...
