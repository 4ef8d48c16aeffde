"""User-level differential privacy: short updates, noise in their sum, and an account of what was released.

McMahan, Ramage, Talwar, Zhang. Learning differentially private recurrent language models. ICLR 2018 (DP-FedAvg).
Andrew, Thakkar, McMahan, Ramaswamy. Differentially private learning with adaptive clipping. NeurIPS 2021.
Cohorts of a fixed size: Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018; composed as in
Zhu, Dong, Wang. Optimal accounting of differential privacy via characteristic function. AISTATS 2022.
Deviations: any scalar of a round, and not the adaptive clip's alone, shares the budget with the update, at ten times the
noise multiplier; Andrew et al. take a twentieth of the cohort as the deviation of their count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedstride.algorithm.sampling import Bernoulli, Sampler, Uniform
from fedstride.core.errors import InvalidInput, Refused, fraction, positive
from fedstride.core.rows import Rows, State, Vec, norm

SCALAR = 10  # a scalar's noise multiplier, in those of the whole release


@dataclass(frozen=True)
class Field:
    """A part of an upload: every one of its numbers lies in [low, high], up to rounding."""

    name: str
    numbers: int
    low: float
    high: float


@dataclass(frozen=True)
class Privacy:
    """Gaussian noise on the sum of updates that are no longer than a clip. The server is trusted, what it releases is private.

    A round's release is all that leaves the sum: the update and, where server or clip ask for them, a few scalars. As a whole
    it is one Gaussian mechanism with the multiplier `noise`.
    """

    noise: float  # noise multiplier: standard deviation over sensitivity, of the whole release of a round
    clip: float = 1.0  # longest update of a client; the first one, if it adapts
    quantile: float | None = None  # None: a fixed clip; else the clip follows this quantile of the updates' lengths
    delta: float | None = None  # None: N^-1.1 for N clients
    clip_lr: float = 0.2

    def __post_init__(self) -> None:
        positive(self, noise=self.noise, clip=self.clip, clip_lr=self.clip_lr)
        fraction(self, quantile=self.quantile, delta=self.delta)

    def init(self, x: Vec) -> State:
        """Part of the server's state, sent to the clients."""
        return {"clip": x.new_tensor(self.clip)}

    def shorten(self, update: Rows, clip: Tensor) -> tuple[Rows, State]:
        """At the client: rows of at most `clip` in length and, if the clip adapts, whether they were that short before."""
        length = norm(update)
        vote = {} if self.quantile is None else {"below": (length <= clip).to(update) - 0.5}
        return update * (clip / length).clamp(max=1.0), vote

    def release(self, fields: State, answered: int, expected: float, state: State, source: torch.Generator) -> State:
        """At the server: sum / expected + noise of every field, from the means over those who answered.

        The denominator is the expected number of participants, whoever answered: a mean over who did would change with the
        number of clients, and no noise would hide that.
        """
        released: State = {}
        for name in sorted(fields):  # so that the noise does not depend on the order of the fields
            mean, (low, high) = fields[name], _range(name, float(state["clip"]))
            deviation = self._multiplier(name, len(fields) - 1) * max(-low, high) / expected
            noise = torch.randn(mean.shape, generator=source, dtype=torch.float64, device="cpu") * deviation
            released[name] = mean * (answered / expected) + noise.to(mean)
        if "square" in released:
            released["square"] = released["square"].clamp(min=0)  # of what is private already
        return released

    def follow(self, fields: State, state: State) -> None:
        """Move an adaptive clip by a release: clip *= exp(-clip_lr (b - quantile)), b the share of updates below it."""
        if self.quantile is not None:
            b = fields.pop("below")[0] + 0.5
            state["clip"] = state["clip"] * torch.exp(-self.clip_lr * (b - self.quantile))  # Andrew et al. alg. 1

    def declared(self, numbers: Mapping[str, int], clip: float) -> tuple[Field, ...]:
        """The fields of an upload with their ranges under this clip, as secure aggregation needs to know them."""
        return tuple(Field(name, n, *_range(name, clip)) for name, n in numbers.items())

    def expected(self, sampler: Sampler, clients: int) -> float:
        """How many clients take part in a round, on average; refuses samplers that it cannot account for."""
        if isinstance(sampler, Bernoulli):
            return sampler.p * clients
        if isinstance(sampler, Uniform):
            return float(sampler.size)
        raise Refused(
            f"Privacy: no accountant for {sampler}. Use cohort=fs.Bernoulli(p), a number of clients, or None for everybody."
        )

    def delta_for(self, clients: int) -> float:
        """The delta that epsilon is for."""
        if self.delta is None and clients < 2:
            raise Refused("Privacy with one client: there is nobody to hide among. Give more clients, or delta=.")
        return clients**-1.1 if self.delta is None else self.delta

    def epsilon(self, sampler: Sampler, clients: int, releases: int) -> float:
        """An upper bound of epsilon at delta_for(clients), after so many releases.

        Bernoulli(p), and everybody in every round: for federations of which one has one client more; the number of clients,
        as it stands in the denominator and in delta, is public. Uniform(size): for federations of the same size of which
        one client is another, so that a sum changes by up to twice the longest update; at the same noise that epsilon is
        larger. An empty round that Bernoulli draws again is paid for, see `_again`.
        """
        delta, again = self.delta_for(clients), _again(sampler, clients)
        share = self.expected(sampler, clients) / clients
        if again > delta / 1000:
            raise Refused(
                f"Privacy with {sampler} among {clients} clients: empty rounds are drawn again, too often for "
                f"delta={delta:.2g}. Use a larger p, more clients, or Uniform(size)."
            )
        left = delta - releases * again
        noise = min(self.noise, 1e4)  # an upper bound still, and a grid that exists
        if releases == 0 or left <= 0 or noise < 0.05:  # epsilon is in the hundreds, and takes long to find out
            return math.inf if releases else 0.0
        if share == 1:
            return float(_accounting().get_epsilon_gaussian(noise / math.sqrt(releases), left))
        loss = _composed(noise, share, isinstance(sampler, Uniform), releases)
        return float(loss.get_epsilon_for_delta(left)) - releases * math.log1p(-again)

    def _multiplier(self, name: str, scalars: int) -> float:
        """z_u^-2 + scalars (10 z)^-2 = z^-2."""
        return SCALAR * self.noise if name != "update" else self.noise / math.sqrt(1 - scalars / SCALAR**2)


