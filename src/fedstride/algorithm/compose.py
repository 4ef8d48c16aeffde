"""Composition: an algorithm is a choice of orthogonal parts; incompatible ones are refused with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

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
from fedstride.wire import Aggregation, Compressor, feedback

UNBOUNDED = ("loss", "mean_squares")  # optional needs of `auto`, which have no bound for privacy
READOUTS = ("server", "last", "average")


@dataclass(frozen=True, repr=False)
class Algorithm:
    """A federated algorithm, composed of parts.

    Args:
        step: client step rule.
        server: server rule.
        objective: local objective of the clients.
        gradient: estimator of the local gradient.
        drift: drift correction. None: no correction.
        up: compressor of the updates; with a gradient correction, of the exchanged gradients.
        down: compressor of the mean of the exchanged gradients.
        error_feedback: whether compression errors are sent later. None: wherever there is a compressor.
        aggregate: robust aggregation rule, or fs.ExactLoRA(). None: the weighted mean.
        privacy: differential privacy. None: no privacy.
        readout: the model that is evaluated and returned: "server" (chosen by the server rule), "last" or "average".
        name: name of the algorithm, used in reports.

    Raises:
        InvalidInput: if a value is not a part, or not one of this kind.
        Refused: if parts are incompatible.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Armijo(), server=fs.FedExP(), drift=fs.Scaffold())
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, algorithm, rounds=2)
        >>> len(run.history)
        2
    """

    step: Step = field(default_factory=Constant)
    server: Server = field(default_factory=Average)
    objective: Objective = field(default_factory=Plain)
    gradient: Estimator = field(default_factory=Minibatch)
    drift: Drift | None = None
    up: Compressor | None = None
    down: Compressor | None = None
    error_feedback: bool | None = None
    aggregate: Aggregation | None = None
    privacy: Privacy | None = None
    readout: str = "server"
    name: str = "custom"

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.readout not in READOUTS:
            raise InvalidInput(
                f"Algorithm: readout={self.readout!r} is unknown; {nearest(str(self.readout), READOUTS)}"
            )
        for refusal in REFUSALS:
            refusal(self)

    def __repr__(self) -> str:
        """Name the parts and settings that are not default; spelled_out() names all of them."""
        return _short(self)

    @property
    def exchanges_gradients(self) -> bool:
        """Whether clients exchange gradients before their local steps."""
        return self.drift is not None and self.drift.exchanges_gradients

    @property
    def feeds_back_up(self) -> bool:
        """Whether clients use error feedback."""
        return self.up is not None and self.error_feedback is not False

    @property
    def feeds_back_down(self) -> bool:
        """Whether the server uses error feedback."""
        return self.down is not None and self.error_feedback is not False

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the fields that clients upload beside the update."""
        private = self.privacy is not None
        more = ("below",) if self.privacy is not None and self.privacy.quantile is not None else ()
        return (*(name for name in self.server.needs if not private or name not in UNBOUNDED), *more)

    @property
    def prox(self) -> float:
        """Coefficient mu of the proximal term, 0 without one."""
        return float(declared(self.objective, "prox"))

    @property
    def needs_features(self) -> bool:
        """Whether the objective calls the model's `features` method."""
        return bool(declared(self.objective, "needs_features"))

    def memory(self, x: Vec, personal: Personal | None = None) -> State:
        """Return the memory of a client before its first round; compression errors are those of shared entries."""
        drift = self.drift.memory(x) if self.drift is not None else {}
        own, shared = ({}, x) if personal is None else (personal.memory(x), personal.cut(x))
        return {**self.objective.memory(x), **drift, **(feedback.memory(shared) if self.feeds_back_up else {}), **own}


def spelled_out(algorithm: Algorithm | None) -> str:
    """Return the algorithm with all of its settings: checkpoints and saved runs are compared by this text."""
    if algorithm is None:
        return repr(None)
    return f"Algorithm({', '.join(f'{f.name}={getattr(algorithm, f.name)!r}' for f in fields(algorithm))})"


def _short(part: Any) -> str:
    if not is_dataclass(part) or isinstance(part, type):
        return repr(part)
    own = sorted(fields(part), key=lambda f: f.name != "name")  # the name comes first
    given = {f.name: _short(getattr(part, f.name)) for f in own}
    usual = {f.name: _short(f.default if f.default_factory is MISSING else f.default_factory()) for f in own}
    shown = ", ".join(f"{name}={text}" for name, text in given.items() if text != usual[name])
    return f"{type(part).__name__}({shown})"


def recipe_of(part: type) -> Callable[..., Algorithm]:
    """Return the recipe that a part declares: a function of its arguments, with default parts in all other slots."""
    slot, name = declared(part, "slot"), declared(part, "recipe")

    def make(*args: object, **settings: object) -> Algorithm:
        return Algorithm(**{slot: part(*args, **settings), "name": name})

    make.__name__, make.__doc__ = name, (inspect.getdoc(part) or "").split("\n\n")[0]
    make.__signature__ = inspect.signature(part)  # type: ignore[attr-defined]
    return make
