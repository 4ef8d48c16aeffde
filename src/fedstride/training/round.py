"""A round, from top to bottom: advance(setup, state) -> (next state, history row).

    choose the cohort -> [exchange gradients] -> exchange updates -> aggregate -> [add noise] -> server step -> read-out -> row

In an exchange the engine sends an order to the cohort, refuses damaged messages, and sums the others in a stream. The
functions below advance() are its steps, in the order in which it calls them. None of them changes a state. The clients'
new memory is provisional until the caller calls setup.clients.commit() or discard(): see train.py and retry.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from fedstride.algorithm.noise import normals
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Sampler
from fedstride.core.capabilities import declared
from fedstride.core.normalise import INPUTS
from fedstride.core.rows import State, Vec, dot, generator, norm, sq
from fedstride.engine import Order, Reply
from fedstride.engine.evaluation import test_columns
from fedstride.training.attempt import Attempt, FailedAttempt, relative_error
from fedstride.training.guard import finite
from fedstride.training.history import MEDIAN_LOSS, Row
from fedstride.training.limits import bounded_fields, compared, limits_of, typical_squares
from fedstride.training.personal import own_model, with_personal_entries
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState, read_out
from fedstride.wire import Mean, send

Cohort = list[tuple[int, int]]  # (client, local steps)
RAW = ("train_loss", "client_step", "client_steps", "trials", "failed", "compression")  # withheld under privacy


def advance(setup: Setup, state: TrainingState, attempt: Attempt | None = None) -> tuple[TrainingState, Row]:
    """Run one round.

    Args:
        setup: the constants of the run.
        state: the state after the rounds so far; it is not changed.
        attempt: the record of this attempt, if others at the same round failed before.

    Returns:
        The next state, with the round's row in its history, and that row.

    Raises:
        FailedAttempt: too few messages were usable, or the server step exploded.
    """
    a = setup.algorithm
    attempt = attempt or Attempt(bytes_up=state.unbilled)

    cohort = choose_cohort(setup, state, attempt.number)
    broadcast = broadcast_of(setup, state)
    attempt = replace(attempt, asked=tuple(client for client, _ in cohort))
    attempt = attempt.send(message_size(setup, state, broadcast), len(cohort))

    down = state.down
    if a.exchanges_gradients:  # FedLin, FedTrack: local steps are corrected by the mean gradient
        gradients = exchange(setup, state, "gradient", broadcast, cohort, attempt)
        broadcast["gradient"], down, size, error = compress_gradient(setup, state, gradients.reply.fields["gradient"])
        cohort = gradients.cohort  # a client without a gradient cannot be corrected
        attempt = gradients.attempt.send(size, len(cohort), error)
    updates = exchange(setup, state, "update", broadcast, cohort, attempt)
    attempt = updates.attempt
    usual = {kind: max(known, attempt.norms.get(kind, 0.0)) for kind, known in state.usual.items()}
    medians = {name: max(known, attempt.medians.get(name, 0.0)) for name, known in state.medians.items()}

    mean, stats = aggregate(setup, state, updates)
    private = state.private
    if a.privacy is not None:
        mean, private = release(setup, state, a.privacy, mean, attempt.number)
        attempt = replace(attempt, releases=attempt.releases + 1)
    mean = with_personal_entries(mean, setup.task.personal, a)
    drift = dict(state.drift)
    if a.drift is not None:
        a.drift.absorb(mean.fields, mean.share, drift)
    x, server, attempt = server_step(setup, state, mean, usual["update"], attempt)
    if not (finite(drift, state.drift) and finite({"stats": stats}) and finite(private)):
        raise FailedAttempt(replace(attempt, wild_step=float(server["eta"])))

    after = replace(
        state,
        x=x,
        stats=stats,
        server=server,
        drift=drift,
        down=down,
        private=private,
        moved=x - state.x,
        average=average_iterates(setup, state, x),
        usual=usual,
        medians=medians,
        squares=typical_squares(setup, state, updates.reply),
        outliers=state.outliers + ("too long" in attempt.refused),
        releases=state.releases + attempt.releases,
        unbilled=0,
    )
    with setup.watch.phase("evaluation"):
        scores = evaluate(setup, after)
    row = history_row(setup, state, after, mean, updates, attempt) | scores
    return replace(after, history=state.history.plus(row)), row


def choose_cohort(setup: Setup, state: TrainingState, attempt: int) -> Cohort:
    """Draw the cohort of a round, sorted by work, longest first, so that no worker starts a long job last.

    Under privacy, it is secret: epsilon counts on that.
    """
    sizes, most, t = setup.sizes, setup.task.batch_size, state.round
    drawn = drawn_clients(setup.sampler, sizes, hidden(state) or setup.task.seed, t, attempt)
    cohort = [(client, setup.steps(t, client)) for client in drawn]
    return sorted(cohort, key=lambda one: -one[1] * min(sizes[one[0]], most or sizes[one[0]]))


def hidden(state: TrainingState) -> str:
    """Return the secret of a private run, "" without privacy."""
    return bytes(state.secret.numpy()).decode()


def drawn_clients(sampler: Sampler, sizes: Sequence[int], seed: int | str, t: int, attempt: int = 1) -> list[int]:
    """Return the clients of a round, in their order in the federation."""
    again = () if attempt == 1 else (attempt,)
    return sorted(sampler.draw(sizes, generator(seed, t, "cohort", *again)))


def broadcast_of(setup: Setup, state: TrainingState) -> State:
    """Return what is sent to the clients beside the model and its statistics."""
    scaling = {} if state.scaling is None else {INPUTS: state.scaling}
    return {**setup.algorithm.server.broadcast(state.server), **state.drift, **state.private, **scaling}


def message_size(setup: Setup, state: TrainingState, broadcast: State) -> int:
    """Count the bytes that the server sends to each client of a cohort."""
    sent = setup.task.buffers == "average" or declared(setup.algorithm.aggregate, "changes_frozen")
    stats = len(state.stats) if sent else 0
    own = 0 if setup.task.personal is None else len(setup.task.personal.own)
    return (len(state.x) - own + stats + sum(v.numel() for v in broadcast.values())) * state.x.element_size()


@dataclass(frozen=True, eq=False)
class Exchanged:
    """The outcome of an exchange that a quorum took part in."""

    reply: Reply
    cohort: Cohort  # the clients whose messages were admitted
    attempt: Attempt


def exchange(
    setup: Setup, state: TrainingState, kind: str, broadcast: State, cohort: Cohort, attempt: Attempt
) -> Exchanged:
    """Run an exchange with a cohort and aggregate its messages; kind: "gradient" or "update".

    The engine refuses messages that are damaged, not finite or beyond the limit.

    Raises:
        FailedAttempt: less than a quorum is left, or some messages are far longer than the others.
    """
    limits = limits_of(setup, state, kind, attempt)
    order = Order(f"{kind}s", state.x, state.stats, broadcast, state.round, cohort, limits, attempt.calls)
    reply = setup.watch.exchange(setup.clients, order)
    attempt = attempt.receive(reply)
    admitted = [one for one in cohort if one[0] not in reply.lost]
    if len(admitted) < setup.guard.least(len(cohort)):
        early = attempt.number == 1 and state.outliers > 0 and "too long" in reply.lost.values()
        raise FailedAttempt(replace(attempt, exploded=early))  # the limits of earlier rounds may not suit this one
    return Exchanged(reply, admitted, compared(setup, state, kind, reply, attempt))


def compress_gradient(setup: Setup, state: TrainingState, mean: Vec) -> tuple[Vec, State, int, float]:
    """Compress the mean gradient for the down-link; return it with error feedback, bytes and relative error."""
    a = setup.algorithm
    source = [generator(setup.task.seed, state.round, "down")]
    sent, past, size = send(mean[None], a.down, a.feeds_back_down, state.down, source)  # FedLin eq. (142)
    error = past.get("residual", mean[None] - sent)
    return sent[0], past or state.down, size[0], relative_error(sq(error), sq(sent + error))


def aggregate(setup: Setup, state: TrainingState, updates: Exchanged) -> tuple[Mean, Vec]:
    """Return the weighted means over the admitted clients: of their updates, and of the model's statistics.

    The statistics include the frozen weights that an aggregation rule changes.
    """
    fields, rule = bounded_fields(setup, state, updates.cohort, updates.reply), setup.algorithm.aggregate
    stats = fields.pop("stats", state.stats)
    if declared(rule, "changes_frozen"):
        stats = rule.corrected(stats, fields)  # type: ignore[union-attr]
    share = updates.reply.weight / setup.weight
    steps = median(tau for _, tau in updates.cohort) if updates.cohort else 0.0
    return Mean(fields, share, len(updates.cohort), len(setup.task.clients), setup.shapes, steps=steps), stats


def release(setup: Setup, state: TrainingState, privacy: Privacy, mean: Mean, attempt: int) -> tuple[Mean, State]:
    """Add noise to the mean, so that it may be published; return it and the next clip.

    The denominator is the expected number of participants, so that it does not reveal who answered.
    """
    private = dict(state.private)
    answered, expected = int(mean.participants), privacy.expected(setup.sampler, mean.clients)
    known = {k: v for k, v in mean.fields.items() if k == "update" or k in setup.algorithm.needs}
    source = normals(
        hidden(state), state.round, attempt, answered, expected, repr(privacy), fields={**known, **private}
    )
    noise = len(mean.update) * privacy.deviation("update", len(known) - 1, expected, private) ** 2
    fields, server = privacy.release(known, answered, expected, private, source), setup.algorithm.server
    if declared(server, "extrapolates") and declared(server, "has_momentum"):
        k = privacy.damping(noise, private)
        fields, noise = {**fields, "update": k * fields["update"]}, k**2 * noise
    privacy.follow(fields, private)
    share = expected / mean.clients
    return replace(mean, fields=fields, share=share, participants=expected, noise=noise, steps=0.0), private


def server_step(
    setup: Setup, state: TrainingState, mean: Mean, usual: float, attempt: Attempt
) -> tuple[Vec, State, Attempt]:
    """Apply the server rule; return the next model, the rule's state and the attempt.

    A step that is far too long or not finite, or that leaves the rule with a state that is not, is rolled back with that
    state, and replaced by the plain mean of the clients' models: a saved state can always be resumed.

    Raises:
        FailedAttempt: the plain mean is not finite or far too long either, or too many successive rounds were rolled back.
    """
    guard, server = setup.guard, dict(state.server)
    x = setup.algorithm.server.step(state.x, mean, server)
    if guard.sound(x, state.x, usual) and finite(server, state.server):
        return x, server, attempt
    attempt = replace(attempt, rollbacks=1, wild_step=float(server["eta"]))
    server = {**state.server, "eta": torch.ones_like(state.server["eta"])}
    x = state.x - model_update(mean)
    if not guard.sound(x, state.x, usual) or rolled_back_too_often(setup, state):
        raise FailedAttempt(attempt)
    return x, server, attempt


def model_update(mean: Mean) -> Vec:
    """Return the mean change of the clients' models: FedNova's clients upload Delta_i / a_i, and this in "raw"."""
    return mean.fields.get("raw", mean.update)


def rolled_back_too_often(setup: Setup, state: TrainingState) -> bool:
    """Whether each of the last rounds, as many as the guard tolerates, rolled its server step back."""
    most = setup.guard.rollbacks
    last = state.history[-most:] if most else []
    return len(last) == most and all(row["rollbacks"] for row in last)


def average_iterates(setup: Setup, state: TrainingState, x: Vec) -> Vec:
    """Return the weighted mean of the iterates with x, if the read-out needs it."""
    if setup.algorithm.readout != "average":
        return state.average
    # Polynomial decay with eta = 8: Shamir, Zhang. ICML 2013, for non-smooth SGD.
    return state.average + 9 / (state.round + 9) * (x - state.average)


def evaluate(setup: Setup, after: TrainingState) -> Row:
    """Return the columns test_loss and test_accuracy, for the read-out; nothing if this round is not evaluated."""
    done = after.round + 1  # its row is not in the history yet
    if not setup.tests or (done % setup.evaluate_every and done != setup.task.rounds):
        return dict.fromkeys(setup.task.metrics)
    output = read_out(setup.algorithm, after)
    recall = setup.clients.recall() if setup.task.personal is not None else None
    scores = []
    for client, test in enumerate(setup.tests):
        x, stats = (
            (output, after.stats)
            if recall is None
            else own_model(setup.task.personal, output, after.stats, recall(client))
        )
        scores.append(setup.clients.evaluate(x, stats, test, after.scaling))
    return test_columns(scores, setup.task.metrics)


def history_row(
    setup: Setup, before: TrainingState, after: TrainingState, mean: Mean, updates: Exchanged, attempt: Attempt
) -> Row:
    """Return the history row of a round; history.COLUMNS describes the columns."""
    metrics, update, privacy = updates.reply.metrics, model_update(mean), setup.algorithm.privacy
    p = torch.tensor([setup.task.weights[c] for c, _ in updates.cohort], dtype=torch.float64, device="cpu")
    p /= p.sum()

    def average(name: str) -> float:
        return float((p * metrics[name].double().cpu()).sum())

    row: Row = {
        "round": before.round + 1,
        "train_loss": average("train_loss"),
        "test_loss": None,
        "test_accuracy": None,
        "server_step": float(after.server["eta"]),
        "client_step": average("client_step"),
        "client_steps": quartiles(metrics["client_step"]),
        "trials": average("trials"),
        "failed": int(metrics["failed"].sum()),
        "update": float(norm(update)),
        "turn": _cosine(after.moved, before.moved),
        "drift": _drift(mean, update),
        "compression": attempt.compression,
        "bytes_up": attempt.bytes_up,
        "bytes_down": attempt.bytes_down,
        "gradients": attempt.gradients,
        "forwards": attempt.forwards,
        "seconds": attempt.seconds,
        "participants": len(updates.cohort),
        "lost": len(attempt.lost),
        "refused": dict(sorted(attempt.refused.items())),
        "attempts": attempt.number,
        "rollbacks": attempt.rollbacks,
        "epsilon": None,
    }
    if privacy is not None:
        row |= dict.fromkeys(RAW)
        row["epsilon"] = privacy.epsilon(setup.sampler, len(setup.task.clients), after.releases)
    elif setup.stop is not None and setup.stop.metric == MEDIAN_LOSS:
        row[MEDIAN_LOSS] = quartiles(metrics["train_loss"])[2]
    return row


def _drift(mean: Mean, update: Vec) -> float | None:
    """Return sqrt(S - |Dbar|^2), None if the squares were not released."""
    return float((mean.square - sq(update)).clamp(min=0).sqrt()) if "square" in mean.fields else None


def _cosine(u: Vec, v: Vec) -> float | None:
    both = math.sqrt(float(sq(u)) * float(sq(v)))
    return float(dot(u, v)) / both if both > 0 else None


def quartiles(values: Tensor) -> list[float]:
    """Return minimum, quartiles and maximum: the bits of torch.quantile, which takes 0.2 ms."""
    ordered = sorted(values.double().tolist())
    if any(math.isnan(v) for v in ordered):
        return [math.nan] * 5
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        place = share * (len(ordered) - 1)
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        weight = place - math.floor(place)
        near = low + weight * (high - low) if weight < 0.5 else high - (high - low) * (1 - weight)
        found.append(low if low == high else near)
    return found
