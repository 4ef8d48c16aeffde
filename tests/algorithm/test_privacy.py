"""Privacy: clipping, the scale of the noise, a fixed denominator, and epsilon against independent accounting."""

from __future__ import annotations

import math
import sys
from itertools import combinations, combinations_with_replacement

import dp_accounting as dp
import numpy as np
import pytest
import torch

from fedstride.algorithm.noise import Normals, normals
from fedstride.algorithm.privacy import Field, Privacy, _again, _composed
from fedstride.algorithm.sampling import Bernoulli, Uniform, Weighted
from fedstride.core.errors import InvalidInput, Refused
from fedstride.core.rows import generator, norm

REPLACE = dp.NeighboringRelation.REPLACE_ONE
CLIP = torch.tensor(2.0, dtype=torch.float64)
QUIET = Privacy(noise=1e-12)
GRID = 1e-8  # error of an integral over a grid of 0.001


def rows(C: int = 6, d: int = 50) -> torch.Tensor:
    return torch.randn(C, d, generator=generator(0), dtype=torch.float64) * torch.logspace(-2, 1, C)[:, None]


def normal(key: int) -> Normals:
    return normals(str(key))


# the client's side


def test_rows_are_clipped_and_keep_their_directions():
    W = rows()
    short, _ = Privacy(1.0).shorten(W, CLIP)
    assert (norm(short) <= CLIP * (1 + 1e-15)).all()
    torch.testing.assert_close(short / norm(short), W / norm(W))
    assert torch.allclose(norm(short)[norm(W) > CLIP], CLIP, rtol=1e-15)  # and not a bit shorter than it must be


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_below_the_clip_are_unchanged(dtype):
    W = rows().to(dtype)
    short, _ = Privacy(1.0).shorten(W, CLIP.to(dtype))
    kept = (norm(W) <= CLIP)[:, 0]
    assert 0 < kept.sum() < len(W) and torch.equal(short[kept], W[kept])


def test_zero_tiny_and_huge_rows():
    W = torch.tensor([[0.0, 0.0], [1e-30, 0.0], [1e30, 1e30]])  # float32: the last one's square overflows
    short, _ = Privacy(1.0).shorten(W, torch.tensor(2.0))
    assert torch.equal(short[:2], W[:2]) and float(norm(short)[2]) <= 2


def test_clients_vote_for_an_adaptive_clip():
    assert Privacy(1.0).shorten(rows(), CLIP)[1] == {}
    below = Privacy(1.0, quantile=0.5).shorten(rows(), CLIP)[1]["below"]
    assert torch.equal(below + 0.5, (norm(rows()) <= CLIP).double())


# the server's side


def fields(d: int = 20000, *scalars: str) -> dict[str, torch.Tensor]:
    return {"update": torch.zeros(d, dtype=torch.float64), **{s: torch.zeros(1, dtype=torch.float64) for s in scalars}}


def test_the_denominator_does_not_depend_on_who_answered():
    mean = {"update": torch.tensor([3.0, -1.0]), "square": torch.tensor([2.0])}
    for answered in (1, 7, 12):
        out = QUIET.release(mean, answered, 10.0, QUIET.init(mean["update"]), normal(1))
        torch.testing.assert_close(out["update"], mean["update"] * answered / 10)
        torch.testing.assert_close(out["square"], mean["square"] * answered / 10)


def deviation_is(sample: torch.Tensor, sigma: float) -> bool:
    """Whether the sample deviation is within five standard errors of the expected one."""
    return abs(float(sample.std()) / sigma - 1) < 5 / math.sqrt(2 * len(sample)) and abs(
        float(sample.mean())
    ) < 5 * sigma / math.sqrt(len(sample))


@pytest.mark.parametrize("scalars", [(), ("square",), ("square", "below")])
def test_the_noise_of_the_update(scalars):
    privacy, z, clip, expected = Privacy(noise=0.7, clip=3.0), 0.7, 3.0, 25.0
    out = privacy.release(fields(20000, *scalars), 30, expected, {"clip": torch.tensor(clip)}, normal(2))
    z_update = (z**-2 - len(scalars) * (10 * z) ** -2) ** -0.5
    assert deviation_is(out["update"], z_update * clip / expected)


