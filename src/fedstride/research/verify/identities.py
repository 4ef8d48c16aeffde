"""Identities: equivalent formulations of one algorithm, and fixed points.

Facts common to all five papers; x* is a fixed point by FedLin eq. (37), FedTrack line 7 and FedExP alg. 2.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import (
    RECIPES,
    fedavg,
    fedavgm,
    fedexp,
    fedexprox,
    fedexpsls,
    fedlin,
    fednova,
    fedprox,
    fedsls,
    fedtrack,
    moon,
    scaffold,
    scaffold_exp,
)
from fedstride.client.exchange import Exchange
from fedstride.client.gradient import IAG, Noisy
from fedstride.client.step import Constant, Momentum
from fedstride.core.rows import State, Vec
from fedstride.engine import Clients, Local, Task
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    EXACT,
    LeastSquares,
    apart,
    end,
    gradients,
    shares,
    unequal,
    weighted_minimiser,
)
from fedstride.server import FedExP
from fedstride.wire import TopK


@law("Identity")
def gradient_descent(recipe: Callable[..., Algorithm] = fedavg) -> Iterator[Measured]:
    """One full-batch step of all clients is a step of gradient descent on the weighted mean of the losses."""
    problem, lr = unequal(), 0.1
    for weights in ("uniform", "samples"):
        p = shares(problem, weights)
        x = torch.full((4,), 0.5, dtype=torch.float64)
        found = end(problem, recipe(lr=lr), x, local_steps=1, weights=weights)
        for _ in range(3):
            x = x - lr * sum(p_i * g for p_i, g in zip(p, gradients(problem, x), strict=True))
        yield f"FedAvg, one step, {weights} weights: distance to gradient descent", apart(found, x), "<=", EXACT


@law("Identity")
def like_clients(recipes: dict[str, Callable[..., Algorithm]] = RECIPES) -> Iterator[Measured]:
    """Four clients with the same data are equivalent to one client, for every algorithm."""
    one = unequal((7,))
    four = LeastSquares([one.A[0]] * 4, [one.b[0]] * 4, mean=True)
    for name, make in recipes.items():
        distance = apart(end(four, make(), local_steps=3), end(one, make(), local_steps=3))
        yield f"{name}: distance of 4 identical clients to one", distance, "<=", EXACT


@law("Identity")
def rows(recipes: dict[str, Callable[..., Algorithm]] = RECIPES) -> Iterator[Measured]:
    """Clients that share a matrix of rows get the same results as in separate matrices."""
    problem = unequal()
    for name, make in recipes.items():
        together, alone = (end(problem, make(), engine=Local(chunk=chunk)) for chunk in (4, 1))
        yield f"{name}: distance of 4 rows to 4 single rows", apart(together, alone), "<=", 1e-10


@dataclass(frozen=True)
class Remembering:
    """The local engine with initial client state."""

    memory: Sequence[State]  # one per client
    leads = True

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        clients = Local().open(task, exchanges, fresh)
        clients.restore({f"memory/{i}/{name}": v for i, own in enumerate(self.memory) for name, v in own.items()})
        return clients


@law("Identity")
def fixed_point(algorithms: dict[str, Algorithm] | None = None) -> Iterator[Measured]:
    """Unlike FedAvg, corrected algorithms stay at x* for any weights, sizes, losses and numbers of steps."""
    corrected = algorithms or {
        "SCAFFOLD": scaffold(lr=0.02),
        "SCAFFOLD-ExP": scaffold_exp(lr=0.02),
        "FedLin": fedlin(lr=0.05),
        "FedLin, server TOP-1": fedlin(lr=0.05, down=TopK(1)),
        "FedTrack": fedtrack(lr=0.01),
        "FedTrack, blocks of 4": fedtrack(lr=0.01, block=4),
    }
    for mean in (True, False):
        problem = unequal(mean=mean)
        for weights in ("uniform", "samples"):
            solution = weighted_minimiser(problem, weights)
            controls = [{"control": g} for g in gradients(problem, solution)]  # c_i = grad f_i(x*), so that c = 0
            setting = f"{'mean' if mean else 'sum'} loss, {weights} weights"
            for name, algorithm in corrected.items():
                engine = Remembering(controls) if "SCAFFOLD" in name else Local()
                left = apart(end(problem, algorithm, solution, weights=weights, engine=engine), solution)
                yield f"{name}, {setting}: distance to x* of a run from x*", left, "<=", EXACT
            left = apart(end(problem, fedavg(lr=0.02), solution, weights=weights), solution)
            yield f"FedAvg, {setting}: distance to x* of a run from x*", left, ">", 1e-3


@law("Identity")
def switched_off(d: int = 4) -> Iterator[Measured]:
    """A disabled part has no effect: each pair is the same algorithm written in two ways."""
    equal_steps = {"local_steps": 3}
    whole = Algorithm(Constant(0.1), gradient=IAG(block=9))
    pairs: dict[str, tuple[Algorithm, Algorithm, dict[str, Any]]] = {
        "TOP-d on updates": (replace(fedavg(), up=TopK(d)), fedavg(), {}),
        "TOP-d on updates, no feedback": (replace(fedavg(), up=TopK(d), error_feedback=False), fedavg(), {}),
        "TOP-d on gradients": (fedlin(up=TopK(d), down=TopK(d)), fedlin(), {}),
        "FedProx, mu = 0": (fedprox(mu=0.0), fedavg(), {}),
        "MOON, mu = 0": (moon(mu=0.0), fedavg(), {}),
        "server momentum, beta = 0": (fedavgm(beta=0.0), fedavg(), {}),
        "client momentum, beta = 0": (Algorithm(Momentum(0.1, beta=0.0)), fedavg(), {}),
        "noise, sigma = 0": (Algorithm(Constant(0.1), gradient=Noisy(0.0)), fedavg(), {}),
        "IAG, one component": (whole, fedavg(), {}),
        "FedNova, equal steps": (fednova(), fedavg(), equal_steps),
        "FedExProx, alpha = 1": (fedexprox(gamma=10.0, alpha=1.0), fedprox(mu=0.1), {}),
        "FedExP, eps huge": (Algorithm(Constant(0.1), FedExP(eps=1e30)), fedavg(), {}),
        "FedExP, cap 1": (fedexp(server_lr_max=1.0), fedavg(), {}),
        "FedExpSLS, cap 1": (fedexpsls(server_lr_max=1.0), fedsls(), {}),
        "SCAFFOLD, first round": (scaffold(), fedavg(), {"rounds": 1}),
    }
    problem = unequal()
    for name, (one, other, options) in pairs.items():
        distance = apart(end(problem, one, **options), end(problem, other, **options))
        yield f"{name}: distance to the plain algorithm", distance, "<=", EXACT
