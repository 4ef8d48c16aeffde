"""Guard: when a round is repeated, a message refused, or a server step rolled back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedstride.core.errors import InvalidInput, at_least_one, positive
from fedstride.core.rows import Vec, norm


@dataclass(frozen=True)
class Guard:
    """Limits for lost clients and exploding models.

    Unusable messages are left out, rounds with too few messages are repeated, exploding server steps are rolled back.
    """

    quorum: int | float = 0.5  # least number, or share, of the cohort that must answer
    retries: int = 5  # attempts after the first at a round with too few answers, each with a new cohort
    norm: float | None = None  # largest norm of an update; None: no fixed limit
    explode: float = 1e6  # largest norm of a message or a step, relative to the model and to earlier messages
    rollbacks: int = 3  # successive rounds with a roll-back before the run stops

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
        if self.explode != math.inf:
            at_least_one(self, explode=self.explode)

    def least(self, cohort: int) -> int:
        """Return how many clients of a cohort of this size must answer."""
        return max(1, math.ceil(self.quorum * cohort - 1e-9)) if isinstance(self.quorum, float) else self.quorum

    def limit(self, usual: float) -> float:
        """Return the largest norm of a message, from the usual norm; infinite if that is 0, unknown."""
        return self.explode * usual if usual > 0 else math.inf

    def sound(self, new: Vec, x: Vec, usual: float) -> bool:
        """Whether a step from x to new is finite and not too long; usual: the norm of the clients' updates."""
        if not bool(torch.isfinite(new).all()):
            return False
        return usual == 0 or float(norm(new - x)) <= self.explode * max(float(norm(x)), usual)
