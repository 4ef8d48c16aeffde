"""Who takes part in a round."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

import numpy as np
import torch

from fedstride.core.errors import InvalidInput


class Sampler(Protocol):
    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        """The cohort, from the sample counts of all clients; fedstride sorts it."""
        ...

    def check(self, clients: int) -> None:
        """Refuse a federation that this sampler cannot serve."""
        ...


def _check_size(size: int, clients: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= clients:
        raise InvalidInput(
            f"cohort={size!r} is invalid: expected a whole number from 1 to {clients}, the number of clients "
            "(or a fraction in (0, 1], a sampler, or None for everybody)."
        )


@dataclass(frozen=True)
class Uniform:
    """`size` clients, uniformly without replacement."""

    size: int

    def check(self, clients: int) -> None:
        _check_size(self.size, clients)

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        if self.size == len(sizes):
            return list(range(len(sizes)))
        seed = int(torch.randint(2**63 - 1, (), generator=source, device="cpu"))
        return random.Random(seed).sample(range(len(sizes)), self.size)  # its time does not grow with the federation


@dataclass(frozen=True)
class Weighted:
    """`size` clients without replacement, drawn in proportion to their sample counts."""

    size: int

    def check(self, clients: int) -> None:
        _check_size(self.size, clients)

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        keys = torch.rand(len(sizes), generator=source, dtype=torch.float64, device="cpu").log_()
        keys /= torch.from_numpy(np.asarray(sizes, dtype=np.float64))  # numpy takes an array or a tensor in one piece
        chosen: list[int] = keys.topk(self.size).indices.tolist()  # Efraimidis and Spirakis 2006
        return chosen


@dataclass(frozen=True)
class Bernoulli:
    """Each client independently with probability p; an empty round is drawn again."""

    p: float

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
    """From what a user writes: None = everybody, a number, a fraction, or a sampler."""
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
