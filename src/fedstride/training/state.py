"""TrainingState: everything that the next round depends on, apart from the clients' own memory.

A state is never changed: a round returns a new one. pack() and unpack() convert a state to and from named tensors and
JSON facts. They iterate over the fields of the dataclass, so a new field is saved and restored without further code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.core.errors import Corrupt
from fedstride.core.model import Replica
from fedstride.core.normalise import Normalised
from fedstride.core.rows import State, Vec
from fedstride.engine import Contents
from fedstride.training import checkpoint
from fedstride.training.choices import settings_of
from fedstride.training.history import History
from fedstride.training.personal import STATS, PersonalModels, own_parameters
from fedstride.training.result import Best, Run, RunSource
from fedstride.training.setup import Setup
from fedstride.wire import feedback


@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state of a run after some number of finished rounds."""

    x: Vec  # the model: the training iterate
    stats: Vec  # the model's moving buffers, such as BatchNorm's statistics
    server: State  # state of the server rule
    drift: State  # state of the drift correction on the server
    down: State  # error feedback of the compressed down-link
    private: State  # the clip of differential privacy, which is sent to the clients
    moved: Vec  # the last change of the model
    average: Vec  # weighted mean of the iterates, for readout="average"
    scaling: Vec | None = None  # means and deviations of the inputs, for normalise=True or "scale"
    usual: dict[str, float] = field(default_factory=lambda: {"gradient": 0.0, "update": 0.0})
    # ... largest root mean square norm of a round's messages so far, by kind
    medians: dict[str, float] = field(default_factory=dict)  # largest median norm of a round's fields so far, by name
    squares: Vec | None = None  # mean squares of gradients at the median client, by tensor: see limits.py
    outliers: int = 0  # rounds in which messages were far longer than the others of their cohort
    releases: int = 0  # private sums released so far
    secret: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8, device="cpu"))
    # ... bytes from which noise and cohorts are drawn under privacy; empty without. They never leave the server.
    unbilled: int = 0  # bytes sent before the first round, to be counted in its row
    best_x: Vec | None = None  # read-out of the best round, for stop=
    best_stats: Vec | None = None
    best: dict[str, float] = field(default_factory=lambda: {"round": 0, "score": 0.0, "waited": 0})
    # ... the best round, its score (larger is better), and the evaluations since then
    history: History = field(default_factory=History)

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return len(self.history)


def initial_state(algorithm: Algorithm, x: Vec, stats: Vec) -> TrainingState:
    """Return the state before the first round."""
    a = algorithm
    return TrainingState(
        x=x,
        stats=stats,
        server=a.server.init(x),
        drift=a.drift.init(x) if a.drift is not None else {},
        down={k: v[None] for k, v in feedback.memory(x).items()} if a.feeds_back_down else {},
        private=a.privacy.init(x) if a.privacy is not None else {},
        moved=torch.zeros_like(x),
        average=x,
        secret=torch.tensor(list(a.privacy.start().encode() if a.privacy is not None else b""), dtype=torch.uint8),
        medians=dict.fromkeys(("gradient", "update", "stats", *(a.drift.uploads if a.drift else ()), *a.needs), 0.0),
    )


def read_out(algorithm: Algorithm, state: TrainingState) -> Vec:
    """Return the parameters that are evaluated and returned; training continues from state.x."""
    if algorithm.readout == "server":
        return algorithm.server.output(state.x, state.server)
    return state.average if algorithm.readout == "average" else state.x


def run_of(setup: Setup, state: TrainingState, ended: str = "finished") -> Run:
    """Return the run so far, as a user gets it."""
    stop, best = setup.stop, None
    if state.best_x is not None and state.best_stats is not None:
        number = int(state.best["round"])
        best = Best(number, state.history[number - 1], exported(setup, state, state.best_x, state.best_stats))
    if best is not None and stop is not None and stop.keep == "best":
        model = best.model
    else:
        model = exported(setup, state, read_out(setup.algorithm, state), state.stats)
    engine = {**setup.clients.about(), **({} if state.scaling is None else {"normalise": setup.task.normalise})}
    return Run(
        model,
        state.x,
        state.history,
        setup.algorithm,
        engine,
        setup.facts,
        ended,
        best,
        settings_of(setup, len(state.x)),
        RunSource(setup.task.clients, setup.task.loss, setup.arguments),
        personal_models(setup, model),
    )


