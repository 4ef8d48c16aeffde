"""Losses by name, and what fedstride needs to know of any loss: is it a mean or a sum over the batch?"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.errors import InvalidInput, nearest

Loss = Callable[[Tensor, Tensor], Tensor]


def _like(target: Tensor, output: Tensor) -> Tensor:
    """The target in the output's shape and type: [n, 1] against [n] would broadcast to [n, n] in silence."""
    return target.reshape(output.shape).to(output.dtype)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, _like(target, output))


def l1(output: Tensor, target: Tensor) -> Tensor:
    return F.l1_loss(output, _like(target, output))


def huber(output: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(output, _like(target, output))


def bce_with_logits(output: Tensor, target: Tensor) -> Tensor:
    """Targets 0 or 1."""
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


def resolve(loss: str | Loss) -> Loss:
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InvalidInput(
                f"loss={loss!r} is unknown; {nearest(loss, LOSSES)} A function (output, target) works too."
            )
        return LOSSES[loss]
    if not callable(loss):
        raise InvalidInput(f"loss={loss!r} is not usable; expected a function (output, target) -> scalar, or a name.")
    return loss


def wants_class_labels(loss: Loss) -> bool:
    return loss in (F.cross_entropy, F.nll_loss) or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)


def reduction(loss: Loss, output: Tensor, target: Tensor) -> str | None:
    """'mean', 'sum' or None: what happens to the loss when every sample is there twice.

    Asked at a random output, because at a perfect fit both answers are zero.
    """
    noise = torch.rand(output.shape, generator=torch.Generator().manual_seed(0), dtype=output.dtype).to(output.device)
    for shifted in (output + noise, noise):
        try:
            once = float(loss(shifted, target))
            twice = float(loss(torch.cat([shifted, shifted]), torch.cat([target, target])))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        if once == 0 or once != once:
            continue
        ratio = twice / once
        return "mean" if abs(ratio - 1) < 1e-3 else "sum" if abs(ratio - 2) < 1e-3 else None
    return None


def correct(output: Tensor, target: Tensor) -> Tensor | None:
    """How many predictions are right, or None if the task is no classification."""
    if output.dim() >= 2 and output.shape[1] > 1:
        return (output.argmax(1) == target).sum() if not target.is_floating_point() else None
    labels = set(torch.unique(target).tolist()) if target.numel() else set()
    if labels <= {0, 1} or labels <= {-1, 1}:
        return ((output.reshape(-1) > 0) == (target.reshape(-1) > 0)).sum()
    return None
