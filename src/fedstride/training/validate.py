"""Checks of the arguments of a run, before any work is done. Model, loss and data are tried out in probe.py."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import nn

from fedstride.algorithm import Algorithm, text
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Sampler, Uniform
from fedstride.client.gradient import Estimator
from fedstride.client.local import LocalOptions
from fedstride.core.batch import targets_of
from fedstride.core.capabilities import declared
from fedstride.core.errors import InvalidInput, Refused, nearest, not_negative, positive
from fedstride.core.model import Replica, has_batch_statistics, probe
from fedstride.core.normalise import Normalise
from fedstride.core.scores import Metric, computed, resolve
from fedstride.engine import Task, processor
from fedstride.training.guard import Guard
from fedstride.training.history import COLUMNS, MEDIAN_LOSS, NOT_NUMBERS, OF_CLIENTS
from fedstride.training.personal import check_tests
from fedstride.training.probe import Probed, found_elsewhere, tests_of, try_out
from fedstride.training.scales import is_normalised, judge_inputs, look_at_scales
from fedstride.training.stop import EarlyStopping

__all__ = [
    "algorithm_of",
    "fits",
    "is_normalised",
    "judge_inputs",
    "look_at_scales",
    "metrics_of",
    "mixed_of",
    "normalise_of",
    "quorum",
    "steps_of",
    "stop_of",
    "tests_of",
    "try_metrics",
    "try_out",
    "weights_of",
    "whole",
]
BUFFERS = ("average", "local", "frozen")
LocalSteps = Annotated[int, Ge(1)] | Sequence[int] | Callable[[int, int], int]


def algorithm_of(choice: str | Algorithm) -> Algorithm:
    if isinstance(choice, str):
        return text.algorithm_of(choice)
    if isinstance(choice, Algorithm):
        return choice
    raise InvalidInput(
        f"algorithm={choice!r} is invalid: expected a name or text such as 'fedavg(lr=0.1)', fs.recipes.NAME(...) or "
        "fs.Algorithm(...)."
    )


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int; accept whole numbers of numpy and torch, but not 3.0 or True."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidInput(f"{name}={value!r} is invalid: expected a whole number >= {least}.")
    return number


def steps_of(
    local_steps: LocalSteps | None, epochs: float | None, batch_size: int | None, sizes: Sequence[int]
) -> Callable[[int, int], int]:
    """Return a function (round, client) -> number of local steps."""
    if local_steps is not None and epochs is not None:
        raise InvalidInput(
            f"local_steps={local_steps!r} and epochs={epochs!r} both set the number of local steps; give one of them."
        )
    if local_steps is None:
        epochs = 1.0 if epochs is None else epochs
        positive("train", epochs=epochs)
        per_epoch = [-(-n // min(n, batch_size or n)) for n in sizes]
        counts = [max(1, math.ceil(epochs * m - 1e-9)) for m in per_epoch]  # 0.28 * 25 is 7.000000000000001
        return lambda round, client: counts[client]
    if callable(local_steps):
        ask = local_steps
        return lambda round, client: whole(f"local_steps({round}, {client})", ask(round, client))
    if not isinstance(local_steps, Collection) or getattr(local_steps, "shape", None) == ():
        same = whole("local_steps", local_steps)
        return lambda round, client: same
    if len(local_steps) != len(sizes):
        raise InvalidInput(
            f"local_steps={local_steps!r} is invalid: expected a whole number, one per client ({len(sizes)}), "
            "or a function (round, client) -> number."
        )
    each = [whole(f"local_steps[{i}]", v) for i, v in enumerate(local_steps)]
    return lambda round, client: each[client]


def weights_of(weights: str | Sequence[float] | None, sizes: Sequence[int]) -> list[float]:
    weights = "uniform" if weights is None else weights
    if isinstance(weights, str):
        known = {"uniform": [1.0] * len(sizes), "samples": [float(n) for n in sizes]}
        known["sample"] = known["samples"]
        if weights not in known:
            raise InvalidInput(f"weights={weights!r} is unknown; {nearest(weights, ('uniform', 'samples'))}")
        return known[weights]
    try:
        values = [float(w) for w in weights]
    except (TypeError, ValueError):
        values = []
    if len(values) != len(sizes) or not all(0 < w < float("inf") for w in values):
        raise InvalidInput(
            f"weights: got {len(values)} numbers; expected one positive number per client ({len(sizes)}), "
            '"uniform" or "samples".'
        )
    return values


def metrics_of(metrics: Any, tested: bool) -> dict[str, Metric]:
    """Return the metrics by name, after checking that there is something to evaluate them on."""
    found = resolve(metrics)
    for name in found:
        if name in (*COLUMNS, *OF_CLIENTS):
            raise InvalidInput(f"metrics: {name!r} is a column of the history already; choose another name.")
    if found and not tested:
        raise InvalidInput(
            f"metrics: {', '.join(found)} without test=; metrics are evaluated on the test set. Give one."
        )
    return found


def try_metrics(metrics: Mapping[str, Metric], probed: Probed) -> None:
    """Evaluate the metrics on a few samples, to refuse those that fail before any work is done."""
    if metrics and probed.output is not None:
        with torch.no_grad():
            computed(metrics, probed.output, targets_of(probed.targets))


def stop_of(stop: Any, metrics: Collection[str], tests: int, callbacks: bool) -> None:
    """Check that the metric of early stopping will be there, and will be a number."""
    if stop is None:
        return
    if not isinstance(stop, EarlyStopping):
        raise InvalidInput(f"stop={stop!r} is invalid: expected fs.EarlyStopping(...), or None.")
    known = [
        "train_loss",
        MEDIAN_LOSS,
        *(["test_loss", "test_accuracy", *metrics] if tests else []),
        *(OF_CLIENTS if tests > 1 else ()),
    ]
    if stop.metric in ("test_loss", "test_accuracy") and not tests:
        raise InvalidInput(f"stop: metric={stop.metric!r} needs a test set; give test=, or use metric='train_loss'.")
    if stop.metric in OF_CLIENTS and tests < 2:
        raise InvalidInput(
            f"stop: metric={stop.metric!r} needs a list of test sets, one for each client; give it as test=."
        )
    if stop.metric in NOT_NUMBERS:
        raise InvalidInput(f"stop: metric={stop.metric!r} is not a number; {nearest(stop.metric, known)}")
    if stop.metric not in known and stop.metric not in COLUMNS and not callbacks:
        raise InvalidInput(f"stop: metric={stop.metric!r} does not exist; {nearest(stop.metric, known)}")


def normalise_of(normalise: Any, a: Algorithm, model: nn.Module) -> Normalise | None:
    if not isinstance(normalise, bool | None) and normalise != "scale":
        raise InvalidInput(f'normalise={normalise!r} is invalid: expected True, False, "scale" or None.')
    if normalise and is_normalised(model):
        raise Refused(
            f"normalise={normalise!r} with a model that normalises its inputs already: the run.model of such a run. Use "
            "normalise=False to train it further, or pass run.model.model to measure the inputs again."
        )
    if normalise and a.privacy is not None:
        raise Refused(
            f"normalise={normalise!r} with Privacy: sums of raw inputs are unbounded, so no noise can hide a client. Scale the inputs "
            "by constants that are known beforehand, such as the range of each column."
        )
    chosen: Normalise | None = normalise
    return chosen


def fits(
    a: Algorithm, task: Task, options: LocalOptions, cohorts: Sampler, steps: Callable[[int, int], int], tested: bool
) -> None:
    """Refuse arguments that make no sense for this algorithm with this model and data."""
    _not_too_large(a, Replica(task.model).dtype, "algorithm")
    _not_too_large(options, Replica(task.model).dtype, "train")
    not_negative("train", weight_decay=options.weight_decay)
    if options.clip_norm is not None:
        positive("train", clip_norm=options.clip_norm)
    if task.buffers not in BUFFERS:
        raise InvalidInput(f"buffers={task.buffers!r} is unknown; {nearest(str(task.buffers), BUFFERS)}")
    check_tests(task)
    if task.buffers == "local" and task.moving and tested and task.personal is None:
        raise Refused(
            'buffers="local" with test=: the statistics stay with the clients, so the returned model has none to be tested '
            'with. Leave test out, or use buffers="average".'
        )
    if options.clip_norm is not None and declared(a.step, "searches"):
        raise Refused(
            f"{type(a.step).__name__} with clip_norm: a clipped gradient breaks the search's promise of decrease. Drop one of them."
        )
    if a.needs_features and not callable(getattr(task.model, "features", None)):
        raise Refused(
            f"{type(a.objective).__name__} needs a model with a `features(inputs)` method, and {type(task.model).__name__} has none. "
            "Give it one that returns the representation before the last layer."
        )
    if declared(a.objective, "needs_everyone") and cohorts != Uniform(len(task.clients)):
        raise Refused(
            f"{declared(a.objective, 'half_of') or type(a.objective).__name__} with partial participation: x is the mean of the "
            "clients' points only when all clients take part. Use cohort=None."
        )
    if task.batch_size is not None and not a.gradient.batches:
        raise Refused(
            f"batch_size={task.batch_size} with {type(a.gradient).__name__} gradients, which start from the full batch. "
            "Leave batch_size out (IAG: use block=)."
        )
    counts = a.aggregate is not None and not declared(a.aggregate, "changes_frozen")
    if counts and len(set(task.weights)) > 1:
        raise Refused(
            f'{type(a.aggregate).__name__} with weights: it counts clients, not samples. Use weights="uniform".'
        )
    if a.privacy is not None:
        _private(a.privacy, task, cohorts)
    if declared(a.gradient, "by_components"):
        _components(a.gradient, task, steps)
    if has_batch_statistics(task.model) and task.buffers != "frozen" and found_elsewhere(task.clients) is None:
        _batches_of_one(task, steps)


def _not_too_large(part: Any, dtype: torch.dtype, at: str) -> None:
    """Refuse numbers beyond the range of the model's type."""
    if is_dataclass(part):
        for field in fields(part):
            _not_too_large(getattr(part, field.name), dtype, f"{at}.{field.name}")
    elif isinstance(part, int | float) and torch.finfo(dtype).max < abs(part) < math.inf:
        raise InvalidInput(f"{at}={part!r} is invalid: expected a number that {dtype} can hold.")


