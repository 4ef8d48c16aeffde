"""Facts about the data recorded before the first round: scores of a constant prediction, and feature scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedstride.app.diagnose import limits


class ConstantPrediction(NamedTuple):
    """Test scores of the best prediction that ignores the inputs; None if unknown or impossible to beat."""

    samples: int = 1
    accuracy: float | None = None
    loss: float | None = None

    @property
    def beaten_from(self) -> float | None:
        """Test accuracy that chance rarely reaches: two binomial standard deviations above the constant prediction's."""
        if self.accuracy is None:
            return None
        return self.accuracy + limits.SURE * math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples)

    @property
    def chance(self) -> float:
        """Share of the loss that an uninformed model gains by chance.

        Outputs that vary by a share e of the targets' deviation gain about 2 e z / sqrt(n) - e^2, at most z^2 / n.
        """
        return limits.SURE**2 / self.samples


class Scale(NamedTuple):
    feature: str
    size: float  # root mean square


def constant_of(facts: Mapping[str, Any]) -> ConstantPrediction:
    """Parse the fact `constant` of losses.constant(); invalid values count as unknown."""
    found = facts.get("constant")
    given = found if isinstance(found, dict) else {}
    samples = given.get("samples")
    if not isinstance(samples, int) or isinstance(samples, bool) or not 1 <= samples < 2**53:
        return ConstantPrediction()
    accuracy, loss = _number(given.get("accuracy")), _number(given.get("loss"))
    known = ConstantPrediction(
        samples,
        accuracy if accuracy is not None and 0 < accuracy < 1 else None,
        loss if loss is not None and loss > 0 else None,  # no loss can be below 0
    )
    # With few samples no accuracy is clearly above that of the most frequent class.
    return known._replace(accuracy=None) if (known.beaten_from or 0) >= 1 else known


def scales_of(facts: Mapping[str, Any]) -> tuple[Scale, Scale] | None:
    """Return the smallest and the largest of the fact `scales` if they are far apart; zero columns are ignored."""
    found = facts.get("scales")
    pairs = [row for row in found if isinstance(row, list | tuple) and len(row) == 2] if isinstance(found, list) else []
    sizes = [Scale(str(name), size) for name, value in pairs if (size := _number(value)) is not None and size > 0]
    if not sizes:
        return None
    small, large = min(sizes, key=lambda s: s.size), max(sizes, key=lambda s: s.size)
    return (small, large) if large.size > limits.SCALES * small.size else None


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100
    return float(value) if usable else None
