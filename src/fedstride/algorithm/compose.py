"""The composition: an algorithm is a choice of few orthogonal parts; what makes no sense is refused, with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from fedstride.algorithm.compatibility import REFUSALS, check_kinds
from fedstride.algorithm.privacy import Privacy
from fedstride.client.drift import Drift
from fedstride.client.gradient import Estimator, Minibatch
from fedstride.client.objective import Objective, Plain
from fedstride.client.personal import Personal
from fedstride.client.step import Constant, Step
from fedstride.core.capabilities import declared
from fedstride.core.errors import InvalidInput, nearest
from fedstride.core.rows import State, Vec
from fedstride.server import Average, Server
from fedstride.wire import Compressor, Robust, feedback

UNBOUNDED = ("loss", "mean_squares")  # what `auto` does without under privacy
READOUTS = ("server", "last", "average")


@dataclass(frozen=True)
class Algorithm:
    """objective x gradient estimator x drift correction x client step rule x compressor x server rule."""

    step: Step = field(default_factory=Constant)
    server: Server = field(default_factory=Average)
    objective: Objective = field(default_factory=Plain)
    gradient: Estimator = field(default_factory=Minibatch)
    drift: Drift | None = None
    up: Compressor | None = None  # of the update; with gradient correction, of the exchanged gradient
    down: Compressor | None = None  # of the exchanged gradient's mean
    error_feedback: bool | None = None  # None: wherever there is a compressor
    aggregate: Robust | None = None  # None: the weighted mean
    privacy: Privacy | None = None
    readout: str = "server"  # what is evaluated and returned: what the server rule says, "last", or "average"
    name: str = "custom"

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.readout not in READOUTS:
            raise InvalidInput(
                f"Algorithm: readout={self.readout!r} is unknown; {nearest(str(self.readout), READOUTS)}"
            )
        for refusal in REFUSALS:
            refusal(self)

    @property
    def exchanges_gradients(self) -> bool:
        return self.drift is not None and self.drift.exchanges_gradients

    @property
    def feeds_back_up(self) -> bool:
        return self.up is not None and self.error_feedback is not False

    @property
    def feeds_back_down(self) -> bool:
        return self.down is not None and self.error_feedback is not False

    @property
    def needs(self) -> tuple[str, ...]:
        """What clients upload beside the update."""
        private = self.privacy is not None
        more = ("below",) if self.privacy is not None and self.privacy.quantile is not None else ()
        return (*(name for name in self.server.needs if not private or name not in UNBOUNDED), *more)

    @property
    def prox(self) -> float:
        """mu of the proximal term, 0 without one."""
        return float(declared(self.objective, "prox"))

    @property
    def needs_features(self) -> bool:
        """True if the objective calls the model's `features` method."""
        return bool(declared(self.objective, "needs_features"))

    def memory(self, x: Vec, personal: Personal | None = None) -> State:
        """What a client that never took part remembers. Errors of compression are those of the shared entries."""
        drift = self.drift.memory(x) if self.drift is not None else {}
        own, shared = ({}, x) if personal is None else (personal.memory(x), personal.cut(x))
        return {**self.objective.memory(x), **drift, **(feedback.memory(shared) if self.feeds_back_up else {}), **own}


def recipe_of(part: type) -> Callable[..., Algorithm]:
    """The recipe that a part declares: a function of its settings, with the default parts in all other slots."""
    slot, name = declared(part, "slot"), declared(part, "recipe")

    def make(*args: object, **settings: object) -> Algorithm:
        return Algorithm(**{slot: part(*args, **settings), "name": name})

    make.__name__, make.__doc__ = name, (inspect.getdoc(part) or "").split("\n\n")[0]
    make.__signature__ = inspect.signature(part)  # type: ignore[attr-defined]
    return make
