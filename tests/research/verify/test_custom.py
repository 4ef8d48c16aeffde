"""`check` finds nothing wrong with sensible algorithms, and what is wrong with others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fedstride as fs
from fedstride.research.verify.custom import Trial, chance, check
from tests.tiers import slow

SENSIBLE = {
    "auto": fs.recipes.auto(),
    "fedavg": fs.recipes.fedavg(),
    "fedexpsls": fs.recipes.fedexpsls(),
    "fedlin": fs.recipes.fedlin(),
    "fedlin, client TOP-2": fs.recipes.fedlin(up=fs.TopK(2)),
    "fedsplit": fs.recipes.fedsplit(),
    "fedtrack": fs.recipes.fedtrack(),
    "moon": fs.recipes.moon(),
    "scaffold": fs.recipes.scaffold(),
    "adam-yogi": fs.Algorithm(fs.Adam(), fs.YogiServer()),
    "delta-corrected": fs.Algorithm(fs.DeltaSGD(), fs.FedExP(), drift=fs.GradientCorrection()),
    "adagrad-corrected": fs.Algorithm(fs.Adagrad(lr=0.1), drift=fs.GradientCorrection()),
    "quantised": fs.Algorithm(up=fs.Quantize(4)),
    "noisy-corrected": fs.Algorithm(fs.PerStep(), gradient=fs.Noisy(), drift=fs.GradientCorrection()),
}


FIXED_AT_THE_MINIMISER = {"fedlin", "fedtrack", "delta-corrected"}


@pytest.mark.parametrize("name", [name if name == "fedavg" else slow(name) for name in SENSIBLE])
def test_nothing_is_wrong_with_a_sensible_algorithm(name):
    found = list(check(SENSIBLE[name]))
    assert [f for f in found if not f.kept] == []
    assert len(found) >= 10
    assert any("x*" in f.law for f in found) == (name in FIXED_AT_THE_MINIMISER)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedavg", {"batch_size": 4, "cohort": 4}),
        ("fedsplit", {"batch_size": 4, "cohort": None}),
        ("fedtrack", {"batch_size": None, "cohort": 4}),
    ],
)
def test_the_usual_work_is_what_the_algorithm_does_not_refuse(name, expected):
    assert Trial(SENSIBLE[name]).usual() == {**expected, "weights": "samples"}


@pytest.mark.slow
def test_chance_is_noticed():
    assert [name for name, a in SENSIBLE.items() if chance(Trial(a))] == ["quantised", "noisy-corrected"]


class Dice(fs.Average):
    """A server that draws from the process's own generator."""

    def step(self, x, mean, state):
        return x - torch.rand(()).to(x) * mean.update


class Double(fs.Average):
    """A server that knows one type only."""

    def step(self, x, mean, state):
        return x.double() - mean.update.double()


class Sum(fs.Average):
    def step(self, x, mean, state):
        return x - 0.1 * mean.participants * mean.update


class Uphill(fs.Constant):
    def step(self, *arguments):
        return -super().step(*arguments)


class Mixing(fs.Constant):
    def step(self, W, L, G, state, oracle):
        return -state["eta"] * G.mean(0)


class Favourite(fs.Constant):
    """Client 0 takes longer steps than the others."""

    def init(self, x, context):
        first = torch.tensor([[2.0 if client == 0 else 1.0] for client in context.clients], dtype=x.dtype)
        return {"eta": self.lr * first}


class Flipped(fs.GradientCorrection):
    def correction(self, broadcast, memory):
        return -super().correction(broadcast, memory)


@dataclass(frozen=True)
class Forgetful:
    """A server whose momentum lives outside its state, and so in no checkpoint."""

    needs = ()

    def init(self, x):
        object.__setattr__(self, "v", torch.zeros_like(x))
        return {"eta": x.new_ones(())}

    def broadcast(self, state):
        return {}

    def step(self, x, mean, state):
        object.__setattr__(self, "v", mean.update + 0.5 * self.v)
        return x - self.v

    def output(self, x, state):
        return x


class Free(fs.TopK):
    def bytes(self, d, itemsize):
        return 0


WRONG = {
    "random numbers of the process": (fs.Algorithm(server=Dice()), "the same seed"),
    "another type": (fs.Algorithm(server=Double()), "types_and_counts fails"),
    "a sum instead of a mean": (fs.Algorithm(server=Sum()), "identical clients"),
    "a flipped sign": (fs.Algorithm(Uphill()), "progress"),
    "steps too long": (fs.recipes.fedavg(lr=1e30), "progress fails: The run diverged"),
    "rows that mix": (fs.Algorithm(Mixing()), "one matrix"),
    "a favourite client": (fs.Algorithm(Favourite()), "order"),
    "a flipped correction": (fs.Algorithm(drift=Flipped()), "x*"),
    "state outside the state": (fs.Algorithm(server=Forgetful()), "resumed"),
    "bytes for nothing": (fs.Algorithm(up=Free(2), error_feedback=False), "bytes_up"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "law"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found(algorithm, law):
    assert any(law in f.law for f in check(algorithm) if not f.kept)
