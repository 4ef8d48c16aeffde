"""Guard: limits beyond which a round is repeated, a message refused, or a server step rolled back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, at_least_one, positive
from fedstride.core.rows import State, Vec, norm


@dataclass(frozen=True)
class Guard:
    """Limits for lost clients and exploding models.

    Unusable messages are left out, rounds with too few messages repeated, and exploding server steps rolled back.

    Args:
        quorum: smallest number (int) or share (float) of the cohort that must answer.
        retries: further attempts at a round with too few answers, each with a new cohort.
        norm: largest norm of an update. None: no fixed limit.
        spread: largest norm of a message, relative to the median of its cohort or of an earlier one. inf: no limit.
        explode: largest norm of a message or a step, relative to the model and to earlier messages.
        rollbacks: successive rounds with a roll-back before the run stops.

    Raises:
        InvalidInput: if a value is out of range.

    Example:
        >>> guard = fs.Guard(quorum=0.75, retries=10, norm=100.0)
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, guard=guard)
    """

    quorum: int | float = 0.5
    retries: int = 5
    norm: float | None = None
    spread: float = 100.0
    explode: float = 1e6
    rollbacks: int = 3

    def __post_init__(self) -> None:
        share = isinstance(self.quorum, float) and 0 < self.quorum <= 1
        if not share and (isinstance(self.quorum, bool) or not isinstance(self.quorum, int) or self.quorum < 1):
            raise InvalidInput(
                f"Guard: quorum={self.quorum!r} is invalid: expected a share in (0, 1], or a whole number >= 1."
            )
        for name, value in (("retries", self.retries), ("rollbacks", self.rollbacks)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInput(f"Guard: {name}={value!r} is invalid: expected a whole number >= 0.")
        positive(self, norm=self.norm)
        limits = {"spread": self.spread, "explode": self.explode}
        at_least_one(self, **{k: v for k, v in limits.items() if not (isinstance(v, float) and v == math.inf)})

    def least(self, cohort: int) -> int:
        """Return the number of clients that must answer, for a cohort of this size."""
        return max(1, math.ceil(self.quorum * cohort - 1e-9)) if isinstance(self.quorum, float) else self.quorum

    def limit(self, usual: float) -> float:
        """Return the largest norm of a message, given the usual norm; infinite if that is 0 (unknown)."""
        return self.explode * usual if usual > 0 else math.inf

    def sound(self, new: Vec, x: Vec, usual: float) -> bool:
        """Whether a step from x to new is finite and not too long; usual: the norm of the clients' updates."""
        if not finite({"x": new}):
            return False
        return usual == 0 or float(norm(new - x)) <= self.explode * max(float(norm(x)), usual)


def finite(state: State, before: State | None = None) -> bool:
    """Whether all entries of a state are finite, apart from those that were not before: a rule may start from infinity."""
    known = before or {}
    return all(_all_finite(v) or (name in known and not _all_finite(known[name])) for name, v in state.items())


def _all_finite(v: Tensor) -> bool:
    """Whether all entries are finite; a finite sum is proof, and reads them only once."""
    return math.isfinite(v.sum()) or bool(torch.isfinite(v).all())
