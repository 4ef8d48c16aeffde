"""User-level differential privacy: clipped updates, noise in their sum, and accounting of the releases.

McMahan, Ramage, Talwar, Zhang. Learning differentially private recurrent language models. ICLR 2018 (DP-FedAvg).
Andrew, Thakkar, McMahan, Ramaswamy. Differentially private learning with adaptive clipping. NeurIPS 2021.
Cohorts of a fixed size: Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018; composed as in
Zhu, Dong, Wang. Optimal accounting of differential privacy via characteristic function. AISTATS 2022.
Deviations: every scalar of a round, not only that of the adaptive clip, shares the budget with the update, at ten times
the noise multiplier; Andrew et al. use a twentieth of the cohort as the deviation of their count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedstride.algorithm.noise import Normals, fresh_secret
from fedstride.algorithm.sampling import Sampler
from fedstride.core.capabilities import declared
from fedstride.core.errors import InvalidInput, Refused, fraction, positive
from fedstride.core.rows import Rows, State, Vec, norm

SCALAR = 10  # noise multiplier of a scalar, relative to that of the whole release


@dataclass(frozen=True)
class Field:
    """A field of an upload, all of whose numbers lie in [low, high], up to rounding."""

    name: str
    numbers: int
    low: float
    high: float


@dataclass(frozen=True)
class Privacy:
    """Differential privacy for clients: clip their updates, and add Gaussian noise to the sum.

    The server is trusted; what it releases is private. The release of a round consists of the mean update and, if the
    server rule or an adaptive clip needs them, a few scalars. It is one Gaussian mechanism with the multiplier `noise`.

    Args:
        noise: noise multiplier of a round's release: standard deviation over sensitivity.
        clip: largest norm of a client's update; the initial one, if it adapts.
        quantile: quantile of the updates' norms that the clip follows. None: a fixed clip.
        delta: probability in (epsilon, delta). None: N^-1.1 for N clients.
        clip_lr: rate at which an adaptive clip moves.

    Raises:
        InvalidInput: if a value is out of range.

    Example:
        >>> privacy = fs.Privacy(noise=1.0, clip=0.5)
        >>> algorithm = fs.Algorithm(server=fs.FedExP(), privacy=privacy)
        >>> privacy.expected(fs.Bernoulli(0.1), clients=1000)
        100.0
    """

    noise: float
    clip: float = 1.0
    quantile: float | None = None
    delta: float | None = None
    clip_lr: float = 0.2
    secret: ClassVar[str] = ""  # set by drawn_from(); not a setting, and never shown

    def __post_init__(self) -> None:
        positive(self, noise=self.noise, clip=self.clip, clip_lr=self.clip_lr)
        fraction(self, quantile=self.quantile, delta=self.delta)

    def start(self) -> str:
        """Return the secret of a new run, from which noise and cohorts are drawn."""
        return hashlib.sha3_256(self.secret.encode()).hexdigest() if self.secret else fresh_secret()

    def init(self, x: Vec) -> State:
        """Return the initial state, which is sent to the clients."""
        return {"clip": x.new_tensor(self.clip)}

    def shorten(self, update: Rows, clip: Tensor) -> tuple[Rows, State]:
        """Clip rows to a norm of at most `clip`, on the clients; the vote for an adaptive clip is 0.5 below, else -0.5."""
        length = norm(update)
        vote = {} if self.quantile is None else {"below": (length <= clip).to(update) - 0.5}
        return update * (clip / length).clamp(max=1.0), vote

    def release(self, fields: State, answered: int, expected: float, state: State, source: Normals) -> State:
        """Return sum / expected + noise for every field (on the server), from the means over the clients that answered.

        The denominator is the expected number of participants: a mean over the clients that answered would reveal their
        number, which the noise does not hide.
        """
        released: State = {}
        for name in sorted(fields):  # the noise must not depend on the order of the fields
            mean, deviation = fields[name], self.deviation(name, len(fields) - 1, expected, state)
            released[name] = mean * (answered / expected) + (source(mean.shape) * deviation).to(mean)
        if "square" in released:
            released["square"] = released["square"].clamp(min=0)  # post-processing costs no privacy
        return released

    def deviation(self, name: str, scalars: int, expected: float, state: State) -> float:
        """Return the standard deviation of the noise in every number of a field, beside this many scalars."""
        low, high = _range(name, float(state["clip"]))
        return self._multiplier(name, scalars) * max(-low, high) / expected

    def damping(self, square: float, state: State) -> float:
        """Return clip / |noise|, at most 1, where `square` is the expected squared norm of the noise in a mean update.

        Server rules with momentum and extrapolation lengthen updates several times over. With this factor, the noise that
        they lengthen is at most as long as one client's update. It depends on no data.
        """
        return min(1.0, float(state["clip"]) / math.sqrt(square))

    def drawn_from(self, secret: str) -> Privacy:
        """Return the same mechanism with noise and cohorts from a known text, for tests and examples.

        Whoever knows the text can remove the noise. Without it, every run draws a secret from the operating system.
        """
        if not isinstance(secret, str) or not secret:
            raise InvalidInput(f"Privacy: secret={secret!r} is invalid: expected a text.")
        made = replace(self)
        object.__setattr__(made, "secret", secret)
        return made

    def follow(self, fields: State, state: State) -> None:
        """Update an adaptive clip: clip *= exp(-clip_lr (b - quantile)), where b is the share of updates below it."""
        if self.quantile is not None:
            b = fields.pop("below")[0] + 0.5
            state["clip"] = state["clip"] * torch.exp(-self.clip_lr * (b - self.quantile))  # Andrew et al. alg. 1

    def declared(self, numbers: Mapping[str, int], clip: float) -> tuple[Field, ...]:
        """Return the fields of an upload with their ranges under this clip, for secure aggregation."""
        return tuple(Field(name, n, *_range(name, clip)) for name, n in numbers.items())

    def expected(self, sampler: Sampler, clients: int) -> float:
        """Return the expected number of participants of a round; refuse samplers without an accountant."""
        known: Any = sampler  # its declaration promises p or size
        if declared(sampler, "sampling") == "poisson":
            return float(known.p * clients)
        if declared(sampler, "sampling") == "fixed":
            return float(known.size)
        raise Refused(
            f"Privacy: no accountant for {sampler}. Use cohort=fs.Bernoulli(p), a number of clients, or None for all clients."
        )

    def delta_for(self, clients: int) -> float:
        """Return the delta at which epsilon is computed."""
        if self.delta is None and clients < 2:
            raise Refused("Privacy with one client: there are no others to hide among. Give more clients, or delta=.")
        return clients**-1.1 if self.delta is None else self.delta

    def epsilon(self, sampler: Sampler, clients: int, releases: int) -> float:
        """Return an upper bound of epsilon at delta_for(clients), after a number of releases.

        Neighbouring federations differ as follows. Bernoulli(p), and all clients in every round: one has one client
        more; the number of clients in the denominator and in delta is public. Uniform(size): one client is replaced, so
        a sum changes by up to twice the clip, and epsilon is larger at the same noise. The bound accounts for empty
        rounds that Bernoulli draws again: see `_again`.
        """
        delta, again = self.delta_for(clients), _again(sampler, clients)
        share = self.expected(sampler, clients) / clients
        if again > delta / 1000:
            raise Refused(
                f"Privacy with {sampler} among {clients} clients: empty rounds, which are drawn again, are too likely for "
                f"delta={delta:.2g}. Use a larger p, more clients, or Uniform(size)."
            )
        left = delta - releases * again
        noise = min(self.noise, 1e4)  # still an upper bound; the accountant's grid needs a limit
        if releases == 0 or left <= 0 or noise < 0.05:  # epsilon is in the hundreds, and slow to compute
            return math.inf if releases else 0.0
        if share == 1:
            return float(_accounting().get_epsilon_gaussian(noise / math.sqrt(releases), left))
        loss = _composed(noise, share, declared(sampler, "sampling") == "fixed", releases)
        return float(loss.get_epsilon_for_delta(left)) - releases * math.log1p(-again)

    def _multiplier(self, name: str, scalars: int) -> float:
        """Return the noise multiplier of a field: z_u^-2 + scalars (10 z)^-2 = z^-2."""
        return SCALAR * self.noise if name != "update" else self.noise / math.sqrt(1 - scalars / SCALAR**2)


def _range(name: str, clip: float) -> tuple[float, float]:
    """Return the range of the numbers in a field; its larger end is the sensitivity of the field (a vector: its norm)."""
    ranges = {"update": (-clip, clip), "square": (0.0, clip**2), "below": (-0.5, 0.5)}
    if name not in ranges:
        raise Refused(
            f"Privacy: the clients' field {name!r} has no known bound, so no noise can hide it. Use parts whose clients upload "
            f"only {', '.join(ranges)}."
        )
    return ranges[name]


def _again(sampler: Any, clients: int) -> float:
    """Return the distance k of non-empty rounds from Poisson sampling: k = p (1-p)^(N-1) / (1 - (1-p)^N).

    Compare the federation with and without a client x. A non-empty round is, with weight 1 - k, the Poisson-sampled sum
    of a non-empty round of the others and, with weight k, x alone. So delta grows by k, and epsilon by -log(1 - k).
    """
    if declared(sampler, "sampling") != "poisson" or sampler.p == 1:
        return 0.0
    p: float = sampler.p
    others = (1 - p) ** (clients - 1)
    return p * others / (1 - (1 - p) * others)


@lru_cache(maxsize=32)
def _composed(noise: float, share: float, replace: bool, releases: int) -> Any:
    """Return the privacy loss of a number of releases, composed by its binary digits.

    So a new round costs one convolution, and the result does not depend on earlier calls.
    """
    rest, last = releases & (releases - 1), releases & -releases
    if rest:
        return _composed(noise, share, replace, rest).compose(_composed(noise, share, replace, last))
    if releases > 1:
        half = _composed(noise, share, replace, releases // 2)
        return half.compose(half)
    interval = min(5e-3, max(1e-3, share / noise / 4))  # fast; within 1 % of the result for 1e-4, always an upper bound
    return _replaced(noise, share, interval) if replace else _added(noise, share, interval)


def _added(noise: float, share: float, interval: float) -> Any:
    """Return the privacy loss for Poisson sampling, if one client is added or removed."""
    distributions = _accounting().pld.privacy_loss_distribution
    return distributions.from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=interval)


def _replaced(noise: float, share: float, interval: float) -> Any:
    """Return the privacy loss for sampling without replacement, if one client is replaced.

    If that client is in the cohort, the sum changes by up to 2 sensitivities when it is replaced. So, for epsilon >= 0,
    delta is at most that of a Gaussian with half the multiplier under Poisson sampling. The relation is symmetric,
    which gives the rest: delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
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
            "privacy: computing epsilon needs the package dp-accounting, which is not installed: "
            "pip install 'fedstride[privacy]'."
        ) from error
    return dp_accounting
