"""train(): from a model, a loss and federated data to a trained model.

train() checks its arguments and builds the setup. The loop around the rounds is _lead(): it holds the state, replaces it by
one assignment per round, saves it, calls the callbacks and closes the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler, sampler
from fedstride.client.chunk import Samples
from fedstride.client.exchange import exchanges
from fedstride.client.local import LocalOptions
from fedstride.core import losses
from fedstride.core.errors import InvalidInput, Unsaved, tell
from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.core.rows import Vec
from fedstride.data.federation import Federation, Lazy, federation
from fedstride.engine import Engine, Task
from fedstride.engine import engine as engine_of
from fedstride.engine.local import one_thread
from fedstride.training import validate
from fedstride.training.checkpoint import Checkpoints, locked
from fedstride.training.guard import Guard
from fedstride.training.history import Row
from fedstride.training.result import Run
from fedstride.training.resume import Recorder
from fedstride.training.retry import complete_round
from fedstride.training.scaling import measure_inputs
from fedstride.training.setup import Setup, task_of
from fedstride.training.state import TrainingState, initial_state, pack, run_of, unpack
from fedstride.training.validate import LocalSteps

Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
Callbacks = Sequence[Callable[["Event"], object]]


@dataclass(frozen=True)
class Event:
    """The argument of a callback, which is called before the first round (round 0) and after each round."""

    round: int
    x: Vec  # the training iterate, flat, in the order of the trainable model.parameters()
    metrics: Row


def train(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: str | Algorithm = "auto",
    *,
    rounds: Count,
    cohort: int | float | Sampler | None = None,
    local_steps: LocalSteps | None = None,
    epochs: Positive | None = None,
    batch_size: Count | None = None,
    weights: Literal["uniform", "samples"] | Sequence[float] = "uniform",
    test: Any = None,
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0,
    engine: str | Engine = "auto",
    checkpoint: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Callable[[Event], object]] = (),
    weight_decay: Annotated[float, Ge(0)] = 0.0,
    clip_norm: Positive | None = None,
    buffers: Literal["average", "local", "frozen"] = "average",
    device: str | torch.device | None = None,
    precision: str | None = None,
    readout: Literal["server", "last", "average"] | None = None,
    evaluate_every: Count = 1,
    guard: Guard | None = None,
    normalise: bool = False,
) -> Run:
    """Train a model on federated data.

    Args:
        model: any nn.Module; it is copied, never changed. Frozen parameters stay frozen.
        loss: a function (output, target) -> scalar over the batch, or a name such as "cross_entropy" or "mse".
        clients: one (inputs, targets) pair of tensors, or one torch Dataset, per client; or a Federation.
        algorithm: a name such as "fedexp", also with arguments, "fedavg(lr=0.1)"; fs.recipes.NAME(...); or
            fs.Algorithm(...).
        rounds: number of rounds, including those that a checkpoint has already.
        cohort: clients per round: None = all, a number, a fraction, or a sampler such as fs.Bernoulli(0.1).
        local_steps: local steps per round: a number, one per client, or a function (round, client). Default: one epoch.
        epochs: instead of local_steps: passes over the client's data, which may be fractional.
        batch_size: samples per step; None = the full batch.
        weights: weights of the clients in every mean: "uniform", "samples", or one number per client.
        test: (inputs, targets) to evaluate the returned model on after each round.
        seed: seed of all random numbers.
        engine: "auto", "local", "torchrun" (see docs/engines.md), or an engine such as fs.engine.Local(workers=2). The
            choice is in run.engine.
        checkpoint: a folder; the run is saved there after each round, and resumed from there when called again. Use
            fs.Checkpoints(folder, every=..., seconds=..., keep=...) to save less often, or to keep more files.
        callbacks: functions of an Event with .round, .x and .metrics.
        weight_decay: added to every local loss.
        clip_norm: largest norm of a local gradient, before any drift correction.
        buffers: BatchNorm's statistics: "average" over clients, "local" to each client, or "frozen". With "local" the
            returned model keeps the initial ones.
        device: where to train; None = where the model is.
        precision: None = the model's own; "bfloat16" = mixed precision in forward and backward passes. On a CPU it is
            tried in a child process first (2 seconds).
        readout: parameters that are evaluated and returned: None = the algorithm's choice, "server", "last" or "average".
            "last" is the last iterate; "average" is a mean of the iterates in which later ones weigh more: it reduces
            noise at no cost; "server" is the server rule's choice.
        evaluate_every: rounds between evaluations on `test`. The last round is always evaluated.
        guard: quorum, retries and limits, for lost clients and exploding steps: fs.Guard(...).
        normalise: True = scale every input feature to mean 0 and deviation 1 over all samples of the federation (columns,
            or the channels of images). Before the first round, every client is asked for sums over its inputs. The
            returned model takes raw inputs.

    Returns:
        The Run: run.model, run.x and run.history.

    Raises:
        InvalidInput: an argument is invalid, or the checkpoint is another run's.
        Refused: parts of the algorithm, or arguments, that make no sense together.
        Diverged: the model became NaN or infinite, or exploded; error.run has the last good one.
        TooFew: too few clients answered, in all attempts at a round; error.run has the run so far.
        Unsaved: a checkpoint could not be written; error.run has the run so far.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", [(inputs, targets)], rounds=10)
        >>> run.history["train_loss"]
    """
    chosen = validate.algorithm_of(algorithm)
    if readout is not None:
        chosen = replace(chosen, readout=readout)
    federated = federation(clients)
    model = _placed(model, device)
    mixed = validate.mixed_of(precision, model)
    rounds, seed = validate.whole("rounds", rounds), validate.whole("seed", seed, least=0)
    evaluate_every = validate.whole("evaluate_every", evaluate_every)
    batch_size = None if batch_size is None else validate.whole("batch_size", batch_size)
    _check_callbacks(callbacks)
    where = engine_of(engine)
    when = checkpoint if isinstance(checkpoint, Checkpoints | None) else Checkpoints(checkpoint)
    when = when if where.leads else None  # another process writes
    guard = _guard(guard)
    held_out = validate.test_of(test, federated)
    normalise = validate.normalise_of(normalise, chosen, model)
    with torch.enable_grad():
        probed = validate.try_out(model, loss, federated, held_out, normalise)
    by_client = validate.weights_of(weights, federated.sizes)
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": seed,
        "rounds": rounds,
        "buffers": buffers,
        "normalise": normalise,
    }
    given |= {"model": model, "loss": probed.loss, "clients": probed.clients, "weights": by_client, "mixed": mixed}
    kept = {} if when is None else {"folder": when.path / "clients", "keep": when.keep}
    task = task_of(chosen, probed, {**given, **kept})
    steps = validate.steps_of(local_steps, epochs, batch_size, federated.sizes)
    options, cohorts = LocalOptions(weight_decay, clip_norm), sampler(cohort, len(federated))
    validate.quorum(guard, cohorts, chosen.privacy is not None)
    validate.fits(chosen, task, options, cohorts, steps, tested=test is not None)
    facts = _facts(chosen, task, federated, probed.inputs, held_out, tell_user=where.leads)
    with nullcontext() if when is None else locked(when.path):
        at_work = where.open(task, exchanges(chosen, options, normalise), chosen.memory)
        setup = Setup(chosen, options, task, at_work, cohorts, steps, held_out, evaluate_every, guard, facts)
        replica = Replica(model, probed.moving)
        start = initial_state(chosen, replica.row(), replica.stats())
        return _lead(setup, start, when, callbacks) if where.leads else _follow(setup, start)


def _placed(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    """Return the model, or a copy of it on the device."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model: got {type(model).__name__}; expected a torch.nn.Module.")
    if device is None:
        return model
    try:
        copied = copy.deepcopy(model).to(device)
        torch.ones((), device=device).item()  # `meta` computes nothing
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidInput(f"device={device!r} is invalid: {error}") from error
    return copied


