"""Run model and loss on a few samples, and check that the data fits both, before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.core import losses
from fedstride.core.errors import InvalidInput, Refused
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, probe
from fedstride.core.normalise import features_of, scaled_by_itself
from fedstride.data.federation import Client, Federation, Found, Lazy, TensorClient, finite, pair
from fedstride.training.scales import LOOK

PROBE = 8  # samples of the largest client for the trial run


@dataclass(frozen=True)
class Probed:
    """Properties of model and loss, found by one forward pass; and the clients, with checked targets."""

    clients: Federation | Lazy
    loss: Loss
    reduction: str | None
    moving: tuple[str, ...]
    random: bool
    features: int  # number of features of an input: see core/normalise.py
    inputs: Tensor | None = None  # a few of the largest client, if its data is on this machine


def try_out(
    model: nn.Module, loss: str | Loss, clients: Federation | Lazy, test: Client | None, normalise: bool = False
) -> Probed:
    """Run model and loss on a few samples, and check all targets.

    Args:
        model: the model.
        loss: the loss, or its name.
        clients: the federation.
        test: the test set.
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
            f"normalise=True with inputs of type {inputs.dtype}: whole numbers such as token ids are names, and have no "
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
    meaningful(where, inputs, targets)  # these samples were loaded before the check was added
    if test is not None:
        meaningful("test", *test.take())
    _scalar(criterion, output, targets)
    if found is None:
        found = Found(losses.reduction(criterion, output, targets), moving, random, features)
    return Probed(checked, criterion, found.reduction, found.moving, found.random, found.features, raw)


def found_elsewhere(clients: Federation | Lazy) -> Found | None:
    """Return the result of the trial run on the machines that hold the data, None if it is on this one."""
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


def test_of(test: Any, clients: Federation | Lazy) -> Client | None:
    """Convert the argument `test` to a test set, and check that its samples are like those of the clients."""
    if test is None:
        return None
    data = pair("test", test)
    if len(data) == 0:
        raise InvalidInput("test: no samples; expected at least one, or test=None.")
    inputs, targets = data.take()
    finite("test", inputs, targets)
    if found_elsewhere(clients) is not None:
        return data
    first = clients[0].take(torch.arange(1, device="cpu"))
    for part, mine, theirs in zip(("inputs", "targets"), (inputs, targets), first, strict=True):
        if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
            raise InvalidInput(
                f"test: {part} of shape {tuple(mine.shape[1:])} and type {mine.dtype} per sample differ from the clients' "
                f"{tuple(theirs.shape[1:])} and {theirs.dtype}; expected the same."
            )
    return data
