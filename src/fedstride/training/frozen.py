"""Parameters that are not trained: their hash, and aggregation rules by which the server changes some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeVar

from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.core.capabilities import declared
from fedstride.core.errors import Refused
from fedstride.core.lora import pairs_of
from fedstride.core.model import digest, frozen_of


class Moving(Protocol):
    """Traits of the model that a forward pass shows."""

    @property
    def moving(self) -> tuple[str, ...]: ...


Told = TypeVar("Told", bound=Moving)


def with_changed_weights(
    algorithm: Algorithm, told: Told, model: nn.Module, buffers: str
) -> tuple[Algorithm, Told, str]:
    """Return an algorithm for this model, the buffers that change in training, and their treatment.

    Frozen weights that the aggregation rule changes travel as BatchNorm's statistics do, but from the server to the
    clients only: clients treat them as frozen.
    """
    if not declared(algorithm.aggregate, "changes_frozen"):
        return algorithm, told, buffers
    rule: Any = replace(algorithm.aggregate, pairs=pairs_of(model))  # type: ignore[type-var]
    if told.moving and buffers != "frozen":
        raise Refused(
            f"{type(rule).__name__} with BatchNorm's statistics ({told.moving[0]}): clients would send all frozen weights with "
            'them. Use buffers="frozen", or GroupNorm.'
        )
    return replace(algorithm, aggregate=rule), replace(told, moving=(*told.moving, *rule.weights)), "frozen"  # type: ignore[type-var]


def facts_of(model: nn.Module, algorithm: Algorithm) -> dict[str, Any]:
    """Return the fact `frozen`: number and hash of the frozen parameters, and the names of those that the server changes."""
    frozen = frozen_of(model)
    if not frozen:
        return {}
    numbers = sum({id(p): p.numel() for p in model.parameters() if not p.requires_grad}.values())
    changed = list(getattr(algorithm.aggregate, "weights", ()))
    return {"frozen": {"numbers": numbers, "sha256": digest(frozen), **({"changed": changed} if changed else {})}}
