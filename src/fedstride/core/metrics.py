"""Metrics for fs.train(metrics=...) and fs.evaluate(): functions (outputs, targets) -> number.

Outputs are the model's raw outputs (logits, not probabilities) for all test samples; targets are class labels, or numbers
for regression. A model with one output, or with as many outputs as targets, is a binary classifier: its class is 1, or
+1, where the output is positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstride.core.errors import InvalidInput, nearest

Metric = Callable[[Any, Any], Any]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of correct predictions."""
    predicted, labels, _ = _classes(outputs, targets)
    return float((predicted == labels).double().mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean over the classes of the targets of their recall."""
    hits, _, there = _counts(outputs, targets)
    return float((hits / there)[there > 0].mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return the F1 score: of the positive class of a binary classifier, else the mean over all classes."""
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(2 * hits, guessed + there, _is_binary(outputs, targets))


def precision(outputs: Tensor, targets: Tensor) -> float:
    """Return the precision: of the positive class of a binary classifier, else the mean over all classes."""
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(hits, guessed, _is_binary(outputs, targets), there)


def recall(outputs: Tensor, targets: Tensor) -> float:
    """Return the recall: of the positive class of a binary classifier, else the mean over all classes."""
    hits, guessed, there = _counts(outputs, targets)
    return _averaged(hits, there, _is_binary(outputs, targets), guessed)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Return the area under the ROC curve; with several classes, the mean of each class against the rest."""
    _, labels, classes = _classes(outputs, targets)
    if _is_binary(outputs, targets):
        return _area(outputs.reshape(-1), labels == 1)
    if classes == 2:
        return _area(outputs[:, 1] - outputs[:, 0], labels == 1)
    probabilities = outputs.double().softmax(1)
    areas = [_area(probabilities[:, c].reshape(-1), (labels == c).reshape(-1)) for c in range(classes)]
    return float(torch.tensor(areas, dtype=torch.float64).nanmean())


def cross_entropy(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean negative log-likelihood of the labels."""
    return float(F.cross_entropy(outputs.double(), targets))


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """Return exp(cross entropy), for language models."""
    return float(F.cross_entropy(outputs.double(), targets).exp())


def mse(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean squared error."""
    return float(_errors(outputs, targets).square().mean())


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Return the root of the mean squared error."""
    return float(_errors(outputs, targets).square().mean().sqrt())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute error."""
    return float(_errors(outputs, targets).abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the coefficient of determination: 1 for a perfect fit, 0 for the mean of the targets."""
    spread = (targets.double() - targets.double().mean(0)).square().sum()
    return float(1 - _errors(outputs, targets).square().sum() / spread)


METRICS: dict[str, Metric] = {
    f.__name__: f
    for f in (
        accuracy,
        balanced_accuracy,
        f1,
        precision,
        recall,
        auc,
        cross_entropy,
        perplexity,
        mse,
        rmse,
        mae,
        r2,
    )
}


def resolve(metrics: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Metric]:
    """Return metrics by name. Objects with update() and compute(), such as torchmetrics', become functions.

    Raises:
        InvalidInput: a metric is unknown or cannot be called.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, str) or not isinstance(metrics, Mapping | Sequence):
        raise InvalidInput(
            f"metrics={metrics!r} is invalid: expected a dict of functions (outputs, targets), or names."
        )
    given = metrics if isinstance(metrics, Mapping) else {str(name): name for name in metrics}
    return {_name(name): _metric(name, metric) for name, metric in given.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidInput(f"metrics: {name!r} is not a valid name; expected one like 'f1', a column of the history.")
    return name


def _metric(name: str, metric: Any) -> Metric:
    if isinstance(metric, str):
        if metric not in METRICS:
            raise InvalidInput(f"metrics: {metric!r} is unknown; {nearest(metric, METRICS)}")
        return METRICS[metric]
    if isinstance(metric, type):
        raise InvalidInput(
            f"metrics[{name!r}]: got the class {metric.__name__}; expected an instance: {metric.__name__}(...)."
        )
    if all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset")):
        return lambda outputs, targets: _computed(metric, outputs, targets)
    if not callable(metric):
        raise InvalidInput(
            f"metrics[{name!r}]={metric!r} is invalid: expected a function (outputs, targets) -> number."
        )
    return metric  # type: ignore[no-any-return]


def _computed(metric: Any, outputs: Any, targets: Any) -> Any:
    """Return the value of a torchmetrics object for these outputs alone."""
    metric.reset()
    metric.update(outputs, targets)
    value = metric.compute()
    metric.reset()
    return value


def computed(metrics: Mapping[str, Metric], outputs: Any, targets: Any) -> dict[str, float]:
    """Return the value of each metric.

    Raises:
        InvalidInput: a metric raised an error, or its value is not a number.
    """
    found = {}
    for name, metric in metrics.items():
        try:
            found[name] = float(metric(outputs, targets))
        except Exception as error:
            raise InvalidInput(
                f"metrics[{name!r}]: {type(error).__name__}: {error}. Expected a function (outputs, targets) -> number."
            ) from error
    return found


def _is_binary(outputs: Tensor, targets: Tensor) -> bool:
    return outputs.numel() == targets.numel()


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return predicted classes, labels and the number of classes; labels that torch ignores (-100) are left out."""
    if _is_binary(outputs, targets):
        return (outputs.reshape(-1) > 0).long(), (targets.reshape(-1) > 0).long(), 2
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
