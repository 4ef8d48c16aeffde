"""Server rules: from the mean of the updates to the next model. They see means only."""

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
    """A rule leaves the step it took in state["eta"], for the history."""

    needs: ClassVar[tuple[str, ...]]  # scalars that clients upload beside the update, such as "square"

    def init(self, x: Vec) -> State: ...

    def broadcast(self, state: State) -> State:
        """What clients get beside the model."""
        ...

    def step(self, x: Vec, mean: Mean, state: State) -> Vec: ...

    def output(self, x: Vec, state: State) -> Vec:
        """What is evaluated and returned; training goes on from x."""
        ...