def _range(name: str, clip: float) -> tuple[float, float]:
    """Of every number in a client's field; its larger end is the field's sensitivity, the update's as a whole."""
    ranges = {"update": (-clip, clip), "square": (0.0, clip**2), "below": (-0.5, 0.5)}
    if name not in ranges:
        raise Refused(
            f"Privacy: {name!r} of the clients has no known bound, so no noise can hide it. Use parts whose clients upload "
            f"nothing but {', '.join(ranges)}."
        )
    return ranges[name]


def _again(sampler: Sampler, clients: int) -> float:
    """How far a round that is never empty is from Poisson sampling: k = p (1-p)^(N-1) / (1 - (1-p)^N).

    One client, x, against none: given that a round is not empty, it is with weight 1 - k the Poisson-sampled sum of a round
    of the others that is not empty, and with weight k that of x alone. So delta grows by k, epsilon by -log(1 - k).
    """
    if not isinstance(sampler, Bernoulli) or sampler.p == 1:
        return 0.0
    others = (1 - sampler.p) ** (clients - 1)
    return sampler.p * others / (1 - (1 - sampler.p) * others)


@lru_cache(maxsize=32)
def _composed(noise: float, share: float, replace: bool, releases: int) -> Any:
    """The privacy loss of so many releases. By binary digits: a new round costs one convolution, and the bits are the same
    whether or not the rounds before were asked for."""
    rest, last = releases & (releases - 1), releases & -releases
    if rest:
        return _composed(noise, share, replace, rest).compose(_composed(noise, share, replace, last))
    if releases > 1:
        half = _composed(noise, share, replace, releases // 2)
        return half.compose(half)
    interval = min(5e-3, max(1e-3, share / noise / 4))  # quick; within 1 % of 1e-4, and always above the truth
    return _replaced(noise, share, interval) if replace else _added(noise, share, interval)


def _added(noise: float, share: float, interval: float) -> Any:
    """Poisson sampling, one client more or less."""
    distributions = _accounting().pld.privacy_loss_distribution
    return distributions.from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=interval)


def _replaced(noise: float, share: float, interval: float) -> Any:
    """Sampling without replacement, one client for another.

    With that client in the cohort, the sum is up to 2 sensitivities away from the sum with any other in its place. So, for
    epsilon >= 0, delta is at most that of a Gaussian of half the multiplier under Poisson sampling; a relation without
    direction gives the rest, delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
    """
    import numpy as np

    pld = _accounting().pld
    loss = pld.privacy_loss_mechanism.GaussianPrivacyLoss(noise / 2, sampling_prob=share)
    steps = math.ceil(loss.connect_dots_bounds().epsilon_upper / interval)
    eps = np.arange(steps + 1) * interval
    above = loss.get_delta_for_epsilon(eps)
    below = -np.expm1(-eps) + np.exp(-eps) * above
    deltas = np.concatenate([below[:0:-1], above])
    mass = pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, deltas)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(mass)


def _accounting() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidInput(
            "privacy: epsilon is computed by the package dp-accounting, which is not installed. "
            "pip install 'fedstride[privacy]'"
        ) from error
    return dp_accounting