@pytest.mark.parametrize(("name", "sensitivity"), [("below", 0.5), ("square", 9.0)])
def test_the_noise_of_a_scalar(name, sensitivity):
    privacy, state, source = Privacy(noise=0.7), {"clip": torch.tensor(3.0)}, normal(3)
    mean = fields(1, name) | {name: torch.full((1,), 1e3, dtype=torch.float64)}  # far from the square's clamp
    drawn = torch.cat([privacy.release(mean, 25, 25.0, state, source)[name] for _ in range(2000)]) - 1e3
    assert deviation_is(drawn, 10 * 0.7 * sensitivity / 25)


def test_the_release_is_one_gaussian_mechanism_with_the_given_multiplier():
    """A client moves every field by sensitivity / deviation; together, these moves have the norm 1 / noise."""
    sensitivity = {"below": 0.5, "square": 1.5**2, "update": 1.5}
    mean = {name: torch.full((1,), 1e3, dtype=torch.float64) for name in sensitivity}
    out = Privacy(noise=0.7).release(mean, 8, 8.0, {"clip": torch.tensor(1.5)}, normal(4))
    same = normal(4)
    units = {name: same((1,)) for name in sorted(mean)}
    moves = [sensitivity[name] / 8 / float((out[name] - 1e3) / units[name]) for name in mean]
    assert math.hypot(*moves) == pytest.approx(1 / 0.7, rel=1e-9)


def test_the_released_square_is_not_negative():
    privacy, state, source = Privacy(noise=5.0), {"clip": torch.tensor(1.0)}, normal(5)
    drawn = [float(privacy.release(fields(1, "square"), 4, 4.0, state, source)["square"]) for _ in range(50)]
    assert min(drawn) == 0 < max(drawn)


def test_the_same_source_gives_the_same_bits_whatever_the_order_of_the_fields():
    sizes = {"update": 3, "square": 1, "below": 1}
    mean = {name: torch.full((n,), 1e3) for name, n in sizes.items()}  # far from the square's clamp
    state = {"clip": torch.tensor(1.0)}
    one = Privacy(1.0).release(mean, 3, 4.0, state, normal(6))
    two = Privacy(1.0).release(dict(reversed(mean.items())), 3, 4.0, state, normal(6))
    other = Privacy(1.0).release(mean, 3, 4.0, state, normal(7))
    assert all(torch.equal(one[name], two[name]) and not torch.equal(one[name], other[name]) for name in mean)
    assert all(one[name].dtype == mean[name].dtype for name in mean)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_an_adaptive_clip_finds_the_quantile(quantile):
    privacy = Privacy(noise=0.5, clip=0.1, quantile=quantile)
    lengths = torch.rand(1000, 1, generator=generator(8), dtype=torch.float64) * 4 + 1  # uniform in [1, 5]
    state, source, seen = privacy.init(lengths[:, 0]), normal(9), []
    for _ in range(300):
        short, below = privacy.shorten(lengths, state["clip"])
        mean = {"update": short.mean(0), "below": below["below"].mean(0)}
        out = privacy.release(mean, 1000, 1000.0, state, source)
        privacy.follow(out, state)
        assert set(out) == {"update"}
        seen.append(float(state["clip"]))
    assert torch.tensor(seen[-100:]).mean() == pytest.approx(float(lengths.quantile(quantile)), rel=0.02)


@pytest.mark.parametrize(("length", "k"), [(0.5, 1.0), (2.0, 1.0), (8.0, 0.25)])
def test_damped_noise_is_at_most_as_long_as_the_clip(length, k):
    assert Privacy(1.0).damping(length**2, {"clip": CLIP}) == pytest.approx(k)


def test_a_fixed_clip_stays():
    state = QUIET.init(torch.zeros(2))
    QUIET.follow({"update": torch.zeros(2)}, state)
    assert float(state["clip"]) == 1.0


# the account


def test_full_participation_is_the_gaussian_mechanism():
    """The exact epsilon, found by bisection on its definition, and below the bound by Renyi divergences."""
    z, T, delta = 4.0, 20, 1e-5
    mu = math.sqrt(T) / z

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2))

    low, high = 0.0, 50.0
    for _ in range(100):
        eps = (low + high) / 2
        spent = phi(mu / 2 - eps / mu) - math.exp(eps) * phi(-mu / 2 - eps / mu)
        low, high = (eps, high) if spent > delta else (low, eps)
    renyi = min(
        mu**2 * a / 2 + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in (1 + k / 50 for k in range(1, 2000))
    )
    for sampler in (Uniform(30), Bernoulli(1.0), Bernoulli(1)):
        assert Privacy(z, delta=delta).epsilon(sampler, 30, T) == pytest.approx(eps, rel=1e-6)
    assert eps < renyi < 1.1 * eps