def _private(privacy: Privacy, task: Task, cohorts: Sampler) -> None:
    if len(set(task.weights)) > 1:
        raise Refused(
            "Privacy with weights: one client more or less must change the sum by no more than clip. Use uniform."
        )
    if task.moving and task.buffers == "average":
        raise Refused(
            'Privacy with buffers="average": BatchNorm\'s statistics have no bound. Use buffers="frozen" or GroupNorm.'
        )
    if math.isinf(privacy.epsilon(cohorts, len(task.clients), task.rounds)):  # refuses what it cannot account for
        raise Refused(f"Privacy over {task.rounds} rounds: epsilon would be infinite. Use fewer rounds, or more noise.")


def _batches_of_one(task: Task, steps: Callable[[int, int], int]) -> None:
    for client, n in enumerate(task.clients.sizes):
        b = min(n, task.batch_size or n)
        smallest = n % b if n % b and steps(0, client) >= n / b else b
        if smallest > 1:
            continue
        inputs = task.clients[client].take(torch.arange(1, device="cpu"))[0].to(next(task.model.parameters()).device)
        try:
            probe(task.model, inputs)
        except ValueError as error:
            raise Refused(
                f"BatchNorm with a batch of one sample, which client {client} meets ({n} samples, batch_size={task.batch_size}): "
                f'{error}. Choose another batch_size, buffers="frozen", or GroupNorm.'
            ) from error
        return


