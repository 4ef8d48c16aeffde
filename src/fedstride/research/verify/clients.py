"""Laws of the client step rules: every rule against its formula as printed, on the gradients that it received in a run.

The sources are in the modules of fedstride.client.step; Armijo and Delta-SGD have laws of their own.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import sqrt

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.client.drift import GradientCorrection
from fedstride.client.step import (
    NGN,
    Adagrad,
    Adam,
    AdamW,
    CappedPolyak,
    Constant,
    DecSPS,
    Exponential,
    Momentum,
    PerStep,
    Polyak,
    Step,
    Stepwise,
)
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import STEPS, apart, gradients, half_mean_square, half_solved, iterates, unequal
from fedstride.research.verify.recorders import RecordedStep, Taken, Watched

ROUNDS = 4
HALVED = Exponential(0.5)  # the rate is halved in every round
Formula = Callable[[list[Taken], int], Vec]  # steps of a client in a round, the last one without its move; tau -> move


def torch_optimizer(make: Callable[[list[torch.nn.Parameter], float], torch.optim.Optimizer]) -> Formula:
    """Return the formula of an optimiser of torch, which starts anew in every round with the factor 0.5^t of its rate."""

    def move(steps: list[Taken], tau: int) -> Vec:
        parameter = torch.nn.Parameter(steps[0].y.clone())
        optimizer = make([parameter], 0.5 ** steps[0].round)
        for step in steps:
            before, parameter.grad = parameter.detach().clone(), step.g.clone()
            optimizer.step()
        return parameter.detach() - before

    return move


def _smoothed(steps: list[Taken], tau: int) -> Vec:
    eta = 1.0
    for s in steps:  # growth^(b/n) is growth on full batches
        eta = min(s.loss / (0.5 * float(sq(s.g)) + 1e-8), 1.02 * eta)
    return -eta * steps[-1].g


def _polyak(steps: list[Taken], tau: int) -> Vec:
    return -min((steps[-1].loss - 0.01) / (0.8 * float(sq(steps[-1].g)) + 1e-8), 0.3) * steps[-1].g


def _decsps(steps: list[Taken], tau: int) -> Vec:
    eta, c = 0.3, 0.7
    for k, s in enumerate(steps, start=steps[0].round * tau):  # k counts the steps of earlier rounds too
        last, c = c, 0.7 * sqrt(k + 1)
        eta = min((s.loss - 0.01) / float(sq(s.g)), last * eta) / c
    return -eta * steps[-1].g


def _ngn(steps: list[Taken], tau: int) -> Vec:
    return -0.2 / (1 + 0.2 * float(sq(steps[-1].g)) / (2 * steps[-1].loss)) * steps[-1].g


def _capped(steps: list[Taken], tau: int) -> Vec:
    """One tensor, positive losses, at most ten steps, and no word from a server: x and the first gradient scale the step."""
    u = float(steps[0].y.norm() / steps[0].g.norm()) * steps[-1].g  # r / q: the numbers of entries cancel
    cap = 2 * 0.3 / sqrt(1 + steps[-1].round / 10)
    return -min(2 * steps[-1].loss / float(steps[-1].g @ u), cap) * u


RULES: dict[str, tuple[Step, Formula]] = {
    "constant": (Constant(0.1), lambda s, tau: -0.1 * s[-1].g),
    "constant, 0.5^t": (Constant(0.1, HALVED), lambda s, tau: -0.1 * 0.5 ** s[-1].round * s[-1].g),
    "constant, a tenth after 1/2 and 3/4": (
        Constant(0.1, Stepwise()),
        lambda s, tau: -(0.1, 0.1, 0.01, 0.001)[s[-1].round] * s[-1].g,
    ),
    "FedLin's step": (PerStep(0.2, HALVED), lambda s, tau: -0.2 * 0.5 ** s[-1].round / tau * s[-1].g),
    "momentum": (Momentum(0.05, 0.7, HALVED), torch_optimizer(lambda p, f: torch.optim.SGD(p, 0.05 * f, momentum=0.7))),
    "Adam": (
        Adam(0.05, (0.6, 0.8), 0.01, HALVED),
        torch_optimizer(lambda p, f: torch.optim.Adam(p, 0.05 * f, (0.6, 0.8), 0.01)),
    ),
    "AdamW": (
        AdamW(0.05, (0.6, 0.8), 0.01, 0.3, HALVED),
        torch_optimizer(lambda p, f: torch.optim.AdamW(p, 0.05 * f, (0.6, 0.8), 0.01, 0.3)),
    ),
    "Adagrad": (Adagrad(0.2, 0.01, HALVED), torch_optimizer(lambda p, f: torch.optim.Adagrad(p, 0.2 * f, eps=0.01))),
    "Polyak, smoothed": (Polyak(0.5, growth=1.02), _smoothed),
    "Polyak, capped": (Polyak(0.8, 0.3, f_star=0.01), _polyak),
    "DecSPS": (DecSPS(0.7, 0.3, 0.01), _decsps),
    "NGN": (NGN(0.2), _ngn),
    "Polyak of auto": (CappedPolyak(0.3), _capped),
}


@law("Step rules")
def as_printed(rules: Mapping[str, tuple[Step, Formula]] = RULES) -> Iterator[Measured]:
    """The moves are those of the formula, in every round and for clients with different numbers of steps."""
    problem, x0 = unequal(), torch.linspace(-1, 2, 4, dtype=torch.float64)
    for name, (rule, formula) in rules.items():
        eye = RecordedStep(rule)
        xs, _ = iterates(problem, x0, Algorithm(eye), ROUNDS, local_steps=STEPS, engine=Watched())
        wrong, ends = [], []
        for (t, i), run in groupby(eye.seen, key=lambda s: (s.round, s.client)):
            steps = list(run)
            for k in range(len(steps)):
                wrong.append(apart(steps[k].move, formula(steps[: k + 1], STEPS[i])))
                wrong.append(apart(steps[k].y, steps[k - 1].y + steps[k - 1].move if k else xs[t]))
                wrong.append(apart(steps[k].g, gradients(problem, steps[k].y)[i]))
            ends.append(len(steps) - STEPS[i])
        yield f"{name}: distance of a move to the formula as printed", max(wrong), "<=", 1e-10
        yield f"{name}: deviations from the numbers of local steps", sum(map(abs, ends)), "<=", 0


BELOW: dict[str, Step] = {"Polyak": Polyak(0.5), "DecSPS": DecSPS(), "NGN": NGN(0.2)}
FROM_LOSS: dict[str, tuple[Step, Formula]] = {
    "Polyak, smoothed": (Polyak(0.5, growth=1.02), _smoothed),
    "DecSPS": (DecSPS(0.7, 0.3, 0.01), _decsps),
    "NGN": (NGN(0.2), _ngn),
}


@law("Step rules")
def corrected(rules: Mapping[str, tuple[Step, Formula]] = FROM_LOSS) -> Iterator[Measured]:
    """Steps from the loss: under a drift correction, eta is that of the plain loss and gradient, along the corrected one."""
    problem, x0 = unequal(), torch.linspace(-1, 2, 4, dtype=torch.float64)
    for name, (rule, formula) in rules.items():
        eye = RecordedStep(rule)
        iterates(problem, x0, Algorithm(eye, drift=GradientCorrection()), ROUNDS, local_steps=STEPS, engine=Watched())
        wrong, turned = [], []
        for (_, i), run in groupby(eye.seen, key=lambda s: (s.round, s.client)):
            steps: list[Taken] = []
            for s in run:
                A, b = problem.clients[i]
                own = gradients(problem, s.y)[i]
                steps.append(replace(s, g=own, loss=float(problem.loss(A @ s.y, b))))
                eta = -float(formula(steps, STEPS[i]) @ own / sq(own))
                wrong.append(apart(s.move, -eta * s.g))
                turned.append(apart(s.g, own))
        yield f"{name}, corrected: distance of a move to the formula with the plain loss", max(wrong), "<=", 1e-10
        yield f"{name}, corrected: largest distance of a direction to the plain gradient", max(turned), ">", 1e-3


@law("Step rules")
def below_the_bound(rules: Mapping[str, Step] = BELOW) -> Iterator[Measured]:
    """Where the loss is below its bound f*, the steps from the loss are 0, not negative."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = half_mean_square(output, target)
        return value - value.detach() - 0.01

    for name, rule in rules.items():
        eye = RecordedStep(rule)
        iterates(unequal(), torch.zeros(4).double(), Algorithm(eye), 2, loss, local_steps=STEPS, engine=Watched())
        far = max(float(s.move.norm()) for s in eye.seen)
        yield f"{name}, losses below f*: longest move", far, "<=", 0


@law("Step rules")
def beside_nothing(rules: Mapping[str, tuple[Step, Formula]] = FROM_LOSS) -> Iterator[Measured]:
    """A batch without loss and gradient does not bound the steps that follow it."""
    for name, (rule, _) in rules.items():
        eye, zero = RecordedStep(rule), torch.zeros(2, dtype=torch.float64)
        iterates(half_solved(), zero, Algorithm(eye), 1, local_steps=2, batch_size=1, engine=Watched())
        least = min(s.eta for s in eye.seen if float(sq(s.g)) > 0)
        yield f"{name}: least step beside batches without loss", least, ">", 0