def personal_models(setup: Setup, model: nn.Module) -> PersonalModels | None:
    """Return the clients' own models, None if they have none or if this process does not know them."""
    task = setup.task
    where, parameters = own_parameters(setup.algorithm, task.personal, task.model)
    buffers = task.moving if task.buffers == "local" else ()
    recall = setup.clients.recall() if parameters or buffers else None
    if recall is None:
        return None
    look, inside = recall, "model." if isinstance(model, Normalised) else ""

    def own(client: int) -> State:
        memory = look(client)
        return {name: memory[key] for name, key in (("values", where), (STATS, STATS)) if key in memory}

    named, moving = (tuple(f"{inside}{name}" for name in kind) for kind in (parameters, buffers))
    return PersonalModels(model, named, moving, own, len(task.clients), tuple(task.clients.names))


def exported(setup: Setup, state: TrainingState, parameters: Vec, stats: Vec) -> nn.Module:
    """Return a model for the user, with its own memory; it takes raw inputs."""
    model = Replica(setup.task.model, setup.task.moving).exported(parameters, stats)
    return model if state.scaling is None else Normalised.by(model, state.scaling).eval()


def remember_best(setup: Setup, state: TrainingState) -> TrainingState:
    """Return the state with the last round as the best one, if it is; else with one more evaluation to wait."""
    stop = setup.stop
    if stop is None or stop.score(row := state.history[-1]) is None:
        return state
    known = None if state.best_x is None else state.best["score"]
    if not stop.improves(row, known):
        return replace(state, best={**state.best, "waited": state.best["waited"] + 1})
    found: dict[str, float] = {"round": state.round, "score": stop.score(row) or 0.0, "waited": 0}
    return replace(state, best=found, best_x=read_out(setup.algorithm, state), best_stats=state.stats)


def is_over(setup: Setup, state: TrainingState) -> bool:
    """Whether early stopping ends the run."""
    stop = setup.stop
    return stop is not None and stop.patience is not None and state.best["waited"] >= stop.patience


def pack(state: TrainingState) -> Contents:
    """Convert a state to named tensors and JSON facts."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for f in fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Tensor):
            tensors[f.name] = value
        elif isinstance(value, History):
            tensors[f.name] = torch.frombuffer(bytearray(value.packed()), dtype=torch.uint8)
        elif _holds_tensors(value):
            tensors |= {f"{f.name}/{k}": v for k, v in value.items()}
        elif value is not None:
            facts[f.name] = value
    return tensors, facts


def unpack(
    like: TrainingState, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], source: object
) -> TrainingState:
    """Restore a packed state.

    Args:
        like: a state of the same run, such as the initial one: names, shapes, types and the device must match it.
        tensors: from pack().
        facts: from pack().
        source: the file or peer that the contents come from, for error messages.

    Raises:
        Corrupt: the contents are not a state of this run.
    """
    found: dict[str, Any] = {}
    for f in fields(like):
        expected = getattr(like, f.name)
        if isinstance(expected, History):
            found[f.name] = History(checkpoint.history(source, tensors))
        elif isinstance(expected, Tensor):
            found[f.name] = checked(f.name, tensors.get(f.name), expected, source)
        elif _holds_tensors(expected):
            inside = part(tensors, f.name)
            for k, v in expected.items():
                inside[k] = checked(f"{f.name}/{k}", inside.get(k), v, source)
            found[f.name] = {k: v.to(like.x.device) for k, v in inside.items()}
        elif expected is None:  # set during the run
            value = tensors.get(f.name)
            found[f.name] = None if value is None else value.to(like.x.device)
        elif _alike(facts.get(f.name), expected):
            found[f.name] = facts[f.name]
        else:
            raise Corrupt(f"{source}: {f.name}={facts.get(f.name)!r} is invalid: expected a value like {expected!r}.")
    return replace(like, **found)


def part(tensors: Mapping[str, Tensor], name: str) -> State:
    """Return the tensors under `name`/, without that prefix."""
    return {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}


def checked(name: str, found: Tensor | None, expected: Tensor, source: object) -> Tensor:
    """Return the tensor on the right device; refuse another shape or type.

    Raises:
        Corrupt: it is missing, or not like the expected one.
    """
    if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        raise Corrupt(f"{source}: {name!r} is {what}: expected {expected.dtype} of shape {list(expected.shape)}.")
    return found.to(expected.device)


def _alike(found: Any, expected: Any) -> bool:
    """Whether a JSON value has the type of the expected one, and its keys if it is a dictionary."""
    if isinstance(expected, dict):
        same = isinstance(found, dict) and found.keys() == expected.keys()
        return same and all(_alike(found[k], v) for k, v in expected.items())
    kinds = int | float if isinstance(expected, float) else type(expected)
    return isinstance(found, kinds) and not isinstance(found, bool)


def _holds_tensors(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, Tensor) for v in value.values())