@pytest.mark.parametrize(("z", "p", "T"), [(1.0, 0.1, 7), (3.0, 0.1, 100), (0.8, 0.02, 33), (2.0, 0.005, 64)])
def test_poisson_cohorts_agree_with_the_accountant_of_the_package(z, p, T):
    accountant = dp.pld.PLDAccountant(value_discretization_interval=5e-4)
    accountant.compose(dp.PoissonSampledDpEvent(p, dp.GaussianDpEvent(z)), T)
    exact = accountant.get_epsilon(1e-5)
    assert exact * (1 - 1e-6) < Privacy(z, delta=1e-5).epsilon(Bernoulli(p), 10**5, T) < 1.01 * exact


def epsilon_by_fourier(mu: float, p: float, T: int, delta: float) -> float:
    """An accountant of our own: the privacy loss of a sampled Gaussian on a grid, composed by FFT, epsilon by bisection.

    mu: what one client moves the release by, in standard deviations.
    """
    t = np.linspace(-12 - mu, 12 + mu, 400001)
    without = np.exp(-0.5 * t**2) / math.sqrt(2 * math.pi) * (t[1] - t[0])
    mixed = (1 - p) * without + p * np.exp(-0.5 * (t - mu) ** 2) / math.sqrt(2 * math.pi) * (t[1] - t[0])
    size, worst = 2**18, 0.0
    for P, Q in ((mixed, without), (without, mixed)):  # a client more, or one less
        loss = np.log(P / Q)
        width = 2 * max(20.0, 2 * T * np.abs(loss * P).sum() + 12 * math.sqrt(T * (loss**2 * P).sum()))
        place = np.rint(loss / width * size).astype(int) % size
        composed = np.fft.irfft(np.fft.rfft(np.bincount(place, P, size)) ** T, size)
        losses = (np.arange(size) + size // 2) % size * (width / size) - width / 2
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            spent = (composed * np.maximum(0.0, -np.expm1(middle - losses)))[losses > middle].sum()
            low, high = (middle, high) if spent > delta else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize("scalars", [0, 1, 2])
@pytest.mark.parametrize(
    ("z", "p", "T"), [(1.0, 0.05, 20), (0.8, 0.02, 50), (2.0, 0.1, 100), (0.7, 0.1, 50), (2.4, 0.1, 50), (5.0, 0.3, 10)]
)
def test_a_second_accountant_finds_the_same_epsilon(z, p, T, scalars):
    """One client moves the update by the clip, and every scalar, such as FedExP's mean square, by its range."""
    privacy, state, expected = Privacy(z, delta=1e-5), {"clip": torch.tensor(3.0, dtype=torch.float64)}, 7.0
    moves = {"update": 3.0, "square": 9.0, "below": 0.5}
    sent = list(moves)[: 1 + scalars]
    mu = math.hypot(*(moves[k] / expected / privacy.deviation(k, scalars, expected, state) for k in sent))
    assert privacy.epsilon(Bernoulli(p), 10**5, T) == pytest.approx(epsilon_by_fourier(mu, p, T, 1e-5), rel=0.01)


@pytest.mark.parametrize("sent", [("update",), ("update", "square"), ("below", "square", "update")])
def test_the_second_accountant_with_noise_as_it_is_drawn(sent):
    """Sensitivities over sampled deviations of the noise: what is released matches what is accounted for."""
    privacy, clip, expected, n = Privacy(0.9, delta=1e-5), 2.0, 20.0, 40_000
    state, source = {"clip": torch.tensor(clip, dtype=torch.float64)}, normal(11)
    moves = {"update": clip, "square": clip**2, "below": 0.5}
    wide = {name: torch.full((n,), 1e3, dtype=torch.float64) for name in sent}  # a sample of the noise of every field
    out = privacy.release(wide, 20, expected, state, source)
    mu = math.hypot(*(moves[name] / expected / float(out[name].std()) for name in sent))
    assert privacy.epsilon(Bernoulli(0.05), 10**5, 20) == pytest.approx(
        epsilon_by_fourier(mu, 0.05, 20, 1e-5), rel=0.02
    )


@pytest.mark.parametrize(("z", "size", "T"), [(1.0, 10, 1), (3.0, 10, 50), (5.0, 50, 20), (2.0, 99, 10)])
def test_cohorts_of_a_fixed_size_lie_between_a_pair_of_federations_and_a_renyi_bound(z, size, T):
    """The pair: all others send -v, one sends v or, in the other federation, -v as well."""
    eps = Privacy(z, delta=1e-5).epsilon(Uniform(size), 100, T)
    pair, renyi = (
        dp.pld.PLDAccountant(value_discretization_interval=1e-3),
        dp.rdp.RdpAccountant([2, 3, 4, 6, 9, 14, 32], REPLACE),
    )
    pair.compose(dp.PoissonSampledDpEvent(size / 100, dp.GaussianDpEvent(z / 2)), T)
    renyi.compose(dp.SampledWithoutReplacementDpEvent(100, size, dp.GaussianDpEvent(z / 2)), T)
    everybody = dp.get_epsilon_gaussian(z / 2 / math.sqrt(T), 1e-5)
    assert pair.get_epsilon(1e-5) * (1 - 1e-4) <= eps <= min(renyi.get_epsilon(1e-5), everybody * 1.001)


@pytest.mark.parametrize("sampler", [Bernoulli(0.1), Uniform(100), Uniform(1000)], ids=repr)
def test_epsilon_grows_with_the_rounds_and_falls_with_the_noise(sampler):
    def spent(noise: float, releases: int) -> float:
        return Privacy(noise).epsilon(sampler, 1000, releases)

    assert spent(1.0, 0) == 0
    assert 0 < spent(2.0, 1) < spent(2.0, 2) < spent(2.0, 3) < spent(2.0, 10)
    assert spent(1.0, 10) > spent(2.0, 10) > spent(4.0, 10) > 0


def test_epsilon_does_not_depend_on_earlier_calls():
    privacy, sampler = Privacy(2.0), Bernoulli(0.1)
    one_by_one = [privacy.epsilon(sampler, 1000, T) for T in range(1, 14)]
    _composed.cache_clear()
    assert privacy.epsilon(sampler, 1000, 13) == one_by_one[-1]


def test_delta_is_a_power_of_the_number_of_clients_unless_given():
    assert Privacy(1.0).delta_for(1000) == 1000**-1.1
    assert Privacy(1.0, delta=1e-6).delta_for(1000) == 1e-6
    loose, tight = (Privacy(1.0, delta=d).epsilon(Bernoulli(0.1), 1000, 5) for d in (1e-3, 1e-6))
    assert loose < tight


def test_redrawn_empty_rounds_are_accounted_for():
    """Compare with the definition: the probability that one client is alone in a non-empty round."""
    p, N, T = 0.2, 40, 100
    lone, empty = p * (1 - p) ** (N - 1), (1 - p) ** N
    assert _again(Bernoulli(p), N) == pytest.approx(lone / (1 - empty))
    assert _again(Uniform(5), N) == _again(Bernoulli(1.0), N) == 0
    delta = 0.05
    free = _composed(1.0, p, False, T)
    paid = free.get_epsilon_for_delta(delta - T * lone / (1 - empty)) - T * math.log1p(-lone / (1 - empty))
    assert Privacy(1.0, delta=delta).epsilon(Bernoulli(p), N, T) == pytest.approx(paid)
    assert paid > free.get_epsilon_for_delta(delta)
    assert Privacy(1.0, delta=delta).epsilon(Bernoulli(p), N, 10**5) == math.inf


def mixture(cohorts: list[tuple[float, ...]], weights: list[float], z: float) -> np.ndarray:
    """Return the density of sum + noise on a grid, for cohorts with these weights."""
    t = np.linspace(-12, 12, 24001)
    bells = [w * np.exp(-0.5 * ((t - sum(c)) / z) ** 2) for c, w in zip(cohorts, weights, strict=True)]
    return np.sum(bells, 0) / np.sum(weights) / (z * math.sqrt(2 * math.pi)) * (t[1] - t[0])


def nobody_empty(sent: tuple[float, ...], p: float, z: float) -> np.ndarray:
    cohorts = [c for k in range(1, len(sent) + 1) for c in combinations(sent, k)]
    return mixture(cohorts, [p ** len(c) * (1 - p) ** (len(sent) - len(c)) for c in cohorts], z)


def fixed_size(sent: tuple[float, ...], size: int, z: float) -> np.ndarray:
    cohorts = list(combinations(sent, size))
    return mixture(cohorts, [1.0] * len(cohorts), z)


def excess(P: np.ndarray, Q: np.ndarray, eps: float) -> float:
    """Return the delta of a pair of distributions, in the worse direction."""
    return max(np.maximum(P - math.exp(eps) * Q, 0).sum(), np.maximum(Q - math.exp(eps) * P, 0).sum())


@pytest.mark.parametrize("others", list(combinations_with_replacement((-1.0, 0.0, 1.0), 3)))
@pytest.mark.parametrize("delta", [0.1, 0.2])
def test_the_bound_holds_for_one_round_of_a_small_federation(others, delta):
    """Enumerate all cohorts of 4 clients, each with a number in [-1, 1]."""
    p, z, again = 0.5, 1.3, _again(Bernoulli(0.5), 4)
    eps = _composed(z, p, False, 1).get_epsilon_for_delta(delta - again) - math.log1p(-again)
    with_one, without = nobody_empty((*others, 1.0), p, z), nobody_empty(others, p, z)
    assert excess(with_one, without, eps) <= delta + GRID
    for size in (1, 2, 3):
        eps = Privacy(z, delta=delta).epsilon(Uniform(size), 4, 1)
        assert excess(fixed_size((*others, 1.0), size, z), fixed_size((*others, -1.0), size, z), eps) <= delta + GRID


def test_the_bound_for_a_fixed_size_is_tight_in_the_worst_case():
    eps = Privacy(1.3, delta=0.05).epsilon(Uniform(2), 4, 1)
    P, Q = fixed_size((-1.0, -1.0, -1.0, 1.0), 2, 1.3), fixed_size((-1.0,) * 4, 2, 1.3)
    assert excess(P, Q, eps) == pytest.approx(0.05, rel=0.01)


# secure aggregation


def test_the_ranges_of_an_upload():
    declared = Privacy(1.0).declared({"update": 10, "square": 1, "below": 1}, 3.0)
    assert declared == (
        Field("update", 10, -3.0, 3.0),
        Field("square", 1, 0.0, 9.0),
        Field("below", 1, -0.5, 0.5),
    )


# what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": 0.0},
        {"noise": -1.0},
        {"noise": math.nan},
        {"noise": True},
        {"noise": 1.0, "clip": 0.0},
        {"noise": 1.0, "clip": math.inf},
        {"noise": 1.0, "clip_lr": 0.0},
        {"noise": 1.0, "quantile": 1.0},
        {"noise": 1.0, "quantile": 0.0},
        {"noise": 1.0, "delta": 1.0},
        {"noise": 1.0, "delta": 0.0},
    ],
)
def test_invalid_numbers_are_refused(wrong):
    with pytest.raises(InvalidInput, match=f"Privacy: {list(wrong)[-1]}="):
        Privacy(**wrong)


