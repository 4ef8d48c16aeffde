"""Metrics by name, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedstride.core import metrics as module
from fedstride.core.batch import described
from fedstride.core.errors import InvalidInput, nearest

Metric = Callable[[Any, Any], Any]  # (outputs, targets) -> number
METRICS: dict[str, Metric] = {name: getattr(module, name) for name in module.__all__}


def resolve(metrics: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Metric]:
    """Return metrics by name. Objects with update() and compute(), such as torchmetrics', become functions.

    A MetricCollection of torchmetrics is taken like a dict.

    Raises:
        InvalidInput: a metric is unknown or cannot be called.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, str) or not (isinstance(metrics, Sequence) or hasattr(metrics, "items")):
        raise InvalidInput(
            f"metrics={metrics!r} is invalid: expected a dict of functions (outputs, targets), or names."
        )
    given = metrics.items() if hasattr(metrics, "items") else [(_of_list(metric), metric) for metric in metrics]
    return {_name(name): _metric(name, metric) for name, metric in given}


def _of_list(metric: Any) -> str:
    if not isinstance(metric, str):
        what = getattr(metric, "__name__", type(metric).__name__)
        raise InvalidInput(
            f"metrics: got {what} in a list; expected names. Name it in a dict, as in {{'own': {what}}}."
        )
    return metric


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
    one = isinstance(outputs, Tensor)
    given = "" if one else f" The model returns {described(outputs)}, and outputs are all of it."
    for name, metric in metrics.items():
        try:
            found[name] = float(metric(outputs, targets))
        except Exception as error:
            raise InvalidInput(
                f"metrics[{name!r}]: {type(error).__name__}: {error}. Expected a function (outputs, targets) -> number.{given}"
            ) from error
    return found
