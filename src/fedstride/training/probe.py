"""Run model and loss on a few samples, and check that the data fits both, before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.core import losses
from fedstride.core.batch import (
    TARGETS,
    Tree,
    described,
    leaves,
    logits_of,
    mapped,
    moved,
    selected,
    signature_of,
    split_of,
    targets_of,
    tensors_of,
)
from fedstride.core.errors import InvalidInput, Refused, tell
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, probe
from fedstride.core.normalise import Normalise, features_of, scaled_by_itself
from fedstride.data.clients import Client, Collate, TensorClient, client_of, finite
from fedstride.data.federation import Federation, Found, Lazy
from fedstride.data.sets import in_order, sets_of

PROBE = 8  # samples of the largest client for the trial run
LOOK = 500  # samples of it that are looked at for their scales


@dataclass(frozen=True)
class Probed:
    """Properties of model and loss, found by one forward pass; and the data, checked, as inputs and targets."""

    clients: Federation | Lazy
    tests: Sequence[Client]
    loss: Loss
    reduction: str | None
    moving: tuple[str, ...]
    random: bool
    features: int  # number of features of an input: see core/normalise.py
    inputs: Any = None  # a few of the largest client, if its data is on this machine
    output: Any = None  # logits, or whatever the model returns, for some of these inputs
    targets: Any = None  # of the same inputs
    plain: bool = True  # whether inputs, outputs and targets are single tensors, and there is at most one test set


def try_out(
    model: nn.Module,
    loss: str | Loss,
    clients: Federation | Lazy,
    tests: Sequence[Client],
    normalise: Normalise = False,
) -> Probed:
    """Run model and loss on a few samples, and check all targets.

    Args:
        model: the model.
        loss: as in fs.train().
        clients: the federation, with batches as the user gave them.
        tests: the test set, or one for each client.
        normalise: whether inputs are normalised before the model sees them.

    Raises:
        InvalidInput: if model, loss and data do not fit together.
        Refused: if inputs that are not floating point are to be normalised.
    """
    replica = Replica(model)
    criterion = losses.resolve(loss)
    if not bool(torch.isfinite(replica.row()).all()):
        raise InvalidInput("model: its initial parameters contain NaN or infinite values; expected finite numbers.")
    found = found_elsewhere(clients)
    if found is None:
        largest = max(range(len(clients)), key=clients.sizes.__getitem__)  # BatchNorm needs more than one sample
        where, samples = clients.label(largest), clients[largest]
    elif tests:
        where, samples = "test", tests[0]
    else:
        return Probed(clients, (), criterion, found.reduction, found.moving, found.random, found.features)
    few = torch.arange(min(len(samples), PROBE), device="cpu")
    batch = samples.batch(few)
    split = split_of(batch, model, loss, where, losses.wants_class_labels(criterion))
    _say_types(where, batch, replica.dtype)
    samples = samples.divided(split, replica.dtype)
    clients = clients if found is not None else clients.divided(split, replica.dtype)
    tests = [test.divided(split, replica.dtype) for test in tests]
    inputs, targets = samples.take(few)
    if normalise:
        _can_be_normalised(inputs)
    features = features_of(inputs.shape[1:]) if isinstance(inputs, Tensor) else 0
    raw = None if found is not None else samples.inputs[:LOOK] if isinstance(samples, TensorClient) else inputs
    inputs, targets = moved(inputs, replica.device), moved(targets, replica.device)
    inputs = scaled_by_itself(inputs, normalise) if normalise else inputs
    output, moving, random = _forward(model, inputs, where)
    criterion = losses.for_output(criterion, output)
    logits = logits_of(output)

    def meaningful(name: str, inputs: Tree, targets: Tree) -> None:
        targets = targets_of(targets)
        if isinstance(targets, Tensor) and isinstance(logits, Tensor):
            _values(losses.inner(criterion), name, targets)
            _labels(losses.inner(criterion), logits.detach(), name, targets)

    checked = clients.checked(meaningful) if found is None else clients
    meaningful(where, inputs, targets)  # loaded before the check was added
    for i, test in enumerate(tests):
        meaningful("test" if len(tests) == 1 else f"test[{i}]", *test.take())
    _scalar(criterion, output, targets)
    if found is None:
        found = Found(losses.reduction(criterion, output, targets), moving, random, features)
    told = (found.reduction, found.moving, found.random, found.features)
    plain = all(isinstance(v, Tensor) for v in (inputs, output, targets)) and len(tests) <= 1
    logits = mapped(lambda v: v.detach() if isinstance(v, Tensor) else v, logits)
    return Probed(checked, tests, criterion, *told, raw, logits, targets, plain)


def _forward(model: nn.Module, inputs: Tree, where: str) -> tuple[Any, tuple[str, ...], bool]:
    try:
        output, moving, random = probe(model, inputs)
    except Exception as error:
        what = (
            f"inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}"
            if isinstance(inputs, Tensor)
            else f"inputs {described(inputs)}"
        )
        whole = isinstance(inputs, Tensor) and not (inputs.is_floating_point() or inputs.is_complex())
        fix = " Convert numbers that are quantities, as in inputs.float() / 255 for images." if whole else ""
        raise InvalidInput(f"model: it fails on {where}'s {what}: {error}{fix and '.'}{fix}") from error
    found = tensors_of(output)
    if not found:
        raise InvalidInput(f"model: it returns {type(output).__name__} without tensors; expected a tensor or several.")
    if not any(v.requires_grad for v in found):
        raise InvalidInput("model: its output has no gradient; expected one that depends on its trainable parameters.")
    return output, moving, random


def _say_types(name: str, batch: Tree, wanted: torch.dtype) -> None:
    """Warn that floating point data is converted to the type of the model."""
    odd = sorted({str(v.dtype) for v in leaves(batch) if v.is_floating_point() and v.dtype != wanted})
    if odd:
        tell(f"{name}: the data is {', '.join(odd)} and the model is {wanted}; the data is converted.")


def _can_be_normalised(inputs: Tree) -> None:
    if not isinstance(inputs, Tensor):
        raise Refused(
            f"normalise=True with inputs {described(inputs)}: only a single tensor is normalised. Use normalise=False, and "
            "scale the parts that are quantities yourself."
        )
    if not inputs.is_floating_point():
        raise Refused(
            f"normalise=True with inputs of type {inputs.dtype}: whole numbers such as token ids are names, and have no "
            "mean. Use normalise=False, or convert quantities with inputs.float()."
        )


def found_elsewhere(clients: Federation | Lazy) -> Found | None:
    """Return the result of the trial run on the machines that hold the data, None if it is on this one."""
    return clients.found if isinstance(clients, Lazy) else None


def _scalar(loss: Loss, output: Any, targets: Tree) -> None:
    try:
        value = loss(output, targets)
    except InvalidInput:
        raise
    except Exception as error:
        if isinstance(output, Tensor) and isinstance(targets, Tensor):
            what = (
                f"outputs of shape {tuple(output.shape)} ({output.dtype}) and targets of shape "
                f"{tuple(targets.shape)} ({targets.dtype})"
            )
        else:
            what = f"outputs {described(output)} and targets {described(targets)}"
        fix = f". The targets of a dict are its entry {', '.join(TARGETS)}." if isinstance(targets, Mapping) else ""
        raise InvalidInput(f"loss: it fails on {what}: {error}{fix}") from error
    if not isinstance(value, Tensor) or value.dim() > 0:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInput(
            f'loss: it returns {found}; expected a scalar tensor. Reduce over the batch, as in reduction="mean".'
        )
    if not value.requires_grad:
        raise InvalidInput("loss: its value has no gradient; expected a differentiable function of the model's output.")


def _values(loss: Loss, name: str, targets: Tensor) -> None:
    """Refuse targets that the loss accepts but that are meaningless."""
    allowed = losses.allowed_targets(loss)
    if allowed is None:
        return
    words, test = allowed
    off = ~test(targets)
    if bool(off.any()):
        raise InvalidInput(f"{name}: target {targets[off][0].item():g} is out of range; this loss expects {words}.")


def _labels(loss: Loss, output: Tensor, name: str, targets: Tensor) -> None:
    """Refuse class labels beyond the model's outputs, which would crash or read other memory during training."""
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