def _check_callbacks(callbacks: Callbacks) -> None:
    if not isinstance(callbacks, list | tuple):
        raise InvalidInput(f"callbacks={callbacks!r} is invalid: expected a list of functions of one event.")
    for i, callback in enumerate(callbacks):
        if not callable(callback):
            raise InvalidInput(f"callbacks[{i}]={callback!r} is not callable; expected a function of one event.")


def _guard(guard: Guard | None) -> Guard:
    if not isinstance(guard, Guard | None):
        raise InvalidInput(f"guard={guard!r} is invalid: expected fs.Guard(...), or None.")
    return guard or Guard()


def _facts(
    algorithm: Algorithm,
    task: Task,
    federated: Federation | Lazy,
    inputs: Any,
    test: Samples | None,
    tell_user: bool,
) -> dict[str, Any]:
    """Return facts about the data for run.facts; warn about inputs of very different scales."""
    facts: dict[str, Any] = {}
    if test is not None:
        facts["constant"] = losses.constant(task.loss, test.take()[1])
    if tell_user and not task.normalise and not validate.is_normalised(task.model):
        private = algorithm.privacy is not None
        warning, apart = validate.look_at_scales(federated, inputs, private)
        if warning:
            tell(warning)
        if apart and not private:  # the clients' inputs are not released
            facts["scales"] = apart
    return facts


def _lead(setup: Setup, state: TrainingState, when: Checkpoints | None, callbacks: Callbacks) -> Run:
    """Run the rounds, in the process that holds the state."""
    recorder, rounds, outcome = None if when is None else Recorder(setup, when, state), setup.task.rounds, None
    try:
        if recorder is not None:
            state = recorder.resume()
            if state.round > rounds:
                raise InvalidInput(
                    f"rounds={rounds}, and the checkpoint in {recorder.when.path} has {state.round} rounds already; "
                    "ask for at least as many, or use another folder."
                )
        if setup.task.normalise and state.scaling is None:
            with one_thread():
                state = measure_inputs(setup, state)
        if state.round == 0:
            for callback in callbacks:
                callback(Event(0, state.x.clone(), {"round": 0}))
        while state.round < rounds:
            with one_thread():
                with _saved_when_it_fails(recorder, state):
                    after, row = complete_round(setup, state)
                # Not under the save: a failure from here to the assignment may leave the clients' memory one round
                # ahead of the state, and the two must not be saved together.
                setup.clients.commit()
                state = after
            if recorder is not None and recorder.due(state):
                recorder.save(state)
            with _saved_when_it_fails(recorder, state):
                for callback in callbacks:
                    callback(Event(state.round, state.x.clone(), row))
        outcome = pack(state)
        return run_of(setup, state)
    except Unsaved as error:
        error.run = run_of(setup, state)
        raise
    finally:
        setup.clients.close(outcome)


def _follow(setup: Setup, state: TrainingState) -> Run:
    """Work for the process that leads until the run is over, and return the same run."""
    tensors, facts = setup.clients.follow(setup.test)  # type: ignore[attr-defined]
    return run_of(setup, unpack(state, tensors, facts, "the process of rank 0"))


@contextmanager
def _saved_when_it_fails(recorder: Recorder | None, state: TrainingState) -> Iterator[None]:
    """Save the finished rounds on an error or an interrupt, even if saves are rare."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if recorder is not None and recorder.lacks(state):
            recorder.save(state)
        raise
