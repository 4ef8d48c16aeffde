"""What a server does about clients that are lost, and about a model that explodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedstride.core.errors import InvalidInput, at_least_one, positive
from fedstride.core.rows import Vec, norm


@dataclass(frozen=True)
class Guard:
    """Replies that cannot be used are left out, rounds with too few of them are tried again, wild steps are taken back."""

    quorum: int | float = 0.5  # least number, or share, of those asked that must answer
    retries: int = 5  # of a round with too few answers, each with a newly drawn cohort
    norm: float | None = None  # longest update that is taken, if there is to be such a bound
    explode: float = 1e6  # an update or a step so many times longer than the model and all updates before is refused
    rollbacks: int = 3  # rounds in a row whose step was taken back, before the run is stopped

    def __post_init__(self) -> None:
        share = isinstance(self.quorum, float) and 0 < self.quorum <= 1
        if not share and (isinstance(self.quorum, bool) or not isinstance(self.quorum, int) or self.quorum < 1):
            raise InvalidInput(
                f"Guard: quorum={self.quorum!r} is not usable; expected a share in (0, 1], or a whole number >= 1."
            )
        for name, value in (("retries", self.retries), ("rollbacks", self.rollbacks)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInput(f"Guard: {name}={value!r} is not usable; expected a whole number >= 0.")
        positive(self, norm=self.norm)
        if self.explode != math.inf:
            at_least_one(self, explode=self.explode)

    def least(self, cohort: int) -> int:
        """How many of those asked must answer."""
        return max(1, math.ceil(self.quorum * cohort - 1e-9)) if isinstance(self.quorum, float) else self.quorum

    def limit(self, usual: float) -> float:
        """The longest message that is taken; `usual`: a length that is not wild, 0 if none is known."""
        return self.explode * usual if usual > 0 else math.inf

    def sound(self, new: Vec, x: Vec, usual: float) -> bool:
        """Whether a step from x to new can be believed; `usual`: the length of the clients' steps."""
        if not bool(torch.isfinite(new).all()):
            return False
        return usual == 0 or float(norm(new - x)) <= self.explode * max(float(norm(x)), usual)
