"""Laws for custom algorithms: `check(algorithm)` runs the laws that every algorithm should satisfy.

Deviations: laws about exact results apply only to deterministic algorithms (another seed changes nothing on full
batches), and the law that x* is a fixed point only to those with gradient correction of plain gradients.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from fedstride.algorithm import Algorithm
from fedstride.client.drift import GradientCorrection
from fedstride.client.objective import Plain, Proximal
from fedstride.client.step import Adagrad, Adam, AdamW
from fedstride.core.errors import Diverged, Refused
from fedstride.core.rows import Vec
from fedstride.engine import Local
from fedstride.research.verify.law import Measured, Measurement
from fedstride.research.verify.problems import Featured, LeastSquares, apart, unequal, weighted_minimiser
from fedstride.server import DAdaptation, DoG, Prodigy
from fedstride.training.result import Run
from fedstride.training.rounds import Event
from fedstride.training.train import train

SIZES = (12, 9, 14, 10, 8, 13)


class Interrupted(Exception):
    """Simulates an interruption of a run."""


@dataclass(frozen=True)
class Trial:
    """An algorithm on a well-scaled least-squares problem with different clients."""

    algorithm: Algorithm
    problem: LeastSquares = field(default_factory=lambda: unequal(SIZES))
    x0: Vec = field(default_factory=lambda: torch.full((4,), 0.5, dtype=torch.float64))

    def __call__(self, rounds: int = 3, dtype: torch.dtype = torch.float64, **options: Any) -> Run:
        clients = [(A.to(dtype), b.to(dtype)) for A, b in self.problem.clients]
        options = {"local_steps": 3, **options}
        return train(Featured(self.x0.to(dtype)), self.problem.loss, clients, self.algorithm, rounds=rounds, **options)

    def usual(self) -> dict[str, Any]:
        """Return the options for minibatches and partial participation, as far as the algorithm supports them."""
        for batch_size, cohort in product((4, None), (4, None)):
            options: dict[str, Any] = {"batch_size": batch_size, "cohort": cohort, "weights": "samples"}
            try:
                self(rounds=1, **options)
            except Refused:
                continue
            return options
        return {}


def check(algorithm: Algorithm) -> Iterator[Measurement]:
    """Check every law that applies to the algorithm; takes seconds.

    Args:
        algorithm: the algorithm to check.

    Yields:
        A Measurement for each figure; `measurement.kept` is False for a broken law.

    Example:
        >>> broken = [f for f in check(fs.recipes.fedavg()) if not f.kept]
    """
    trial = Trial(algorithm)
    laws: list[Callable[[Trial], Iterator[Measured]]] = [reproducible, types_and_counts, resumed, progress]
    if not chance(trial):
        laws += [order, like_clients]
        if _stays(algorithm):
            laws.append(fixed_point)
    for law in laws:
        try:
            for what, measured, relation, bound in law(trial):
                yield Measurement(what, algorithm.name, float(measured), relation, float(bound))
        except RuntimeError as error:  # includes Diverged
            yield Measurement(f"{law.__name__} fails: {error}", algorithm.name, math.nan, "<=", 0)


def chance(trial: Trial) -> bool:
    """Whether the algorithm uses random numbers other than those of batches and cohorts."""
    try:
        return not torch.equal(trial(seed=0).x, trial(seed=1).x)
    except Diverged:
        return True


def _stays(a: Algorithm) -> bool:
    """Whether x* is a fixed point.

    A client's compressor or another objective moves that point. Adam and Adagrad at the clients, and DoG, D-Adaptation
    and Prodigy at the server are scale-invariant, so the rounding error of a zero gradient causes a full step.
    """
    rescaled = isinstance(a.step, Adam | AdamW | Adagrad) or isinstance(a.server, DoG | DAdaptation | Prodigy)
    exact = a.up is None and isinstance(a.objective, Plain | Proximal) and not rescaled
    return exact and isinstance(a.drift, GradientCorrection)


def reproducible(trial: Trial) -> Iterator[Measured]:
    options = trial.usual()
    first = trial(**options, engine=Local(workers=1, chunk=1))
    again = trial(**options, engine=Local(workers=1, chunk=1))
    yield "the same seed gives the same bits: distance", apart(again.x, first.x), "<=", 0
    many = trial(**options, engine=Local(workers=3, chunk=1))
    yield "three workers give the bits of one: distance", apart(many.x, first.x), "<=", 0
    rows = trial(**options, engine=Local(workers=1, chunk=4))
    yield "clients in one matrix give the results of single clients: distance", apart(rows.x, first.x), "<=", 1e-10


def types_and_counts(trial: Trial) -> Iterator[Measured]:
    run = trial(dtype=torch.float32, **trial.usual())
    kinds = [run.x.dtype, *(p.dtype for p in run.model.parameters())]
    yield "float32 in, float32 out: tensors of another type", sum(k != torch.float32 for k in kinds), "<=", 0
    for name in ("bytes_up", "bytes_down", "gradients"):
        yield f"every round counts its {name}: least count", min(run.history[name]), ">", 0


def resumed(trial: Trial) -> Iterator[Measured]:
    def stop(event: Event) -> None:
        if event.round == 2:
            raise Interrupted

    options = {**trial.usual(), "rounds": 4}
    whole = trial(**options)
    with tempfile.TemporaryDirectory() as folder:
        with suppress(Interrupted):
            trial(**options, checkpoint=folder, callbacks=[stop])
        rest = trial(**options, checkpoint=folder)
    yield "interrupted and resumed is uninterrupted: distance", apart(rest.x, whole.x), "<=", 0
    models = [torch.nn.utils.parameters_to_vector(r.model.parameters()).detach() for r in (rest, whole)]
    yield "the same for the returned model: distance", apart(*models), "<=", 0


def progress(trial: Trial) -> Iterator[Measured]:
    """The loss falls if all clients share a minimiser; without one, extrapolation may not converge (FedExP sec. 3)."""
    easy = Trial(trial.algorithm, unequal(SIZES, common=True))
    model = easy(rounds=20).model
    x = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    yield "makes progress in 20 rounds: f - f* over the first", easy.problem.gap(x) / easy.problem.gap(easy.x0), "<", 1


def order(trial: Trial) -> Iterator[Measured]:
    there, p = trial(weights="samples", local_steps=range(1, 7)), trial.problem
    back = Trial(trial.algorithm, LeastSquares(p.A[::-1], p.b[::-1], p.mean))
    run = back(weights="samples", local_steps=range(6, 0, -1))
    yield "the order of the clients does not matter: distance", apart(run.x, there.x), "<=", 1e-9


def like_clients(trial: Trial) -> Iterator[Measured]:
    A, b = trial.problem.clients[0]
    one, three = (Trial(trial.algorithm, LeastSquares([A] * n, [b] * n, mean=True))().x for n in (1, 3))
    yield "identical clients equal one client: distance", apart(three, one), "<=", 1e-9


def fixed_point(trial: Trial) -> Iterator[Measured]:
    solution = weighted_minimiser(trial.problem, "samples")
    run = Trial(trial.algorithm, trial.problem, solution)(weights="samples")
    yield "stays at x* with gradient correction: distance", apart(run.x, solution), "<=", 1e-9
