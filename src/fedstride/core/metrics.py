"""Metrics for fs.train(metrics=...) and fs.evaluate(): functions (outputs, targets) -> number.

Outputs are the model's raw outputs (logits, not probabilities) for all test samples; targets are class labels, or numbers
for regression. A model with one output, or with as many outputs as targets, is a binary classifier: its class is 1, or
+1, where the output is positive.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstride.core.errors import InvalidInput

__all__ = [
    "accuracy",
    "auc",
    "balanced_accuracy",
    "cross_entropy",
    "f1",
    "mae",
    "mse",
    "perplexity",
    "precision",
    "r2",
    "recall",
    "rmse",
]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of correct predictions.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        0.5
    """
    predicted, labels, _ = _classes(outputs, targets)
    return float((predicted == labels).double().mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes of the targets of their recall.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.balanced_accuracy(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        1.0
    """
    hits, _, there = _counts(outputs, targets)
    return float((hits / there)[there > 0].mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the F1 score: of the positive class of a binary classifier, else the mean over all classes.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.f1(torch.tensor([2.0, -1.0, 1.0]), torch.tensor([1, 0, 1]))
        1.0
    """
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(2 * hits, guessed + there, _is_binary(outputs, targets))


def precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the precision: of the positive class of a binary classifier, else the mean over all classes.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.precision(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]))
        0.5
    """
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(hits, guessed, _is_binary(outputs, targets), there)


def recall(outputs: Tensor, targets: Tensor) -> float:
    """Return the recall: of the positive class of a binary classifier, else the mean over all classes.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.recall(torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
        0.5
    """
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(hits, there, _is_binary(outputs, targets), guessed)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; with several classes, the mean of each class against the rest.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.auc(torch.tensor([2.0, -1.0, 1.0]), torch.tensor([1, 0, 1]))
        1.0
    """
    _, labels, classes = _classes(outputs, targets)
    if _is_binary(outputs, targets):
        return _area(outputs.reshape(-1), labels == 1)
    if classes == 2:
        return _area(outputs[:, 1] - outputs[:, 0], labels == 1)
    probabilities = outputs.double().softmax(1)
    areas = [_area(probabilities[:, c].reshape(-1), (labels == c).reshape(-1)) for c in range(classes)]
    return float(torch.tensor(areas, dtype=torch.float64).nanmean())


def cross_entropy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean negative log-likelihood of the labels.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.cross_entropy(torch.zeros(2, 1), torch.tensor([0, 0]))
        0.0
    """
    _check_axis(outputs, targets)
    return float(F.cross_entropy(outputs.double(), targets))


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """Return exp(cross entropy), for language models.

    Args:
        outputs: logits of all samples.
        targets: class labels.

    Example:
        >>> fs.metrics.perplexity(torch.zeros(2, 1), torch.tensor([0, 0]))
        1.0
    """
    _check_axis(outputs, targets)
    return float(F.cross_entropy(outputs.double(), targets).exp())


def mse(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean squared error.

    Args:
        outputs: predictions for all samples.
        targets: numbers.

    Example:
        >>> fs.metrics.mse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        2.0
    """
    return float(_errors(outputs, targets).square().mean())


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error.

    Args:
        outputs: predictions for all samples.
        targets: numbers.

    Example:
        >>> fs.metrics.rmse(torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0]))
        2.0
    """
    return float(_errors(outputs, targets).square().mean().sqrt())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute error.

    Args:
        outputs: predictions for all samples.
        targets: numbers.

    Example:
        >>> fs.metrics.mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        1.0
    """
    return float(_errors(outputs, targets).abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the coefficient of determination: 1 for a perfect fit, 0 for the mean of the targets.

    Args:
        outputs: predictions for all samples.
        targets: numbers.

    Example:
        >>> fs.metrics.r2(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        1.0
    """
    spread = (targets.double() - targets.double().mean(0)).square().sum()
    return float(1 - _errors(outputs, targets).square().sum() / spread)


def _is_binary(outputs: Tensor, targets: Tensor) -> bool:
    return outputs.numel() == targets.numel()


def _check_axis(outputs: Tensor, targets: Tensor) -> None:
    """Refuse outputs with the classes in the last dimension, as language models of Hugging Face return them."""
    if outputs.dim() > 2 and outputs.shape[:-1] == targets.shape != outputs.shape[:1] + outputs.shape[2:]:
        raise InvalidInput(
            f"outputs of shape {tuple(outputs.shape)} have the classes in the last dimension, and torch's losses expect them in "
            "dimension 1; use a function that calls the metric with outputs.transpose(1, -1)"
        )


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return predicted classes, labels and the number of classes; labels that torch ignores (-100) are left out."""
    if _is_binary(outputs, targets):
        return (outputs.reshape(-1) > 0).long(), (targets.reshape(-1) > 0).long(), 2
    _check_axis(outputs, targets)
    if outputs.dim() < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        raise InvalidInput(
            f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} are not a classification"
        )
    there = targets != -100
    return outputs.argmax(1)[there], targets[there].long(), outputs.shape[1]


def _counts(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each class, the numbers of hits, of predictions and of targets."""
    predicted, labels, classes = _classes(outputs, targets)
    hits = torch.bincount(labels[predicted == labels], minlength=classes)
    guessed, there = (torch.bincount(v, minlength=classes) for v in (predicted, labels))
    return hits.double(), guessed.double(), there.double()


def _averaged(part: Tensor, whole: Tensor, binary: bool, other: Tensor | None = None) -> float:
    """Return part / whole, 0 where both are; with several classes the mean over those that occur."""
    ratio = torch.where(whole > 0, part / whole.clamp(min=1), 0.0)
    if binary:
        return float(ratio[1])
    occurs = whole + (0 if other is None else other) > 0
    return float(ratio[occurs].mean())


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the probability that a positive sample scores above a negative one; ties count half."""
    _, inverse, counts = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[inverse]
    p, n = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n)) if p and n else float("nan")


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.double() - targets.reshape(outputs.shape).double()
