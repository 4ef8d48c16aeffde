"""Losses by name, and properties of any loss: its reduction, its targets, its best constant prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core.batch import batch_of, described, entry, logits_of, wants_batch
from fedstride.core.errors import InvalidInput, nearest

Loss = Callable[[Any, Any], Tensor]
IGNORED = -100  # a label that torch's cross_entropy leaves out


def _like(target: Tensor, output: Tensor) -> Tensor:
    """Return the target in the output's shape and type: [n, 1] and [n] would silently broadcast to [n, n]."""
    return target.reshape(output.shape).to(output.dtype)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(output, _like(target, output))


def l1(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error."""
    return F.l1_loss(output, _like(target, output))


def huber(output: Tensor, target: Tensor) -> Tensor:
    """Huber loss with threshold 1."""
    return F.huber_loss(output, _like(target, output))


def bce_with_logits(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy for targets 0 or 1."""
    return F.binary_cross_entropy_with_logits(output, _like(target, output))


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """mean log(1 + exp(-b a'x)) for targets b = -1 or +1; logaddexp, because softplus is linear beyond 20."""
    margin = -output * _like(target, output)
    return torch.logaddexp(margin, torch.zeros_like(margin)).mean()


LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "nll": F.nll_loss,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "bce_with_logits": bce_with_logits,
    "logistic": logistic,
}


def own_loss(output: Any, target: Any) -> Tensor:
    """The loss that the model returns itself: output.loss, output["loss"], the first of a tuple, or the output."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    found = first if isinstance(first, Tensor) and first.dim() == 0 else entry(output, "loss")
    if found is None:
        raise InvalidInput(
            f'loss="model": the model returns {described(output)} without a loss; expected an output with .loss, a dict with '
            '"loss", or a scalar. Pass the targets that it needs under the names it expects.'
        )
    return found.float() if found.dtype is torch.bfloat16 else found


LOSSES["model"] = own_loss


@dataclass(frozen=True)
class OnLogits:
    """A loss of torch for models that return an object, dict or tuple with logits."""

    loss: Loss

    def __call__(self, output: Any, target: Any) -> Tensor:
        logits = logits_of(output)
        return self.loss(logits.float() if logits.dtype is torch.bfloat16 else logits, target)


@dataclass(frozen=True)
class OnBatch:
    """A user's loss (output, batch)."""

    loss: Loss

    def __call__(self, output: Any, target: Any) -> Tensor:
        return self.loss(output, batch_of(target))


def for_output(loss: Loss, output: Any) -> Loss:
    """Return the loss for a model with this output. A user's function gets all of it, a loss of torch its logits."""
    if wants_batch(loss):
        return OnBatch(loss)
    known = isinstance(loss, nn.Module) or loss in LOSSES.values()
    if isinstance(output, Tensor) or loss is own_loss or not known:
        return loss
    if not isinstance(logits_of(output), Tensor):
        raise InvalidInput(
            f"model: it returns {described(output)} without logits, which a loss of torch needs; expected one tensor. Write the "
            "loss as a function (output, target)."
        )
    return OnLogits(loss)


def inner(loss: Loss) -> Loss:
    """Return the loss of torch or of the user, without what fedstride put around it."""
    return loss.loss if isinstance(loss, OnLogits | OnBatch) else loss


