"""Client sampling: the cohort of each round."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, SupportsIndex

import numpy as np
import torch

from fedstride.core.errors import InvalidInput


class Sampler(Protocol):
    """Draws the cohort of a round."""

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        """Return the cohort, in any order; sizes: number of samples of each client."""
        ...

    def check(self, clients: int) -> None:
        """Refuse a number of clients that this sampler cannot draw from."""
        ...


def _check_size(size: int, clients: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= clients:
        raise InvalidInput(
            f"cohort={size!r} is invalid: expected a whole number from 1 to {clients}, the number of clients "
            "(or a fraction in (0, 1], a sampler, or None for all clients)."
        )


@dataclass(frozen=True)
class Uniform:
    """Sample clients uniformly without replacement.

    Args:
        size: number of clients per round.

    Raises:
        InvalidInput: when training starts, if `size` is not between 1 and the number of clients.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, cohort=fs.Uniform(2))
        >>> run.history["participants"]
        [2, 2]
    """

    size: int
    sampling: ClassVar[str] = "fixed"

    def check(self, clients: int) -> None:
        _check_size(self.size, clients)

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        if self.size == len(sizes):
            return list(range(len(sizes)))
        seed = int(torch.randint(2**63 - 1, (), generator=source, device="cpu"))
        return random.Random(seed).sample(range(len(sizes)), self.size)  # constant time for any number of clients


@dataclass(frozen=True)
class Weighted:
    """Sample clients without replacement, in proportion to their numbers of samples.

    Args:
        size: number of clients per round.

    Raises:
        InvalidInput: when training starts, if `size` is not between 1 and the number of clients.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, cohort=fs.Weighted(3))
        >>> run.history["participants"]
        [3, 3]
    """

    size: int

    def check(self, clients: int) -> None:
        _check_size(self.size, clients)

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        keys = torch.rand(len(sizes), generator=source, dtype=torch.float64, device="cpu").log_()
        keys /= torch.from_numpy(
            np.asarray(sizes, dtype=np.float64)
        )  # numpy converts arrays and tensors without a loop
        chosen: list[int] = keys.topk(self.size).indices.tolist()  # Efraimidis and Spirakis 2006
        return chosen


@dataclass(frozen=True)
class Bernoulli:
    """Sample each client independently with the same probability; an empty cohort is drawn again.

    Args:
        p: probability that a client takes part.

    Raises:
        InvalidInput: when training starts, if `p` is not in (0, 1].

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, cohort=fs.Bernoulli(0.5))
        >>> run.history["participants"]
        [4, 3]
    """

    p: float
    sampling: ClassVar[str] = "poisson"

    def check(self, clients: int) -> None:
        if not (isinstance(self.p, int | float) and 0 < self.p <= 1):
            raise InvalidInput(f"Bernoulli: p={self.p!r} is invalid: expected a probability in (0, 1].")

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        chosen: list[int] = []
        while not chosen:
            luck = torch.rand(len(sizes), generator=source, dtype=torch.float64, device="cpu")
            chosen = (luck < self.p).nonzero()[:, 0].tolist()
        return chosen


def sampler(cohort: int | float | Sampler | None, clients: int) -> Sampler:
    """Convert the argument `cohort` to a sampler; None means all clients."""
    chosen: Sampler
    if cohort is None:
        chosen = Uniform(clients)
    elif isinstance(cohort, float):
        if not 0 < cohort <= 1:
            raise InvalidInput(f"cohort={cohort!r} is invalid: a fraction must lie in (0, 1].")
        chosen = Uniform(max(1, round(cohort * clients)))
    elif isinstance(cohort, SupportsIndex):
        chosen = Uniform(cohort if isinstance(cohort, bool) else operator.index(cohort))
    elif hasattr(cohort, "draw") and hasattr(cohort, "check"):
        chosen = cohort
    else:
        raise InvalidInput(
            f"cohort={cohort!r} is invalid: expected a whole number, a fraction, a sampler such as fs.Bernoulli(0.1), or None."
        )
    chosen.check(clients)
    return chosen
