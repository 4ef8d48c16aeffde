"""Everything that can be wrong is found here, before any work is done."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm, recipes
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Sampler, Uniform
from fedstride.client.gradient import IAG
from fedstride.client.local import Options
from fedstride.client.objective import FedSplitProx, Moon
from fedstride.client.step import Armijo
from fedstride.core import losses
from fedstride.core.errors import InvalidInput, Refused, nearest, not_negative, positive, tell
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, has_batch_statistics, probe
from fedstride.core.normalise import Normalised, features_of, scaled_by_itself
from fedstride.data.federation import Client, Federation, Found, Lazy, TensorClient, finite, pair
from fedstride.engine import Task, processor
from fedstride.training.guard import Guard

BUFFERS = ("average", "local", "frozen")
LocalSteps = int | Sequence[int] | Callable[[int, int], int]
PROBE = 8  # samples of the largest client that try out model and loss
FAR = 100  # how far the scales of features may differ, and a mean exceed its deviation
LOOK = 500  # samples of a client, at most, whose scales are looked at ...
CLIENTS = 8  # ... so many clients ...
NUMBERS = 2**21  # ... and numbers of all of them together


def algorithm_of(choice: str | Algorithm) -> Algorithm:
    if isinstance(choice, str):
        return recipes.get(choice)
    if isinstance(choice, Algorithm):
        return choice
    raise InvalidInput(f"algorithm={choice!r} is invalid: expected a name, fs.recipes.NAME(...) or fs.Algorithm(...).")


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value as an int; numpy's and torch's whole numbers count, 3.0 and True do not."""
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
    """A function (round, client) -> number of local steps."""
    if local_steps is not None and epochs is not None:
        raise InvalidInput(
            f"local_steps={local_steps!r} and epochs={epochs!r} say the same thing twice; give one of them."
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


def weights_of(weights: str | Sequence[float], sizes: Sequence[int]) -> list[float]:
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


@dataclass(frozen=True)
class Probed:
    """What one forward pass tells about model and loss; and the clients, whose targets fit both."""

    clients: Federation | Lazy
    loss: Loss
    reduction: str | None
    moving: tuple[str, ...]
    random: bool
    features: int  # of an input: see core/normalise.py
    inputs: Tensor | None = None  # a few, where the data is here


def try_out(
    model: nn.Module, loss: str | Loss, clients: Federation | Lazy, test: Client | None, normalise: bool = False
) -> Probed:
    """normalise: the model will see inputs that are normalised."""
    replica = Replica(model)
    criterion = losses.resolve(loss)
    if not bool(torch.isfinite(replica.row()).all()):
        raise InvalidInput("model: its parameters hold NaN or infinite values; expected finite ones to start from.")
    found = _found(clients)
    if found is None:
        largest = max(range(len(clients)), key=clients.sizes.__getitem__)  # BatchNorm needs more than one sample
        where, samples = f"clients[{largest}]", clients[largest]
    elif test is not None:
        where, samples = "test", test
    else:
        return Probed(clients, criterion, found.reduction, found.moving, found.random, found.features)
    inputs, targets = samples.take(torch.arange(min(len(samples), PROBE), device="cpu"))
    _dtypes(where, inputs, targets, replica.dtype)
    if test is not None:
        _dtypes("test", *test.take(), replica.dtype)
    if normalise and not inputs.is_floating_point():
        raise Refused(
            f"normalise=True with inputs of type {inputs.dtype}: whole numbers such as token ids name things, and have no "
            "mean. Use normalise=False, or convert quantities with inputs.float()."
        )
    features = features_of(inputs.shape[1:])
    raw = None if found is not None else samples.inputs[:LOOK] if isinstance(samples, TensorClient) else inputs
    inputs, targets = inputs.to(replica.device), targets.to(replica.device)
    inputs = scaled_by_itself(inputs) if normalise else inputs
    try:
        output, moving, random = probe(model, inputs)
    except Exception as error:
        raise InvalidInput(
            f"model: it fails on {where}'s inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise InvalidInput(f"model: it returns {type(output).__name__}; expected one tensor.")
    if not output.requires_grad:
        raise InvalidInput("model: its output has no gradient; expected one that depends on its trainable parameters.")
    output = output.detach()

    def meaningful(name: str, inputs: Tensor, targets: Tensor) -> None:
        _values(criterion, name, targets)
        _labels(criterion, output, name, targets)

    checked = clients.checked(meaningful) if found is None else clients
    meaningful(where, inputs, targets)  # loaded before there was a check
    if test is not None:
        meaningful("test", *test.take())
    _scalar(criterion, output, targets)
    if found is None:
        found = Found(losses.reduction(criterion, output, targets), moving, random, features)
    return Probed(checked, criterion, found.reduction, found.moving, found.random, found.features, raw)


def normalise_of(normalise: Any, a: Algorithm, model: nn.Module) -> bool:
    if not isinstance(normalise, bool):
        raise InvalidInput(f"normalise={normalise!r} is invalid: expected True or False.")
    if normalise and is_normalised(model):
        raise Refused(
            "normalise=True with a model that normalises its inputs already: the run.model of such a run. Use "
            "normalise=False to train it further, or pass run.model.model to measure the inputs anew."
        )
    if normalise and a.privacy is not None:
        raise Refused(
            "normalise=True with Privacy: sums of raw inputs have no bound that noise could be measured by. Scale the inputs "
            "by constants that are known beforehand, such as the range of each column."
        )
    return normalise


def is_normalised(model: nn.Module) -> bool:
    """Whether it scales its inputs itself, as the run.model of a run with normalise=True does."""
    return any(isinstance(m, Normalised) for m in model.modules())


def look_at_scales(clients: Federation | Lazy, largest: Tensor | None, private: bool) -> tuple[str, list[list[Any]]]:
    """Look for columns whose scales differ so much that no step size suits all of them.

    A column's scale is the root mean square of its entries that are not zero: sparse and one-hot columns have the scale of
    dense ones. Constant columns do not count; those that are mostly zero, or rarely differ from their median as the pixels at
    the border of an image, count only if they are large.

    largest: inputs of the largest client; private: normalise=True would be refused.
    Returns (a warning, "" if there is no need for one; [name or index, scale] of the smallest and the largest column, if
    their scales are far apart).
    """
    if largest is None or largest.dim() != 2 or not largest.is_floating_point():
        return "", []
    few = max(1, min(LOOK, NUMBERS // ((CLIENTS + 1) * max(1, largest.shape[1]))))
    others = clients[:CLIENTS] if isinstance(clients, Federation) else []
    parts = [largest, *(c.inputs for c in others if isinstance(c, TensorClient))]
    X = torch.cat([part[:few].detach().cpu().double() for part in parts])
    there, often = (X != 0).sum(0), 4 * (X.median(0).values != X).sum(0) >= len(X)
    mean, deviation = X.mean(0), X.std(0, correction=0)
    varies = deviation > 4 * torch.finfo(largest.dtype).eps * mean.abs()
    if len(X) < PROBE or not bool(varies.any()):
        return "", []
    scale = (X.square().sum(0) / there.clamp(min=1)).sqrt()
    dense = varies & often & (2 * there >= len(X))
    ratio = float(scale[varies].max() / scale[dense].min()) if bool(dense.any()) else 1.0
    offset = torch.where(varies & often, mean.abs() / deviation, 0.0)
    if ratio <= FAR and float(offset.max()) <= FAR:
        return "", []
    apart = (scale / scale[varies].median()).log().abs() if ratio > FAR else torch.zeros_like(scale)
    off = torch.where(offset > FAR, offset, 1.0).log()
    worst = torch.where(varies, torch.maximum(apart, off), -1.0).argsort(descending=True)[: min(3, int(varies.sum()))]
    columns = getattr(clients, "columns", ())
    named = [repr(columns[i]) if len(columns) == len(mean) else f"feature {i}" for i in worst.tolist()]
    shown = [f"{n} is {mean[i]:.3g} +- {deviation[i]:.3g}" for n, i in zip(named, worst.tolist(), strict=True)]
    fix = "Scale each column by a known constant" if private else "Use normalise=True, or scale the columns yourself"
    warning = (
        f"clients: the scales of the input features are far apart ({', '.join(shown)}), so that no step size suits all of "
        f"them. {fix}."
    )
    if ratio <= FAR:
        return warning, []
    small = int(torch.where(dense, scale, math.inf).argmin())
    large = int(torch.where(varies, scale, 0.0).argmax())
    return warning, [[str(columns[i]) if len(columns) == len(mean) else i, float(scale[i])] for i in (small, large)]


def _found(clients: Federation | Lazy) -> Found | None:
    """What was found out where the data is, if that is elsewhere."""
    return clients.found if isinstance(clients, Lazy) else None


def _dtypes(name: str, inputs: Tensor, targets: Tensor, wanted: torch.dtype) -> None:
    for part, values in (("inputs", inputs), ("targets", targets)):
        if values.is_floating_point() and values.dtype != wanted:
            raise InvalidInput(
                f"{name}: {part} are {values.dtype} and the model is {wanted}; expected the same. "
                f"Convert with {part}.to({wanted}) or model.to({values.dtype})."
            )


def _scalar(loss: Loss, output: Tensor, targets: Tensor) -> None:
    try:
        value = loss(output.clone().requires_grad_(), targets)
    except Exception as error:
        raise InvalidInput(
            f"loss: it fails on outputs of shape {tuple(output.shape)} ({output.dtype}) and targets of shape "
            f"{tuple(targets.shape)} ({targets.dtype}): {error}"
        ) from error
    if not isinstance(value, Tensor) or value.dim() > 0:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInput(
            f'loss: it returns {found}; expected a scalar. Reduce over the batch, as in reduction="mean".'
        )
    if not value.requires_grad:
        raise InvalidInput("loss: its value has no gradient; expected a differentiable function of the model's output.")


def _values(loss: Loss, name: str, targets: Tensor) -> None:
    """Targets that the loss would take, and make nothing sensible of."""
    allowed = losses.allowed_targets(loss)
    if allowed is None:
        return
    words, test = allowed
    off = ~test(targets)
    if bool(off.any()):
        raise InvalidInput(f"{name}: target {targets[off][0].item():g} is out of range; this loss expects {words}.")


def _labels(loss: Loss, output: Tensor, name: str, targets: Tensor) -> None:
    """Class labels beyond the model's outputs would crash, or be read from elsewhere, deep in training."""
    if output.dim() < 2 or targets.is_floating_point() or targets.shape[1:] != output.shape[2:]:
        return
    classes = output.shape[1]
    off = ((targets < 0) | (targets >= classes)) & (targets != getattr(loss, "ignore_index", -100))
    if not bool(off.any()):
        return
    bad = targets[off][:1].cpu()
    if losses.wants_class_labels(loss) or _breaks(loss, output.cpu(), bad):
        raise InvalidInput(
            f"{name}: label {int(bad)} is out of range; the model has {classes} outputs, expected labels from 0 to "
            f"{classes - 1}. Relabel the data or widen the model's last layer."
        )


def _breaks(loss: Loss, output: Tensor, bad: Tensor) -> bool:
    try:
        loss(output[:1], bad.expand(1, *output.shape[2:]))
    except (IndexError, RuntimeError):
        return True
    return False


def test_of(test: Any, clients: Federation | Lazy) -> Client | None:
    if test is None:
        return None
    data = pair("test", test)
    if len(data) == 0:
        raise InvalidInput("test: it has no samples; expected at least one, or test=None.")
    inputs, targets = data.take()
    finite("test", inputs, targets)
    if _found(clients) is not None:
        return data
    first = clients[0].take(torch.arange(1, device="cpu"))
    for part, mine, theirs in zip(("inputs", "targets"), (inputs, targets), first, strict=True):
        if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
            raise InvalidInput(
                f"test: {part} of shape {tuple(mine.shape[1:])} and type {mine.dtype} per sample differ from the clients' "
                f"{tuple(theirs.shape[1:])} and {theirs.dtype}; expected the same."
            )
    return data


def fits(
    a: Algorithm, task: Task, options: Options, cohorts: Sampler, steps: Callable[[int, int], int], tested: bool
) -> None:
    """Refuse what makes no sense for this algorithm with this model and data."""
    _not_too_large(a, Replica(task.model).dtype, "algorithm")
    _not_too_large(options, Replica(task.model).dtype, "train")
    not_negative("train", weight_decay=options.weight_decay)
    if options.max_norm is not None:
        positive("train", clip_norm=options.max_norm)
    if task.buffers not in BUFFERS:
        raise InvalidInput(f"buffers={task.buffers!r} is unknown; {nearest(str(task.buffers), BUFFERS)}")
    if task.buffers == "local" and task.moving and tested:
        raise Refused(
            'buffers="local" with test=: the statistics stay with the clients, so the returned model has none to be tested '
            'with. Leave test out, or use buffers="average".'
        )
    if options.max_norm is not None and isinstance(a.step, Armijo):
        raise Refused(
            "Armijo with clip_norm: a clipped gradient breaks the search's promise of decrease. Drop one of them."
        )
    if isinstance(a.objective, Moon) and not callable(getattr(task.model, "features", None)):
        raise Refused(
            f"MOON needs a model with a `features(inputs)` method, and {type(task.model).__name__} has none. "
            "Give it one that returns the representation before the last layer."
        )
    if isinstance(a.objective, FedSplitProx) and cohorts != Uniform(len(task.clients)):
        raise Refused(
            "FedSplit with partial participation: x = mean z_i holds only when everybody takes part. Use cohort=None."
        )
    if task.batch_size is not None and not a.gradient.batches:
        raise Refused(
            f"batch_size={task.batch_size} with {type(a.gradient).__name__} gradients, which start from the full batch. "
            "Leave batch_size out (IAG: use block=)."
        )
    if a.aggregate is not None and len(set(task.weights)) > 1:
        raise Refused(
            f'{type(a.aggregate).__name__} with weights: it counts clients, not samples. Use weights="uniform".'
        )
    if a.privacy is not None:
        _private(a.privacy, task, cohorts)
    if isinstance(a.gradient, IAG):
        _iag(a.gradient, task, steps)
    if has_batch_statistics(task.model) and task.buffers != "frozen" and _found(task.clients) is None:
        _batches_of_one(task, steps)


def _not_too_large(part: Any, dtype: torch.dtype, at: str) -> None:
    """Refuse numbers that the model's type does not have."""
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
    if task.seed == 0:
        tell(
            "Privacy with seed=0, the default: whoever knows the seed can take the noise off. Use seed=secrets.randbits(63)."
        )
    if math.isinf(privacy.epsilon(cohorts, len(task.clients), task.rounds)):  # refuses what it cannot account for
        raise Refused(
            f"Privacy over {task.rounds} rounds: nothing would be left of it. Use fewer rounds, or more noise."
        )


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


def _iag(rule: IAG, task: Task, steps: Callable[[int, int], int]) -> None:
    if task.random:
        raise Refused(
            "IAG with dropout (or another random layer): a component's old and new gradient would differ by the mask, "
            "not by the model. Remove the random layers, or use fedlin."
        )
    if has_batch_statistics(task.model) and task.buffers != "frozen":
        raise Refused(
            "IAG with BatchNorm: f_i is not a sum of components when samples share statistics. "
            'Use buffers="frozen" or GroupNorm.'
        )
    if task.reduction is None:
        raise Refused(
            "IAG needs a loss that is a mean or a sum over the samples, and this one is neither. Write it as a mean."
        )
    row = Replica(task.model).row()
    for client, n in enumerate(task.clients.sizes):
        rule.check_memory(client, n, steps(0, client), row.nbytes)


def quorum(guard: Guard, cohorts: Sampler, private: bool) -> None:
    most = getattr(cohorts, "size", None)
    if private and isinstance(guard.quorum, int) and most is None:
        raise Refused(
            f"Privacy with quorum={guard.quorum} and {cohorts}: whether a round counts would tell how many there were. "
            "Use a share, as in Guard(quorum=0.5)."
        )
    if isinstance(most, int) and guard.least(most) > most:
        raise InvalidInput(
            f"Guard: quorum={guard.quorum} is invalid with {most} clients a round: expected at most {most}."
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
