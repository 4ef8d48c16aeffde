"""Encode uploads as integers for an exact secure sum, and decode the sum to the cohort's means.

For protocols that sum modulo 2^32 without revealing the summands: Bell, Bonawitz, Gascon, Lepoint, Raykova. Secure
single-server aggregation with (poly)logarithmic overhead. CCS 2020 (SecAgg+, see engine/flower/secagg.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import State, norm

MODULUS = 2**32  # modulus of the sums
LEAST = 3  # clients: with two, each would learn what the other sent
MEANS = {"train_loss": 100.0, "client_step": 100.0, "trials": 100.0}  # metrics of the history, with their bounds
COUNTS = ("failed", "gradients", "forwards")  # integers, summed without scaling
NATURAL = {"below": 0.5, **MEANS}
TOGETHER = ("update", "raw", "square")  # clipped together
INPUTS = 1e20  # default of bounds["inputs"], the bound of inputs for normalise=True


def levels(clients: int) -> int:
    """Return the even number of levels: a client's numbers lie in [-levels/2, levels/2], so that their sum fits."""
    return min(2**30, (MODULUS - 1) // clients) // 2 * 2


@dataclass(frozen=True)
class Secure:
    """Bounds of the norms in a secure sum. Longer fields are clipped, and the server learns the number of clips.

    Generous bounds cost little: the rounding error of M clients is M 2^-31 of a bound.
    """

    bound: float  # norm of a client's update; its square bounds the squared norm
    bounds: Mapping[str, float] = field(default_factory=dict)  # norms of fields without a known range, by name

    def __post_init__(self) -> None:
        positive(self, bound=self.bound)
        _has_square("bound", self.bound)
        if not isinstance(self.bounds, Mapping):
            raise InvalidInput(f"Secure: bounds={self.bounds!r} is invalid: expected a dict of names and numbers.")
        positive("Secure.bounds", **self.bounds)
        _has_square("inputs", self.inputs)
        for name in TOGETHER:
            if name in self.bounds:
                raise InvalidInput(
                    f"Secure: bounds={dict(self.bounds)!r} contains {name!r}, which is set by bound={self.bound}."
                )

    @property
    def inputs(self) -> float:
        """Bound of the magnitude of inputs."""
        return self.bounds.get("inputs", INPUTS)

    def layout(self, numbers: Mapping[str, int], clients: int) -> Layout:
        """Return the layout of the clients' vectors, for fields with these numbers of entries."""
        if clients < LEAST:
            raise InvalidInput(f"Secure: a cohort of {clients} gives no privacy; expected at least {LEAST} clients.")
        known = {**NATURAL, **self.bounds, "update": self.bound, "raw": self.bound, "square": self.bound**2}
        for name in numbers:
            if name not in known:
                raise InvalidInput(
                    f"Secure: bounds={dict(self.bounds)!r} has no {name!r}, which clients send and which has no known range. "
                    f"Add its largest norm, as in bounds={{{name!r}: 10.0}}; a generous bound costs little."
                )
        numbers = dict(sorted({**dict.fromkeys(MEANS, 1), **numbers}.items()))
        return Layout(numbers, {name: float(known[name]) for name in numbers}, clients)


@dataclass(frozen=True)
class Summed:
    """The result of a secure sum over a cohort."""

    fields: State  # weighted means, float64; empty if no client had finite values
    metrics: dict[str, float]  # weighted means, and sums of counts
    weight: float  # weight of the clients with finite values, in units of the largest weight
    clients: int  # number of clients with finite values
    shortened: dict[str, int]  # number of clients that clipped a field, by name


@dataclass(frozen=True)
class Layout:
    """The layout of a client's vector of integers, shared by the server and the clients of a round."""

    numbers: dict[str, int]
    bounds: dict[str, float]  # largest norm, by name
    clients: int  # maximum number of clients in a sum

    @property
    def levels(self) -> int:
        return levels(self.clients)

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def _flags(self) -> tuple[str, ...]:
        """Fields that may be clipped; the squared norm is clipped with the update."""
        return tuple(name for name in (*self.numbers, *COUNTS) if name not in ("raw", "square"))

    @property
    def _sizes(self) -> list[int]:
        """Sizes of the fields, the weight, the clip flags, the finite flag, and the counts."""
        return [*self.numbers.values(), 1, len(self._flags), 1, len(COUNTS)]

    def shorten(self, fields: Mapping[str, Tensor]) -> tuple[State, set[str]]:
        """Clip a client's fields (vectors) to their bounds; return them and the names of those that were clipped."""
        factors = {}
        for name, v in fields.items():
            length, bound = float(norm(v)), self.bounds[name]
            factors[name] = bound / length if length > bound else 1.0
        if "square" in fields:
            factor = min(factors["update"], factors.get("raw", 1.0), factors["square"] ** 0.5)
            factors |= {"update": factor, "raw": factor, "square": factor**2}
        sent = {name: v * factors[name] if factors[name] < 1 else v for name, v in fields.items()}
        return sent, {name for name in sent if factors[name] < 1 - 1e-6}  # smaller differences are float32 rounding

    def encode(self, fields: Mapping[str, Tensor], metrics: Mapping[str, float], weight: float) -> Tensor:
        """Encode a client's upload as a float64 vector; all zero if any value is not finite.

        The weight is in units of the largest weight.
        """
        found = {name: v.numel() for name, v in fields.items()}
        if found != {name: n for name, n in self.numbers.items() if name not in MEANS}:
            raise InvalidInput(f"secure sum: the fields {found!r} are invalid: expected {self.numbers!r}.")
        values = {name: v.detach().double().cpu() for name, v in fields.items()}
        if not metrics.get("finite", True) or not all(bool(torch.isfinite(v).all()) for v in values.values()):
            return torch.zeros(self.size, dtype=torch.float64)
        for name in MEANS:
            most = 2 * self.bounds[name]  # for values beyond the bound
            values[name] = torch.tensor([metrics.get(name, 0.0)], dtype=torch.float64).nan_to_num(most, most, -most)
        half = self.levels // 2
        counts = {name: float(metrics.get(name, 0)) for name in COUNTS}
        sent, cut = self.shorten(values)
        cut |= {name for name, n in counts.items() if n > half}
        parts = [sent[name] * (weight * half / self.bounds[name]) for name in self.numbers]
        rest = [weight * half, *(name in cut for name in self._flags), 1.0, *counts.values()]
        return torch.cat([*parts, torch.tensor(rest, dtype=torch.float64)]).round().clamp(-half, half)

    def decode(self, total: Tensor) -> Summed:
        """Decode the sum of the clients' vectors."""
        *parts, weight, cut, clients, counts = torch.split(total, self._sizes)
        metrics = dict(zip(COUNTS, counts.tolist(), strict=True))
        fields: State = {}
        if weight > 0:
            fields = {k: v / weight * self.bounds[k] for k, v in zip(self.numbers, parts, strict=True)}
            metrics |= {name: float(fields.pop(name)) for name in MEANS}
        shortened = {name: int(n) for name, n in zip(self._flags, cut.tolist(), strict=True) if n}
        return Summed(fields, metrics, float(weight) / (self.levels // 2), int(clients), shortened)

    def possible(self, total: Tensor, clients: int) -> bool:
        """Whether this can be the sum of the vectors of this many clients; with a false vector or mask, it hardly ever is.

        No mean is longer than its bound, the mean of the squared norms is between the squared norm of the mean and the squared
        bound, and no count is negative.
        """
        half = self.levels // 2
        if total.shape != (self.size,) or not bool((total.abs() <= clients * half).all()):  # also refuses NaN
            return False
        *parts, weight, cut, finite, counts = torch.split(total, self._sizes)
        numbers = torch.cat([weight, cut, finite, counts])
        if bool((numbers < 0).any()) or bool((torch.cat([cut, finite]) > clients).any()):
            return False
        found = dict(zip(self.numbers, parts, strict=True))
        most = float(weight) * (1 + 1e-6) + clients / 2  # each client rounds by at most 1/2, and so does its weight
        for v in found.values():
            if float(norm(v)) > most + clients * v.numel() ** 0.5 / 2:
                return False
        if "square" not in found:
            return True
        v, square = found.get("raw", found.get("update", weight[:0])), float(found["square"])
        least = max(0.0, float(norm(v)) - clients * v.numel() ** 0.5 / 2)
        return square >= -clients / 2 and least**2 <= most * (square + clients)  # Jensen's inequality

    def error(self, weight: float) -> dict[str, float]:
        """Return the error bound of each number of a mean, for clients with this total weight.

        A client rounds each number and its weight by at most half a level. The sums V and W are therefore wrong by up to
        clients / 2 levels, and |V| <= W, so V / W is wrong by up to clients / (W - clients / 2).
        """
        total = weight * (self.levels // 2)
        return {name: bound * self.clients / (total - self.clients / 2) for name, bound in self.bounds.items()}


def _has_square(name: str, bound: float) -> None:
    if not 1e-150 < bound < 1e150:
        raise InvalidInput(
            f"Secure: {name}={bound!r} is invalid: expected a number between 1e-150 and 1e150, with a finite square."
        )