def tests_of(test: Any, clients: Federation | Lazy, collate: Collate | None = None) -> list[Client]:
    """Return the test set, or one for each client, after checking that samples are like those of the clients."""
    if test is None:
        return []
    several = sets_of(test, collate)
    if several is None:
        return [_test("test", test, clients, collate)]
    names, values = several
    if len(values) != len(clients):
        raise InvalidInput(
            f"test: got {len(values)} sets; expected one, or one for each of the {len(clients)} clients. A single set is a tuple "
            "(inputs, targets)."
        )
    values = in_order(names, values, clients)
    labels = [f"test[{name!r}]" for name in (names and clients.names) or names or range(len(values))]
    return [_test(name, value, clients, collate) for name, value in zip(labels, values, strict=True)]


def _test(name: str, value: Any, clients: Federation | Lazy, collate: Collate | None) -> Client:
    data = client_of(name, value, collate)
    if len(data) == 0:
        raise InvalidInput(f"{name}: no samples; expected at least one, or test=None.")
    whole = data.take()
    finite(name, *whole)
    if found_elsewhere(clients) is not None:
        return data
    first = clients[0].take(torch.arange(1, device="cpu"))
    if collate is None:
        for part, mine, theirs in zip(("inputs", "targets"), whole, first, strict=True):
            if _sample_kind(mine) != _sample_kind(theirs):
                raise InvalidInput(
                    f"{name}: {part} of {described_sample(mine)} per sample differ from the clients' "
                    f"{described_sample(theirs)}; expected the same."
                )
    return data


def _sample_kind(batch: Tree) -> Any:
    """Return what test samples must have in common with those of clients; floating point types are converted."""
    return signature_of(mapped(lambda v: v[:1].float() if v.is_floating_point() else v[:1], batch))


def described_sample(batch: Tree) -> str:
    return described(selected(batch, 0))
