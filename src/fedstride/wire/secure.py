"""Uploads as whole numbers that a secure sum adds up exactly, and from the sum back to the cohort's means.

For protocols that sum modulo 2^32 without seeing what they sum: Bell, Bonawitz, Gascon, Lepoint, Raykova. Secure
single-server aggregation with (poly)logarithmic overhead. CCS 2020 (SecAgg+, see engine/flower/secagg.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import State, norm

MODULUS = 2**32  # of the sums
LEAST = 3  # clients: of two, each would know what the other sent
MEANS = {"train_loss": 100.0, "client_step": 100.0, "trials": 100.0}  # for the history, with their bounds
COUNTS = ("failed", "gradients", "forwards")  # whole numbers, summed as they are
NATURAL = {"below": 0.5, **MEANS}
TOGETHER = ("update", "raw", "square")  # have one length
INPUTS = 1e20  # bound of the inputs that are measured by normalise=True, unless bounds["inputs"] is another


def levels(clients: int) -> int:
    """A client's numbers lie in [-levels/2, levels/2], so that their sum fits; even, so that 1 and 0 are exact."""
    return min(2**30, (MODULUS - 1) // clients) // 2 * 2


@dataclass(frozen=True)
class Secure:
    """The longest that clients of a secure sum send. What is longer is shortened, and the server told how often.

    Generous bounds cost little: M clients round to M 2^-31 of a bound.
    """

    bound: float  # of a client's update; squared, of its squared length
    bounds: Mapping[str, float] = field(default_factory=dict)  # of what has no range of its own: control, gradient, ...

    def __post_init__(self) -> None:
        positive(self, bound=self.bound)
        _has_square("bound", self.bound)
        if not isinstance(self.bounds, Mapping):
            raise InvalidInput(f"Secure: bounds={self.bounds!r} is invalid: expected names and numbers in a dict.")
        positive("Secure.bounds", **self.bounds)
        _has_square("inputs", self.inputs)
        for name in TOGETHER:
            if name in self.bounds:
                raise InvalidInput(
                    f"Secure: bounds={dict(self.bounds)!r} names {name!r}, which bound={self.bound} is for."
                )

    @property
    def inputs(self) -> float:
        """Bound of the magnitude of inputs."""
        return self.bounds.get("inputs", INPUTS)

    def layout(self, numbers: Mapping[str, int], clients: int) -> Layout:
        """The vector of a cohort's clients, from how many numbers each of their fields has."""
        if clients < LEAST:
            raise InvalidInput(f"Secure: a cohort of {clients} hides nobody; expected at least {LEAST} clients.")
        known = {**NATURAL, **self.bounds, "update": self.bound, "raw": self.bound, "square": self.bound**2}
        for name in numbers:
            if name not in known:
                raise InvalidInput(
                    f"Secure: bounds={dict(self.bounds)!r} has no {name!r}, which clients send and which has no range of its "
                    f"own. Give the longest there may be, as in bounds={{{name!r}: 10.0}}; a generous one costs little."
                )
        numbers = dict(sorted({**dict.fromkeys(MEANS, 1), **numbers}.items()))
        return Layout(numbers, {name: float(known[name]) for name in numbers}, clients)


@dataclass(frozen=True)
class Summed:
    """What a secure sum tells of a cohort."""

    fields: State  # weighted means, float64; empty if nobody counts
    metrics: dict[str, float]  # weighted means, and sums of counts
    weight: float  # of those who count, in units of the largest weight
    clients: int  # who count; the others had nothing finite to send
    shortened: dict[str, int]  # how many clients had to, by name


@dataclass(frozen=True)
class Layout:
    """What stands where in a client's vector of whole numbers; the server and the clients of a round share one."""

    numbers: dict[str, int]
    bounds: dict[str, float]  # longest, by name
    clients: int  # most that are summed

    @property
    def levels(self) -> int:
        return levels(self.clients)

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def _flags(self) -> tuple[str, ...]:
        """What may have to be shortened; the squared length goes with the update."""
        return tuple(name for name in (*self.numbers, *COUNTS) if name not in ("raw", "square"))

    @property
    def _sizes(self) -> list[int]:
        """The fields, the weight, who had to shorten what, who counts, and the counts."""
        return [*self.numbers.values(), 1, len(self._flags), 1, len(COUNTS)]

    def shorten(self, fields: Mapping[str, Tensor]) -> tuple[State, set[str]]:
        """What is sent of a client's fields, vectors each, none longer than its bound; and which of them were."""
        factors = {}
        for name, v in fields.items():
            length, bound = float(norm(v)), self.bounds[name]
            factors[name] = bound / length if length > bound else 1.0
        if "square" in fields:
            factor = min(factors["update"], factors.get("raw", 1.0), factors["square"] ** 0.5)
            factors |= {"update": factor, "raw": factor, "square": factor**2}
        sent = {name: v * factors[name] if factors[name] < 1 else v for name, v in fields.items()}
        return sent, {name for name in sent if factors[name] < 1 - 1e-6}  # less is float32's rounding

    def encode(self, fields: Mapping[str, Tensor], metrics: Mapping[str, float], weight: float) -> Tensor:
        """A client's vector, float64; its weight in units of the largest. All zero if there is anything that is not finite."""
        found = {name: v.numel() for name, v in fields.items()}
        if found != {name: n for name, n in self.numbers.items() if name not in MEANS}:
            raise InvalidInput(f"secure sum: the fields {found!r} are invalid: expected {self.numbers!r}.")
        values = {name: v.detach().double().cpu() for name, v in fields.items()}
        if not metrics.get("finite", True) or not all(bool(torch.isfinite(v).all()) for v in values.values()):
            return torch.zeros(self.size, dtype=torch.float64)
        for name in MEANS:
            most = 2 * self.bounds[name]  # for anything beyond the bound
            values[name] = torch.tensor([metrics.get(name, 0.0)], dtype=torch.float64).nan_to_num(most, most, -most)
        half = self.levels // 2
        counts = {name: float(metrics.get(name, 0)) for name in COUNTS}
        sent, cut = self.shorten(values)
        cut |= {name for name, n in counts.items() if n > half}
        parts = [sent[name] * (weight * half / self.bounds[name]) for name in self.numbers]
        rest = [weight * half, *(name in cut for name in self._flags), 1.0, *counts.values()]
        return torch.cat([*parts, torch.tensor(rest, dtype=torch.float64)]).round().clamp(-half, half)

    def decode(self, total: Tensor) -> Summed:
        """From the sum of the clients' vectors."""
        *parts, weight, cut, clients, counts = torch.split(total, self._sizes)
        metrics = dict(zip(COUNTS, counts.tolist(), strict=True))
        fields: State = {}
        if weight > 0:
            fields = {k: v / weight * self.bounds[k] for k, v in zip(self.numbers, parts, strict=True)}
            metrics |= {name: float(fields.pop(name)) for name in MEANS}
        shortened = {name: int(n) for name, n in zip(self._flags, cut.tolist(), strict=True) if n}
        return Summed(fields, metrics, float(weight) / (self.levels // 2), int(clients), shortened)

    def error(self, weight: float) -> dict[str, float]:
        """How far a mean over clients of this weight in all may be from the mean of what they sent, in any number.

        A client rounds each number and its weight by half a level at most, so that sums V and W are wrong by up to
        clients / 2 levels, and |V| <= W: V / W is wrong by up to clients / (W - clients / 2).
        """
        total = weight * (self.levels // 2)
        return {name: bound * self.clients / (total - self.clients / 2) for name, bound in self.bounds.items()}


def _has_square(name: str, bound: float) -> None:
    if not 1e-150 < bound < 1e150:
        raise InvalidInput(f"Secure: {name}={bound!r} has no square; expected a number between 1e-150 and 1e150.")
