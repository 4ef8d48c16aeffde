"""Laws of SCAFFOLD and SCAFFOLD-ExP, and of partial participation.

Karimireddy et al. SCAFFOLD. ICML 2020, as in FedExP alg. 2.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from math import sqrt

import torch

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedexp, scaffold, scaffold_exp
from fedstride.algorithm.sampling import Bernoulli, Sampler, Uniform, Weighted
from fedstride.client.step import Constant
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.objectives import PARTIAL, recorded
from fedstride.research.verify.problems import (
    EXACT,
    apart,
    gradients,
    iterates,
    random_least_squares,
    shares,
    unequal,
    weighted_minimiser,
)
from fedstride.research.verify.recorders import RecordedServer, RecordedStep, Watched
from fedstride.server import Average

Recipe = Callable[..., Algorithm]


@law("FedExP Alg. 2")
def control_variates(make: Recipe = scaffold, make_exp: Recipe = scaffold_exp) -> Iterator[Measured]:
    """c_i is the mean gradient of a client's last round and c the weighted mean of all c_i; both lead to x*."""
    problem = unequal()
    pi = shares(problem, "samples")
    for name, recipe in (("SCAFFOLD", make), ("SCAFFOLD-ExP", make_exp)):
        xs, steps, memories = recorded(problem, recipe(lr=0.1), 8, **PARTIAL)
        zero, own, common = torch.zeros_like(xs[0]), [], []
        for t, memory in enumerate(memories):
            now = [s for s in steps if s.round == t]
            past = memories[t - 1] if t else {}
            controls = [past.get(f"{i}/control", zero) for i in range(len(pi))]
            c = torch.stack([p * v for p, v in zip(pi, controls, strict=True)]).sum(0)
            plain = {i: [gradients(problem, s.y)[i] for s in now if s.client == i] for i in {s.client for s in now}}
            for i, some in plain.items():
                own.append(apart(memory[f"{i}/control"], torch.stack(some).mean(0)))
            common += [apart(s.g, gradients(problem, s.y)[s.client] + c - controls[s.client]) for s in now]
        yield f"{name}, 2 of 4 clients: distance of c_i to the client's mean gradient", max(own), "<=", EXACT
        yield f"{name}, 2 of 4 clients: distance of a direction to g + sum pi_j c_j - c_i", max(common), "<=", EXACT
    star = weighted_minimiser(problem, "samples")
    x0 = torch.linspace(-1, 2, 4, dtype=torch.float64)
    done = {"SCAFFOLD": make(lr=0.1), "SCAFFOLD-ExP": make_exp(lr=0.1, eps=0.0)}
    for name, algorithm in done.items():
        xs, _ = iterates(problem, x0, algorithm, 80, local_steps=3, weights="samples")
        yield f"{name}: distance to x* after 80 rounds", apart(xs[-1], star), "<=", 1e-4
    for name, algorithm in {"FedAvg": fedavg(lr=0.1), "FedExP": fedexp(lr=0.1)}.items():
        xs, _ = iterates(problem, x0, algorithm, 80, local_steps=3, weights="samples")
        yield f"{name}, without control variates: distance to x* after 80 rounds", apart(xs[-1], star), ">", 1e-2
    wide = random_least_squares(clients=6, samples=4, d=40, mean=True)  # clients with a common minimiser
    zero, lr = torch.zeros(40, dtype=torch.float64), 0.2 / wide.L
    slow, _ = iterates(wide, zero, make(lr=lr), 20, local_steps=5)
    fast, run = iterates(wide, zero, make_exp(lr=lr, eps=0.0), 20, local_steps=5)
    yield "SCAFFOLD-ExP, 40 unknowns, 24 equations: largest eta_g", max(run.history["server_step"]), ">", 1.5
    lower = wide.gap(fast[-1]) / wide.gap(slow[-1])
    yield "SCAFFOLD-ExP, 40 unknowns, 24 equations: F over F of SCAFFOLD after 20 rounds", lower, "<", 1


@law("Participation")
def participation(rounds: int = 400, uniform: Callable[[int], Sampler] = Uniform) -> Iterator[Measured]:
    """Cohorts are drawn as the sampler says, and the mean over uniform cohorts estimates that over all clients."""
    problem, x0 = unequal(), torch.linspace(-1, 2, 4, dtype=torch.float64)

    def drawn(sampler: Sampler) -> tuple[list[set[int]], RecordedServer]:
        step, server = RecordedStep(Constant(0.1)), RecordedServer(Average(1e-15))  # the model stays where it is
        iterates(problem, x0, Algorithm(step, server), rounds, local_steps=1, cohort=sampler, engine=Watched())
        cohorts: list[set[int]] = [set() for _ in range(rounds)]
        for s in step.seen:
            cohorts[s.round].add(s.client)
        return cohorts, server

    def far(counts: list[int], p: float) -> float:
        """Return the largest deviation from p in standard deviations."""
        return max(abs(n - p * rounds) for n in counts) / sqrt(rounds * p * (1 - p))

    cohorts, server = drawn(uniform(2))
    yield "2 of 4, uniform: cohorts of another size", sum(len(c) != 2 for c in cohorts), "<=", 0
    single = [sum(i in c for c in cohorts) for i in range(4)]
    yield "2 of 4, uniform: deviation of a client's share from 1/2, in standard deviations", far(single, 1 / 2), "<=", 4
    pairs = [sum(c == set(two) for c in cohorts) for two in combinations(range(4), 2)]
    yield "2 of 4, uniform: deviation of a pair's share from 1/6, in standard deviations", far(pairs, 1 / 6), "<=", 4
    updates = torch.stack([d for _, d, _ in server.seen])
    whole = 0.1 * torch.stack(gradients(problem, x0)).mean(0)
    error = (updates.mean(0) - whole).abs() / (updates.std(0) / sqrt(rounds))
    yield (
        "2 of 4, uniform: deviation of the mean Dbar from that of all, in standard errors",
        float(error.max()),
        "<=",
        4,
    )
    exact = max(
        apart(d, 0.1 * torch.stack([gradients(problem, x0)[i] for i in sorted(c)]).mean(0))
        for d, c in zip(updates, cohorts, strict=True)
    )
    yield "2 of 4, uniform: distance of Dbar to the mean of the cohort", exact, "<=", EXACT
    cohorts, _ = drawn(Bernoulli(0.7))
    some = 1 - 0.3**4  # an empty cohort is drawn again
    single = [sum(i in c for c in cohorts) for i in range(4)]
    yield "Bernoulli(0.7): deviation of a client's share, in standard deviations", far(single, 0.7 / some), "<=", 4
    cohorts, _ = drawn(Weighted(1))
    sizes = [len(A) for A in problem.A]
    off = max(far([sum(i in c for c in cohorts)], n / sum(sizes)) for i, n in enumerate(sizes))
    yield "one client by its number of samples: deviation of its share, in standard deviations", off, "<=", 4
