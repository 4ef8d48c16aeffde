"""Limits of the messages' norms: from earlier rounds, and from the cohort itself.

A message is compared with the median of its cohort, which a minority cannot move, or with the largest median of earlier
rounds: late in a run most clients may hardly move, and one that still does is not an outlier. If some messages are far
longer, the attempt is repeated with a limit. Cohorts of one or two have no majority, and are compared with earlier rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedstride.core.errors import tell
from fedstride.core.rows import State, Vec, norm
from fedstride.engine import Reply
from fedstride.engine.admission import LENGTH, SQUARES_OF
from fedstride.training.attempt import Attempt, FailedAttempt
from fedstride.training.guard import Guard
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState

ZERO = 1e-10  # smaller norms are treated as zero
MAJORITY = 3  # smallest cohort in which one client cannot move the median far
LOUD = 30.0  # times the median: larger mean squares of gradients count as this many
MEMORY = 0.9  # of that median, per round
ROUNDING = 1.05  # clipped updates may be longer than the clip by the rounding of half precision


def limits_of(setup: Setup, state: TrainingState, kind: str, attempt: Attempt) -> dict[str, float]:
    """Return the largest norms of the fields of messages of a kind, "gradient" or "update".

    Once a round had outliers, the following ones are limited from their first attempt, so that an attack costs only one
    repetition.
    """
    guard = setup.guard
    found = {kind: guard.limit(reference_norm(state, kind)), **attempt.limits}
    if attempt.number == 1 and state.outliers:
        earlier = {name: guard.spread * median for name, median in state.medians.items() if median >= ZERO}
        found |= {name: min(limit, found.get(name, limit)) for name, limit in earlier.items()}
    if kind == "update":
        clip = {} if setup.algorithm.privacy is None else {"clip": ROUNDING * float(state.private["clip"])}
        found[kind] = min(found[kind], guard.norm or found[kind], *clip.values())
    return found


def reference_norm(state: TrainingState, kind: str) -> float:
    """Return the norm that messages are compared with, 0 if none is known.

    It is the largest of earlier rounds and, for updates, at least the norm of the model.
    """
    known = state.usual[kind]
    if known < ZERO:
        return 0.0
    return max(known, float(norm(state.x))) if kind == "update" else known


def compared(setup: Setup, state: TrainingState, kind: str, reply: Reply, attempt: Attempt) -> Attempt:
    """Compare the messages of a cohort with each other; return the attempt with their typical norms.

    Under privacy the clip is the limit: a comparison would make the release depend on single clients.

    Raises:
        FailedAttempt: some are far longer than the others. It carries the limits for the next attempt.
    """
    norms = reply.metrics["square"].double().sqrt()
    lengths = {kind: norms} | {
        name.removeprefix(LENGTH): v.double() for name, v in reply.metrics.items() if name.startswith(LENGTH)
    }
    medians = {name: float(v.median()) for name, v in lengths.items()}
    private, refused, limits = setup.algorithm.privacy is not None, attempt.refused.copy(), dict(attempt.limits)
    for name, v in lengths.items():
        reference = max(medians[name], state.medians.get(name, 0.0))
        limit = _factor(setup, state, name, v) * reference
        if not private and name not in limits and reference >= ZERO and float(v.max()) > limit:
            limits[name] = limit
            refused["too long"] += int((v > limit).sum())
    if limits.keys() > attempt.limits.keys():
        raise FailedAttempt(replace(attempt, limits=limits, exploded=True, refused=refused))
    rms = float(norms.square().mean().sqrt())
    return replace(attempt, norms={**attempt.norms, kind: rms}, medians={**attempt.medians, **medians})


def typical_squares(setup: Setup, state: TrainingState, reply: Reply) -> Vec | None:
    """Return the mean square of each tensor's gradient at the median client, or at that of an earlier round if it was larger.

    Earlier rounds count less and less. None if no cohort of remote clients has sent mean squares yet.
    """
    squares = _squares(setup, reply)
    if squares is None or len(squares) < MAJORITY:
        return state.squares
    found = squares.median(0).values.to(state.x)
    return found if state.squares is None else torch.maximum(found, MEMORY * state.squares)


def bounded_fields(setup: Setup, state: TrainingState, cohort: Sequence[tuple[int, int]], reply: Reply) -> State:
    """Return the aggregated fields of an exchange, with bounded mean squares of gradients if the clients are remote.

    The steps of `auto` are divided by their root, so one client could stop all others with false ones. True ones may be
    large too, so the client is not left out: they count as LOUD times those of the median client.
    """
    fields, squares, typical = dict(reply.fields), _squares(setup, reply), typical_squares(setup, state, reply)
    if squares is None or typical is None or setup.guard.spread == math.inf:
        return fields
    typical = typical.to(squares)
    limit = torch.where(typical > 0, LOUD * typical, math.inf)
    loud = (squares > limit).any(1).tolist()
    if any(loud):
        who = ", ".join(str(client) for (client, _), over in zip(cohort, loud, strict=True) if over)
        tell(
            f"mean squares of gradients: those of client(s) {who} are more than {LOUD:g} times those of the median client, and "
            f"count as {LOUD:g} times. They may be false. If they are true, scale inputs and targets alike at all nodes, or "
            "use guard=fs.Guard(spread=inf)."
        )
        p = squares.new_tensor([setup.task.weights[client] for client, _ in cohort])
        fields["mean_squares"] = (p @ squares.minimum(limit) / p.sum()).to(fields["mean_squares"])
    return fields


def _squares(setup: Setup, reply: Reply) -> Tensor | None:
    """Return the mean squares of remote clients' gradients, one row per client and one column per tensor."""
    if getattr(setup.task.clients, "found", None) is None:
        return None
    columns = [v for name, v in reply.metrics.items() if name.startswith(SQUARES_OF)]
    return torch.stack(columns, 1) if columns and "mean_squares" in reply.fields else None


def limit_among(guard: Guard, lengths: Tensor | None) -> float | None:
    """Return the largest norm that a cohort's median allows if some are longer, None if none is, or if it is unknown."""
    if lengths is None or len(lengths) < MAJORITY:
        return None
    limit = guard.spread * float(lengths.median())
    return limit if 0 < limit < float(lengths.max()) else None


def _factor(setup: Setup, state: TrainingState, name: str, lengths: Tensor) -> float:
    first, guard = state.usual.get(name, ZERO) < ZERO, setup.guard
    if len(lengths) >= MAJORITY:
        return min(guard.spread, guard.explode)
    return guard.explode if first else float("inf")