def resolve(loss: str | Loss) -> Loss:
    """Return the loss for a name or a function.

    Raises:
        InvalidInput: the name is unknown, or the loss is not a function (output, target) without parameters.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InvalidInput(
                f"loss={loss!r} is unknown; {nearest(loss, LOSSES)} A function (output, target) works too."
            )
        return LOSSES[loss]
    if isinstance(loss, type):
        raise InvalidInput(f"loss: got the class {loss.__name__}; expected an instance, as in {loss.__name__}().")
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise InvalidInput(
            f"loss: {type(loss).__name__} has parameters of its own, which would not be trained; expected a loss without. Move "
            "them into the model, or freeze them with loss.requires_grad_(False)."
        )
    if not callable(loss):
        raise InvalidInput(f"loss={loss!r} is invalid: expected a function (output, target) -> scalar, or a name.")
    return loss


def allowed_targets(loss: Loss) -> tuple[str, Callable[[Tensor], Tensor]] | None:
    """Return the valid targets of a loss as text and as a test; None if the loss has no such restriction."""
    if loss is logistic:
        return "-1 or +1", lambda t: (t == -1) | (t == 1)
    named = loss in (bce_with_logits, F.binary_cross_entropy_with_logits, F.binary_cross_entropy)
    if named or isinstance(loss, nn.BCEWithLogitsLoss | nn.BCELoss):
        return "from 0 to 1", lambda t: (t >= 0) & (t <= 1)
    return None


def wants_class_labels(loss: Loss) -> bool:
    """Return whether the targets of a loss are class labels."""
    return loss in (F.cross_entropy, F.nll_loss) or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)


def never_negative(loss: Loss) -> bool:
    """Return whether a loss is known to be at least 0 for all models, up to a rounding error far below 1e-3."""
    known = (F.cross_entropy, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, bce_with_logits, logistic)
    return loss in known or isinstance(loss, nn.CrossEntropyLoss | nn.BCELoss | nn.BCEWithLogitsLoss)


def reduction(loss: Loss, output: Any, target: Any) -> str | None:
    """Return the reduction of a loss over the samples of a batch: 'mean', 'sum', or None for neither.

    It is determined at random outputs, because at a perfect fit all losses are zero. Class weights give None.
    """
    if getattr(loss, "weight", None) is not None or not all(isinstance(v, Tensor) for v in (output, target)):
        return None
    source = torch.Generator().manual_seed(0)
    noise = torch.rand(output.shape, generator=source, dtype=output.dtype, device="cpu").to(output.device)
    try:
        whole = float(loss(noise, target))
        alone = torch.stack([loss(noise[i : i + 1], target[i : i + 1]) for i in range(len(target))]).double()
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    if len(target) == 1:  # sum and mean are equal: duplicate the sample
        whole, alone = float(loss(torch.cat([noise, noise]), torch.cat([target, target]))), torch.cat([alone, alone])
    for name, value in (("mean", float(alone.mean())), ("sum", float(alone.sum()))):
        if abs(whole - value) <= 1e-3 * abs(value):
            return name
    return None


def constant(loss: Loss, targets: Tensor) -> dict[str, float]:
    """Return the scores of the best prediction that ignores the inputs; a model that learned anything beats them.

    Args:
        loss: The loss that the test set is evaluated with.
        targets: All targets of the test set.

    Returns:
        "samples", the length of the test set; "accuracy", the share of the most frequent class, if the targets are
        classes; and "loss", if the best constant has a closed form: the entropy of the class frequencies for the cross
        entropy, the variance for the squared error, the mean distance from the median for the absolute error.
    """
    found: dict[str, float] = {"samples": len(targets)}
    if targets.numel() == 0:
        return found
    t = targets.detach().reshape(len(targets), -1)
    if wants_class_labels(loss) and not t.is_floating_point():
        labels = t[t != getattr(loss, "ignore_index", -100)]
        counts = torch.unique(labels, return_counts=True)[1].double()
        if len(counts):
            found["accuracy"] = float(counts.max()) / t.numel()
        best = torch.special.entr(counts / counts.sum()).sum()
    elif allowed_targets(loss) is not None:  # binary, per column
        q = (t.double().mean(0) + 1) / 2 if loss is logistic else t.double().mean(0)
        if bool(((t == t.min()) | (t == t.max())).all()):
            found["accuracy"] = float(torch.maximum(q, 1 - q).mean())
        best = (torch.special.entr(q) + torch.special.entr(1 - q)).mean()
    elif loss in (mse, F.mse_loss) or isinstance(loss, nn.MSELoss):
        best = t.double().var(0, correction=0).mean()
    elif loss in (l1, F.l1_loss) or isinstance(loss, nn.L1Loss):
        best = (t - t.median(0).values).abs().double().mean()
    else:
        return found
    altered = any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight"))
    if not altered and not getattr(loss, "label_smoothing", 0) and getattr(loss, "reduction", "mean") == "mean":
        found["loss"] = float(best)
    return found


def correct(output: Tensor, target: Tensor) -> Tensor | None:
    """Count the correct predictions; None if the task is not a classification."""
    if output.dim() >= 2 and output.shape[1] > 1:
        guess = output.argmax(1)
        return (guess == target).sum() if not target.is_floating_point() and guess.shape == target.shape else None
    labels = set(torch.unique(target).tolist())
    if output.numel() == target.numel() and (labels <= {0, 1} or labels <= {-1, 1}):
        return ((output.reshape(-1) > 0) == (target.reshape(-1) > 0)).sum()
    return None