def _components(rule: Estimator, task: Task, steps: Callable[[int, int], int]) -> None:
    name = type(rule).__name__
    if task.random:
        raise Refused(
            f"{name} with dropout (or another random layer): a component's old and new gradient would differ by the mask, "
            "not by the model. Remove the random layers, or use fedlin."
        )
    if has_batch_statistics(task.model) and task.buffers != "frozen":
        raise Refused(
            f"{name} with BatchNorm: f_i is not a sum of components when samples share statistics. "
            'Use buffers="frozen" or GroupNorm.'
        )
    if task.reduction is None:
        raise Refused(
            f"{name} needs a loss that is a mean or a sum over the samples, and this one is neither. Write it as a mean."
        )
    check_memory = getattr(rule, "check_memory", None)
    if check_memory is None:
        return
    row = Replica(task.model).row()
    for client, n in enumerate(task.clients.sizes):
        check_memory(client, n, steps(0, client), row.nbytes)


def quorum(guard: Guard, cohorts: Sampler, private: bool) -> None:
    most = getattr(cohorts, "size", None)
    if private and isinstance(guard.quorum, int) and most is None:
        raise Refused(
            f"Privacy with quorum={guard.quorum} and {cohorts}: whether a round counts would tell how many there were. "
            "Use a share, as in Guard(quorum=0.5)."
        )
    if isinstance(most, int) and guard.least(most) > most:
        raise InvalidInput(
            f"Guard: quorum={guard.quorum} is invalid with {most} clients per round: expected at most {most}."
        )


def mixed_of(precision: str | None, model: nn.Module) -> bool:
    """Whether to use mixed precision. Call this before anything computes: see engine/processor.py."""
    if precision not in (None, "bfloat16"):
        raise InvalidInput(
            f'precision={precision!r} is unknown; expected None, or "bfloat16" for mixed precision. '
            "For another type of parameters convert the model: model.double()."
        )
    if precision is None:
        return False
    replica = Replica(model)
    if replica.dtype != torch.float32:
        raise Refused(f"precision={precision!r} with a model in {replica.dtype}: only float32 can be mixed with it.")
    if replica.device.type == "cpu":
        try:
            processor.bfloat16_limit()
        except processor.Unsupported as error:
            raise Refused(f"precision={precision!r}: {error} Or leave precision out.") from error
    return True
