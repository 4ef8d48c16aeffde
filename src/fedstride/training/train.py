"""fs.train(): check the arguments, open the engine, and run the rounds."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler, sampler
from fedstride.client.exchange import exchanges
from fedstride.client.local import LocalOptions
from fedstride.core import losses
from fedstride.core.batch import targets_of
from fedstride.core.errors import InvalidInput, tell
from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.data.clients import Collate
from fedstride.data.federation import Federation, Lazy, federation
from fedstride.engine import Engine, Task
from fedstride.engine import engine as engine_of
from fedstride.training import validate
from fedstride.training.checkpoint import Checkpoints, locked
from fedstride.training.choices import choices, surprises
from fedstride.training.frozen import facts_of, with_changed_weights
from fedstride.training.guard import Guard
from fedstride.training.interval import interval_of
from fedstride.training.personal import personal_of
from fedstride.training.probe import Probed
from fedstride.training.progress import shown_in_python
from fedstride.training.result import Run
from fedstride.training.rounds import Event, check_callbacks, follow, lead
from fedstride.training.setup import Setup, task_of
from fedstride.training.state import initial_state
from fedstride.training.stop import EarlyStopping
from fedstride.training.validate import LocalSteps

log = logging.getLogger("fedstride")
OF_THE_CALLER = ("test", "engine", "checkpoint", "callbacks", "progress")  # depend on where a run takes place
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]


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
    weights: Literal["uniform", "samples"] | Sequence[float] | None = None,
    test: Any = None,
    metrics: Mapping[str, Any] | Sequence[str] | None = None,
    stop: EarlyStopping | None = None,
    collate: Collate | None = None,
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0,
    engine: str | Engine = "auto",
    checkpoint: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Callable[[Event], object]] = (),
    weight_decay: Annotated[float, Ge(0)] = 0.0,
    clip_norm: Positive | None = None,
    buffers: Literal["average", "local", "frozen"] = "average",
    personal: str | Sequence[str] | None = None,
    personal_steps: Annotated[int, Ge(0)] = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    readout: Literal["server", "last", "average"] | None = None,
    evaluate_every: Count | Literal["auto"] = 1,
    guard: Guard | None = None,
    normalise: bool | Literal["scale"] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train a model on federated data.

    Args:
        model: any nn.Module; it is copied, never changed. Frozen parameters stay frozen.
        loss: a name such as "cross_entropy" or "mse", or a function (output, target) -> scalar over the batch. A function
            (output, batch), with that name for its second parameter, gets the whole batch. "model" = the model returns
            its own loss, as .loss, ["loss"] or a scalar.
        clients: one element per client, or a dict of them by name: (inputs, targets), or another structure of tensors,
            arrays or pandas columns, such as a dict; a torch Dataset, a list of items, or a DataLoader. Or a Federation.
            The model is called as model(tensor), model(*tuple) or model(**dict); of a dict it gets the entries that its
            forward method names, without the targets ("labels", "label", "targets", "target" or "y").
        algorithm: a name such as "fedexp", also with arguments, "fedavg(lr=0.1)"; fs.recipes.NAME(...); or
            fs.Algorithm(...).
        rounds: number of rounds, including those that a checkpoint has already.
        cohort: clients per round: None = all, a number, a fraction, or a sampler such as fs.Bernoulli(0.1).
        local_steps: local steps per round: a number, one per client, or a function (round, client). Default: one epoch.
        epochs: instead of local_steps: passes over the client's data, which may be fractional.
        batch_size: samples per step; None = the full batch.
        weights: weights of the clients in every mean: None or "uniform", "samples", or one number per client. With None, there
            is a warning if the clients' sizes differ by more than a factor of 10.
        test: samples like those of a client, to evaluate the returned model on after each round; or a list of such, one
            for each client.
        metrics: functions (outputs, targets) -> number, by name, or a list of names from fs.metrics. They are evaluated
            on `test`, and are columns of the history. Objects of torchmetrics work too.
        stop: fs.EarlyStopping(...), to stop when a metric no longer improves, and to keep the best model.
        collate: makes a batch of a list of items of a Dataset, as for a DataLoader; for items of different lengths.
        seed: seed of all random numbers.
        engine: "auto", "local", "torchrun" (see docs/engines.md), or an engine such as fs.engine.Local(workers=2). The
            choice is in run.engine.
        checkpoint: a folder; the run is saved there after each round, and resumed from there when called again. Use
            fs.Checkpoints(folder, every=..., seconds=..., keep=...) to save less often, or to keep more files.
        callbacks: functions of an Event with .round, .x, .metrics and .model. One that returns fs.STOP ends the run.
        weight_decay: added to every local loss.
        clip_norm: largest norm of a local gradient, before any drift correction.
        buffers: BatchNorm's statistics: "average" over clients, "local" to each client, or "frozen". With "local" the
            returned model keeps the initial ones.
        personal: patterns of the names of parameters that stay with their client, such as ["head.*"] (FedPer). They are not
            sent; run.personal has each client's model. run.model keeps their initial values.
        personal_steps: local steps on the personal parameters alone, before `local_steps` on the shared ones alone (FedRep).
            0 = all are trained together.
        device: where to train; None = where the model is.
        precision: None = the model's own; "bfloat16" = mixed precision in forward and backward passes. On a CPU it is
            tried in a child process first (2 seconds).
        readout: parameters that are evaluated and returned: None = the algorithm's choice, "server", "last" or "average".
            "last" is the last iterate; "average" is a mean of the iterates in which later ones weigh more: it reduces
            noise at no cost; "server" is the server rule's choice.
        evaluate_every: rounds between evaluations on `test`, or "auto". The last round is always evaluated. "auto" = so many
            that evaluations take at most a tenth of the local work, by a fixed rule from the numbers of samples; the
            choice is in run.settings.
        guard: quorum, retries and limits, for lost clients and exploding steps: fs.Guard(...).
        normalise: True = scale every input feature to mean 0 and deviation 1 over all samples of the federation (columns,
            or the channels of images). "scale" = divide all inputs by one number, their root mean square. Before the
            first round, every client is asked for sums over its inputs. The returned model takes raw inputs: it is a
            wrapper of the given one. None = "scale" for `auto` if the inputs are very small or large (above 8 or below
            1/8) and the data is on this machine, else False.
        progress: True = show a progress bar; None = only on a terminal or in a notebook.

    Returns:
        The Run: run.model, run.x, run.history, run.best and run.personal. After Ctrl-C it is the run so far: run.ended is "interrupted".

    Raises:
        InvalidInput: an argument is invalid, or the checkpoint is another run's.
        Refused: parts of the algorithm, or arguments, that make no sense together.
        Diverged: the model became NaN or infinite, or exploded; error.run has the last good one.
        TooFew: too few clients answered, in all attempts at a round; error.run has the run so far.
        Unsaved: a checkpoint could not be written; error.run has the run so far.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", [(inputs, targets)], rounds=10)
        >>> len(run.history["train_loss"])
        10
    """
    arguments = {name: value for name, value in locals().items() if name not in OF_THE_CALLER}
    chosen = validate.algorithm_of(algorithm)
    if readout is not None:
        chosen = replace(chosen, readout=readout)
    federated = federation(clients, collate)
    model = _placed(model, device)
    mixed = validate.mixed_of(precision, model)
    rounds, seed = validate.whole("rounds", rounds), validate.whole("seed", seed, least=0)
    batch_size = None if batch_size is None else validate.whole("batch_size", batch_size)
    check_callbacks(callbacks)
    where = engine_of(engine)
    when = checkpoint if isinstance(checkpoint, Checkpoints | None) else Checkpoints(checkpoint)
    when = when if where.leads else None  # another process writes
    guard = _guard(guard)
    tests = validate.tests_of(test, federated, collate)
    wanted = validate.metrics_of(metrics, tested=bool(tests))
    validate.stop_of(stop, wanted, tests=len(tests), callbacks=bool(callbacks))
    normalise = validate.normalise_of(normalise, chosen, model)
    with torch.enable_grad():
        probed = validate.try_out(model, loss, federated, tests, normalise or False)
        validate.try_metrics(wanted, probed)
    normalise, warning, apart = validate.judge_inputs(normalise, chosen, model, federated, probed)
    chosen, probed, policy = with_changed_weights(chosen, probed, model, buffers)
    given: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "rounds": rounds, "buffers": policy}
    given |= {"model": model, "loss": probed.loss, "clients": probed.clients, "normalise": normalise, "mixed": mixed}
    given |= {"weights": validate.weights_of(weights, federated.sizes), "metrics": wanted, "plain": probed.plain}
    split = personal_of(personal, personal_steps, chosen, model, stop)
    given |= {"personal": split, "tests": probed.tests}
    kept = {} if when is None else {"folder": when.path / "clients", "keep": when.keep}
    task = task_of(chosen, probed, {**given, **kept})
    steps = validate.steps_of(local_steps, epochs, batch_size, federated.sizes)
    options, cohorts = LocalOptions(weight_decay, clip_norm), sampler(cohort, len(federated))
    validate.quorum(guard, cohorts, chosen.privacy is not None)
    validate.fits(chosen, task, options, cohorts, steps, tested=bool(tests))
    every = interval_of(evaluate_every, chosen, task, cohorts, steps, probed.tests)
    facts = _facts(chosen, task, federated, probed) | ({"scales": apart} if apart else {})
    if where.leads:
        for odd in filter(None, [warning, *surprises(arguments, chosen, federated.sizes)]):
            tell(odd)
    with nullcontext() if when is None else locked(when.path):
        at_work = where.open(task, exchanges(chosen, options, normalise), lambda x: chosen.memory(x, split))
        rest = (probed.tests, every, guard, stop, facts, arguments)
        setup = Setup(chosen, options, task, at_work, cohorts, steps, *rest)
        replica = Replica(model, probed.moving)
        start = initial_state(chosen, replica.row(), replica.stats())
        if not where.leads:
            return follow(setup, start)
        name, what = chosen.name or type(chosen.step).__name__, choices(setup)
        log.info("%s: %s", name, what)
        with shown_in_python(progress, name, rounds, what) as show:
            return lead(setup, start, when, [*callbacks, *show])


def _placed(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    """Return the model, or a copy of it on the device."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InvalidInput(f"model: got {what}; expected a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidInput(
            "model: got a TorchScript module, which cannot be trained; expected the module it was made of."
        )
    if device is None:
        return model
    try:
        copied = copy.deepcopy(model).to(device)
        torch.ones((), device=device).item()  # `meta` computes nothing
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidInput(f"device={device!r} is invalid: {error}") from error
    return copied


def _guard(guard: Guard | None) -> Guard:
    if not isinstance(guard, Guard | None):
        raise InvalidInput(f"guard={guard!r} is invalid: expected fs.Guard(...), or None.")
    return guard or Guard()


def _facts(algorithm: Algorithm, task: Task, federated: Federation | Lazy, probed: Probed) -> dict[str, Any]:
    """Return facts about data and model for run.facts."""
    facts: dict[str, Any] = facts_of(task.model, algorithm)
    targets = targets_of(probed.tests[0].take()[1]) if len(probed.tests) == 1 else None
    if isinstance(targets, torch.Tensor):
        facts["constant"] = losses.constant(losses.inner(task.loss), targets)
    facts |= {key: list(names) for key in ("names", "classes") if (names := getattr(federated, key))}
    return facts