def test_a_field_without_a_bound_is_refused():
    with pytest.raises(Refused, match="'parts'"):
        QUIET.release(fields(2, "parts"), 3, 3.0, QUIET.init(torch.zeros(2)), normal(0))
    with pytest.raises(Refused, match="'stats'"):
        QUIET.declared({"update": 2, "stats": 3}, 1.0)


class Mine:
    def __repr__(self) -> str:
        return "Mine()"


class Favourites(Uniform):
    """A subclass that draws otherwise does not inherit the promise."""

    def draw(self, sizes, source):
        return list(range(self.size))


@pytest.mark.parametrize("sampler", [Weighted(3), Mine(), Favourites(3)], ids=repr)
def test_samplers_without_an_accountant_are_refused(sampler):
    with pytest.raises(Refused, match="no accountant for"):
        Privacy(1.0).epsilon(sampler, 10, 1)


def test_a_sampler_of_the_user_that_declares_its_law_is_accounted_for():
    mine = type("Mine", (), {"sampling": "poisson", "p": 0.5})()
    assert Privacy(1.0).epsilon(mine, 100, 3) == Privacy(1.0).epsilon(Bernoulli(0.5), 100, 3)
    mine = type("Mine", (), {"sampling": "fixed", "size": 50})()
    assert Privacy(1.0).epsilon(mine, 100, 3) == Privacy(1.0).epsilon(Uniform(50), 100, 3)


def test_one_client_is_refused():
    with pytest.raises(Refused, match="no others to hide among"):
        Privacy(1.0).epsilon(Uniform(1), 1, 1)


def test_cohorts_that_are_often_empty_are_refused():
    with pytest.raises(Refused, match="empty rounds, which are drawn again, are too likely"):
        Privacy(1.0).epsilon(Bernoulli(0.1), 20, 1)


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InvalidInput, match=r"pip install 'fedstride\[privacy\]'"):
        Privacy(1.0).epsilon(Uniform(10), 10, 1)
