"""train(): from a model, a loss and federated data to a trained model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler, sampler
from fedstride.client.exchange import exchanges
from fedstride.client.local import Options
from fedstride.core import losses
from fedstride.core.errors import InvalidInput, Unsaved, tell
from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.core.rows import Vec
from fedstride.data.federation import federation
from fedstride.engine import Engine, Task
from fedstride.engine import engine as engine_of
from fedstride.engine.local import one_thread
from fedstride.training import snapshot, validate
from fedstride.training.checkpoint import Checkpoints, Clock, locked, newest, prune
from fedstride.training.guard import Guard
from fedstride.training.history import Row
from fedstride.training.result import Run
from fedstride.training.session import Session
from fedstride.training.validate import LocalSteps


@dataclass(frozen=True)
class Event:
    """What a callback gets: before the first round (0) and after each."""

    round: int
    x: Vec  # the training iterate, flat, in the order of the trainable model.parameters()
    metrics: Row


def train(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: str | Algorithm = "auto",
    *,
    rounds: int,
    cohort: int | float | Sampler | None = None,
    local_steps: LocalSteps | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    weights: str | Sequence[float] = "uniform",
    test: Any = None,
    seed: int = 0,
    engine: str | Engine = "auto",
    checkpoint: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Callable[[Event], object]] = (),
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    buffers: str = "average",
    device: str | torch.device | None = None,
    precision: str | None = None,
    readout: str | None = None,
    evaluate_every: int = 1,
    guard: Guard | None = None,
    normalise: bool = False,
) -> Run:
    """Train a model on federated data.

    model: any nn.Module; it is copied, never changed. Frozen parameters stay frozen.
    loss: (output, target) -> scalar over the batch, or a name such as "cross_entropy" or "mse".
    clients: one (inputs, targets) pair of tensors, or one torch Dataset, per client; or a Federation.
    algorithm: a name, fs.recipes.NAME(...), or fs.Algorithm(...).
    cohort: clients per round: None = all, a number, a fraction, or a sampler such as fs.Bernoulli(0.1).
    local_steps | epochs: work per round: a number, one per client, or a function (round, client); or passes over the
        client's data, which may be fractional. Default: one epoch.
    batch_size: samples per step; None = the full batch.
    weights: of the clients in every mean: "uniform", "samples", or one number per client.
    test: (inputs, targets) to evaluate the returned model on after each round.
    engine: "auto", "local", "torchrun" (see docs/engines.md), or an engine such as fs.engine.Local(workers=2). What it
        chose is in run.engine.
    checkpoint: a folder; the run is saved there after each round and goes on from there when called again. With
        fs.Checkpoints(folder, every=..., seconds=..., keep=...) less often, or with more files kept.
    callbacks: functions of an Event with .round, .x and .metrics.
    weight_decay, clip_norm: part of every local loss; largest norm of its gradient, before any drift correction.
    buffers: BatchNorm's statistics: "average" over clients; "local" to each, where the returned model keeps the initial
        ones; or "frozen".
    device: where to train; None = where the model is.
    precision: None = the model's own; "bfloat16" = forward and backward passes in mixed precision; on a
        CPU it is tried in a child process first (2 seconds).
    readout: what is evaluated and returned: None = as the algorithm says, "last" = the last iterate, "average" = a mean of
        the iterates in which later ones weigh more, which costs nothing and takes out the noise.
    evaluate_every: rounds from one evaluation on `test` to the next; the last round is always evaluated.
    guard: how many clients must answer, how often a round is tried again, and when a step is taken back: fs.Guard(...).
    normalise: True = scale every input feature to mean 0 and deviation 1 over all samples of the federation (columns, or the
        channels of images). All clients are asked once, before the first round, for sums over their inputs. The returned
        model takes raw inputs.
    """
    chosen = validate.algorithm_of(algorithm)
    if readout is not None:
        chosen = replace(chosen, readout=readout)
    federated = federation(clients)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model: got {type(model).__name__}; expected a torch.nn.Module.")
    if device is not None:
        try:
            model = copy.deepcopy(model).to(device)
            torch.ones((), device=device).item()  # `meta` computes nothing
        except (RuntimeError, AssertionError, TypeError) as error:
            raise InvalidInput(f"device={device!r} is not usable: {error}") from error
    mixed = validate.mixed_of(precision, model)
    rounds, seed = validate.whole("rounds", rounds), validate.whole("seed", seed, least=0)
    evaluate_every = validate.whole("evaluate_every", evaluate_every)
    batch_size = None if batch_size is None else validate.whole("batch_size", batch_size)
    if not isinstance(callbacks, list | tuple):
        raise InvalidInput(f"callbacks={callbacks!r} is not usable; expected a list of functions of one event.")
    where = engine_of(engine)
    when = checkpoint if isinstance(checkpoint, Checkpoints | None) else Checkpoints(checkpoint)
    if not where.leads:
        when = None  # another process writes
    if not isinstance(guard, Guard | None):
        raise InvalidInput(f"guard={guard!r} is not usable; expected fs.Guard(...), or None.")
    for i, callback in enumerate(callbacks):
        if not callable(callback):
            raise InvalidInput(f"callbacks[{i}]={callback!r} is not callable; expected a function of one event.")
    held_out = validate.test_of(test, federated)
    normalise = validate.normalise_of(normalise, chosen, model)
    with torch.enable_grad():
        probed = validate.try_out(model, loss, federated, held_out, normalise)
    task = Task(
        model=model,
        loss=probed.loss,
        reduction=probed.reduction,
        clients=probed.clients,
        weights=validate.weights_of(weights, federated.sizes),
        batch_size=batch_size,
        seed=seed,
        rounds=rounds,
        moving=probed.moving,
        buffers=buffers,
        random=probed.random,
        contrast=chosen.needs_features,
        full=chosen.exchanges_gradients or not chosen.gradient.batches,
        mixed=mixed,
        normalise=normalise,
        folder=None if when is None else when.path / "clients",
        keep=1 if when is None else when.keep,
    )
    steps = validate.steps_of(local_steps, epochs, batch_size, federated.sizes)
    options, cohorts = Options(weight_decay, clip_norm), sampler(cohort, len(federated))
    validate.quorum(guard or Guard(), cohorts, chosen.privacy is not None)
    validate.fits(chosen, task, options, cohorts, steps, tested=test is not None)
    facts: dict[str, Any] = {}
    if held_out is not None:
        facts["constant"] = losses.constant(probed.loss, held_out.take()[1])
    if where.leads and not normalise and not validate.is_normalised(model):
        warning, apart = validate.look_at_scales(federated, probed.inputs, chosen.privacy is not None)
        if warning:
            tell(warning)
        if apart and chosen.privacy is None:  # the clients' inputs are not released
            facts["scales"] = apart
    with nullcontext() if when is None else locked(when.path):
        replica = Replica(model, probed.moving)
        at_work = where.open(task, exchanges(chosen, options, normalise), chosen.memory)
        row, stats = replica.row(), replica.stats()
        parts = (chosen, options, task, at_work, cohorts, steps, held_out, row, stats)
        session = Session(*parts, evaluate_every, guard or Guard(), facts)
        return _rounds(session, rounds, when, callbacks) if where.leads else session.follow()


def _rounds(
    session: Session, rounds: int, when: Checkpoints | None, callbacks: Sequence[Callable[[Event], object]]
) -> Run:
    outcome = None
    try:
        if when is not None:
            newest(when.path, session.resume)
            prune(when)  # a crash may have come before it
            if session.round > rounds:
                raise InvalidInput(
                    f"rounds={rounds}, and the checkpoint in {when.path} has {session.round} rounds already; "
                    "ask for at least as many, or use another folder."
                )
        if session.task.normalise and session.scaling is None:
            with one_thread():
                session.measure()
        if session.round == 0:
            for callback in callbacks:
                callback(Event(0, session.x.clone(), {"round": 0}))
        clock = None if when is None else Clock(when, session.round)
        while session.round < rounds:
            with one_thread(), _saved_when_it_fails(session, clock):
                row = session.advance()
            if clock is not None and (clock.due(session.round) or session.round == rounds):
                clock.save(session)
            with _saved_when_it_fails(session, clock):
                for callback in callbacks:
                    callback(Event(session.round, session.x.clone(), row))
        outcome = snapshot.contents(session)
        return session.run()
    except Unsaved as error:
        error.run = session.run()
        raise
    finally:
        session.clients.close(outcome)


@contextmanager
def _saved_when_it_fails(session: Session, clock: Clock | None) -> Iterator[None]:
    """No finished round is lost, even if saves are rare; an interrupted one leaves no trace."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if clock is not None and session.whole and clock.round < session.round:
            clock.save(session)
        raise
