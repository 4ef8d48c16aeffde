"""The laws of step, server and drift rules, objectives and protocol hold, and each of them is broken by some mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fedstride as fs
from fedstride.algorithm import recipes as R
from fedstride.research.verify import (
    auto,
    clients,
    drift,
    fedlin_more,
    fedsls_more,
    objectives,
    protocol,
    servers,
)
from tests.research.verify.breaking import is_kept, laws_of

MODULES = (auto, clients, drift, fedlin_more, fedsls_more, objectives, protocol, servers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [c for m in MODULES for c in laws_of(m)], ids=lambda c: f"{c.__module__.rpartition('.')[2]}.{c.__name__}"
)
def test_the_law_is_kept(check):
    assert is_kept(check)


class Crawling(fs.Armijo):
    """Steps of a thousandth of what the search found."""

    def step(self, *arguments):
        return 1e-3 * super().step(*arguments)


class Uphill(fs.Armijo):
    def step(self, *arguments):
        return -0.1 * super().step(*arguments)


class Flipped(fs.Scaffold):
    def correction(self, broadcast, memory):
        return -super().correction(broadcast, memory)


class Loud(fs.Noisy):
    """Noise of twice the standard deviation."""

    def __init__(self, sigma):
        super().__init__(2 * sigma)


def crawling(make, step=Crawling):
    def made(**options):
        algorithm = make(**options)
        a = algorithm.step
        return replace(algorithm, step=step(a.lr_max, a.c, a.backtrack, a.reset, a.growth))

    return made


def flipped(make):
    return lambda **options: replace(make(**options), drift=Flipped())


def without_feedback(**options):
    return R.fedlin(**options, error_feedback=False)


def changed(rules, name, rule):
    return {name: (rule, rules[name][1])}


class Stopping(fs.DecSPS):
    """Steps of 0."""

    def step(self, *arguments):
        move = super().step(*arguments)
        arguments[3]["eta"] = 0 * arguments[3]["eta"]
        return 0 * move


class Forgetful(fs.Auto):
    """The server of auto with another scale and the first target."""

    def broadcast(self, state):
        return super().broadcast(state) | {"scale": state["radii"], "target": state["first"]}


MISTAKES = {
    "FedLin Thm 2, steps too short": (fedlin_more.convex, {"make": lambda lr: R.fedlin(lr=0.1 * lr)}),
    "no error feedback": (fedlin_more.virtual_iterate, {"make": without_feedback}),
    "too much noise": (fedlin_more.noise, {"gradient": Loud}),
    "FedSLS Thm 1, crawling": (fedsls_more.one_machine, {"make": crawling(R.fedsls)}),
    "FedSLS Thm 2, uphill": (fedsls_more.convex, {"make": crawling(R.fedsls, Uphill)}),
    "FedSLS Thm 3, crawling": (fedsls_more.where_the_search_backtracks, {"make": crawling(R.fedsls)}),
    "FedSLS Thm 5, 6, crawling": (fedsls_more.extrapolated, {"make": crawling(R.fedexpsls)}),
    "FedSLS Alg. 3, other growth": (fedsls_more.starts, {"make": lambda growth, **o: R.fedsls(growth=2.0, **o)}),
    "FedSLS Alg. 3, two at once": (fedsls_more.searches_that_fail, {"make": lambda **o: R.fedsls(backtrack=0.81, **o)}),
    "another momentum": (
        clients.as_printed,
        {"rules": changed(clients.RULES, "momentum", fs.Momentum(0.05, 0.8, clients.HALVED))},
    ),
    "no schedule": (clients.as_printed, {"rules": changed(clients.RULES, "momentum", fs.Momentum(0.05, 0.7))}),
    "corrected Polyak, another c": (
        clients.corrected,
        {"rules": changed(clients.FROM_LOSS, "Polyak, smoothed", fs.Polyak(0.6, growth=1.02))},
    ),
    "a bound below the losses": (clients.below_the_bound, {"rules": {"Polyak": fs.Polyak(f_star=-1e6)}}),
    "DecSPS that stops": (clients.beside_nothing, {"rules": {"DecSPS": (Stopping(), None)}}),
    "auto, another cap": (auto.steps, {"make": lambda: fs.CappedPolyak(0.05)}),
    "auto, the scale of another round": (auto.scales, {"make": Forgetful}),
    "FedExP, another eps": (servers.private_extrapolation, {"server": lambda eps: fs.FedExP(2 * eps)}),
    "another server momentum": (
        servers.as_printed,
        {"rules": changed(servers.RULES, "FedAvgM", fs.ServerMomentum(0.3, 0.5))},
    ),
    "another read-out": (servers.read_outs, {"make": lambda name: replace(R.RECIPES[name](), readout="last")}),
    "other weights": (servers.weighted_means, {"weights": "uniform"}),
    "FedNova, FedAvg in its place": (
        servers.effective_steps,
        {"make": lambda lr, server_lr, **_: R.fedavg(lr, server_lr)},
    ),
    "MOON, another temperature": (objectives.contrast, {"make": lambda temperature, **o: R.moon(temperature=0.5, **o)}),
    "FedDyn, FedProx in its place": (
        objectives.dynamic_regularisation,
        {"make": lambda lr, alpha: R.fedprox(lr, mu=alpha)},
    ),
    "FedExProx, another gamma": (
        objectives.extrapolated_proximal_points,
        {"make": lambda gamma, **o: R.fedexprox(gamma=2 * gamma, **o)},
    ),
    "SCAFFOLD, flipped": (drift.control_variates, {"make": flipped(R.scaffold)}),
    "SCAFFOLD-ExP, flipped": (drift.control_variates, {"make_exp": flipped(R.scaffold_exp)}),
    "participation of 3": (drift.participation, {"rounds": 20, "uniform": lambda n: fs.Uniform(n + 1)}),
    "another weight decay": (protocol.weight_decay, {"decay": 0.2}),
    "another clip": (protocol.clipping, {"clip": 1.4}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)
