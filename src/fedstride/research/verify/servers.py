"""Laws of the server rules: every rule against its formula as printed, on the means that it received in a run.

The formulas are sums over all earlier rounds, where the rules keep running values. The sources are in the modules of
fedstride.server.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import comb, exp, sqrt

import torch
from torch.nn.utils import parameters_to_vector

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import RECIPES, fedavg, fednova
from fedstride.client.step import Constant
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import EXACT, LeastSquares, apart, iterates, linear, shares, unequal
from fedstride.research.verify.recorders import Always, RecordedServer
from fedstride.server import (
    AdagradServer,
    AdamServer,
    Auto,
    Average,
    DAdaptation,
    DoG,
    FedExP,
    FedExPM,
    FedExProx,
    Hypergradient,
    Prodigy,
    ScheduleFree,
    Server,
    ServerMomentum,
    YogiServer,
)
from fedstride.wire import Mean

Updates = list[Vec]  # Dbar of the rounds so far
Squares = list[float]  # S of the rounds so far
Iterates = list[Vec]  # x_0, ..., x_t
Formula = Callable[[Iterates, Updates, Squares], Vec]  # -> x_(t+1)
ROUNDS = 8


def past(values: Updates, factor: float) -> Vec:
    """Return sum_k factor^(t-k) v_k."""
    return torch.stack([factor ** (len(values) - 1 - k) * v for k, v in enumerate(values)]).sum(0)


def _adagrad(x: Iterates, D: Updates, S: Squares) -> Vec:
    v = 0.01**2 + torch.stack([d**2 for d in D]).sum(0)
    return x[-1] - 0.2 * (1 - 0.5) * past(D, 0.5) / (v.sqrt() + 0.01)


def _adam(x: Iterates, D: Updates, S: Squares) -> Vec:
    m, v = (1 - 0.6) * past(D, 0.6), 0.8 ** len(D) * 0.01**2 + (1 - 0.8) * past([d**2 for d in D], 0.8)
    return x[-1] - 0.1 * m / (v.sqrt() + 0.01)


def _torch_adam(x: Iterates, D: Updates, S: Squares) -> Vec:
    """torch.optim.Adam itself, fed with the updates as gradients."""
    parameter = torch.nn.Parameter(x[0].clone())
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.6, 0.8), eps=0.01)
    for d in D:
        parameter.grad = d.clone()
        optimizer.step()
    return parameter.detach()


def _yogi(x: Iterates, D: Updates, S: Squares) -> Vec:
    v = torch.full_like(D[0], 0.01**2)
    for d in D:  # v moves towards d^2 by (1 - b2) d^2
        v = torch.where(v > d**2, v - 0.2 * d**2, torch.where(v < d**2, v + 0.2 * d**2, v))
    return x[-1] - 0.1 * (1 - 0.6) * past(D, 0.6) / (v.sqrt() + 0.01)


def _expm(x: Iterates, D: Updates, S: Squares) -> Vec:
    v, s = past(D, 0.5), sum(0.25 ** (len(S) - 1 - k) * value for k, value in enumerate(S))
    return x[-1] - s / (2 * (float(v @ v) + 1e-3)) * v  # FedExP eq. (115)


def _dog(x: Iterates, D: Updates, S: Squares) -> Vec:
    far = max(0.1 * (1 + float(x[0].norm())), *(float((y - x[0]).norm()) for y in x))
    return x[-1] - far / sqrt(sum(float(d @ d) for d in D)) * D[-1]


def _dadaptation(x: Iterates, D: Updates, S: Squares) -> Vec:
    d, s, total, y = 0.05, torch.zeros_like(D[0]), 0.0, x[0]
    for g in D:
        rate = d / float(D[0].norm())
        total += rate * float(g @ s)
        s = s + rate * g
        d = max(d, 2 * total / float(s.norm()))
        y = 0.3 * y + 0.7 * (x[0] - s)
    return y


def _prodigy(x: Iterates, D: Updates, S: Squares) -> Vec:
    d, r = 0.05, 0.0
    m = v = s = torch.zeros_like(D[0])
    root, y = sqrt(0.8), x[0]
    for g, at in zip(D, x, strict=True):
        m, v = 0.6 * m + 0.4 * d * g, 0.8 * v + 0.2 * d**2 * g**2
        r = root * r + (1 - root) * d**2 * float(g @ (x[0] - at))
        s = root * s + (1 - root) * d**2 * g
        y = at - d * m / (v.sqrt() + d * 1e-3)
        d = max(d, r / float(s.abs().sum()))
    return y


def _schedule_free(x: Iterates, D: Updates, S: Squares) -> Vec:
    z = [x[0] - 0.7 * torch.stack(D[: t + 1]).sum(0) for t in range(len(D))]
    return 0.6 * z[-1] + 0.4 * torch.stack(z).mean(0)


def _hypergradient(x: Iterates, D: Updates, S: Squares) -> Vec:
    eta = 1.0
    for old, new in pairwise(D):
        eta = min(max(eta + float(new @ old), 1 / 1.5), 1.5)
    return x[-1] - eta * D[-1]


RULES: dict[str, tuple[Server, Formula]] = {
    "FedAvg": (Average(0.7), lambda x, D, S: x[-1] - 0.7 * D[-1]),
    "FedAvgM": (ServerMomentum(0.3, 0.6), lambda x, D, S: x[-1] - 0.3 * past(D, 0.6)),
    "FedAdagrad": (AdagradServer(0.2, 0.5, 0.01), _adagrad),
    "FedAdam": (AdamServer(0.1, (0.6, 0.8), 0.01), _adam),
    "FedAdam as torch.optim": (AdamServer(0.1, (0.6, 0.8), 0.01, bias_correction=True), _torch_adam),
    "FedYogi": (YogiServer(0.1, (0.6, 0.8), 0.01), _yogi),
    "FedExP": (FedExP(1e-3), lambda x, D, S: x[-1] - max(1.0, S[-1] / (2 * (float(D[-1] @ D[-1]) + 1e-3))) * D[-1]),
    "FedExP, exact": (FedExP(0.0, exact=True), lambda x, D, S: x[-1] - S[-1] / float(D[-1] @ D[-1]) * D[-1]),
    "FedExP-M": (FedExPM(1e-3, 0.5), _expm),
    "FedExProx, GraDS": (FedExProx(), lambda x, D, S: x[-1] - S[-1] / float(D[-1] @ D[-1]) * D[-1]),
    "FedExProx, alpha = 1.3": (FedExProx(1.3), lambda x, D, S: x[-1] - 1.3 * D[-1]),
    "DoG": (DoG(0.1), _dog),
    "D-Adaptation": (DAdaptation(0.05, 0.3), _dadaptation),
    "Prodigy": (Prodigy((0.6, 0.8), 0.05, 1e-3), _prodigy),
    "schedule-free SGD": (ScheduleFree(0.7, 0.4), _schedule_free),
    "FedHyper": (Hypergradient(1.5), _hypergradient),
}


@law("Server rules")
def as_printed(rules: Mapping[str, tuple[Server, Formula]] = RULES) -> Iterator[Measured]:
    """The next model is what the formula gives for all means so far: those of a run, and random ones."""
    problem, source = unequal(), torch.Generator().manual_seed(0)
    x0, lengths = torch.linspace(-1, 2, 4, dtype=torch.float64), torch.tensor([0.1, 1, 3, 0.3, 2, 0.1, 1, 0.5])
    D = list(lengths.double()[:, None] * torch.randn(ROUNDS, 4, generator=source, dtype=torch.float64))
    S = [float(sq(d)) * factor for d, factor in zip(D, (1.0, 8.0, 2.5, 1.5, 20.0, 3.0, 1.1, 5.0), strict=True)]
    for name, (rule, formula) in rules.items():
        eye = RecordedServer(rule)
        xs, _ = iterates(problem, x0, Algorithm(Constant(0.1), eye), ROUNDS, local_steps=2, weights="samples")
        seen = [d for _, d, _ in eye.seen], [float(s) for _, _, s in eye.seen]
        yield f"{name}: distance of the next model to the formula as printed", _wrong(formula, xs, *seen), "<=", 1e-10
        state, xs = rule.init(x0), [x0]
        for d, s in zip(D, S, strict=True):
            mean = Mean({"update": d, "square": d.new_tensor([s])}, share=1.0, participants=4, clients=4)
            xs.append(rule.step(xs[-1], mean, state))
        yield f"{name}: the same for random means", _wrong(formula, xs, D, S), "<=", 1e-10


def _wrong(formula: Formula, xs: Iterates, D: Updates, S: Squares) -> float:
    return max(apart(xs[t], formula(xs[:t], D[:t], S[:t])) for t in range(1, len(xs)))


@law("Server rules")
def of_auto(beta: float = 0.8, rho: float = 0.1) -> Iterator[Measured]:
    """The server of auto: sums over all rounds where the rule keeps v and s, with part of the clients and with long rounds."""
    source = torch.Generator().manual_seed(0)
    D = list(torch.randn(ROUNDS, 4, generator=source, dtype=torch.float64))
    S = [float(sq(d)) * factor for d, factor in zip(D, (1.0, 8.0, 30.0, 1.5, 60.0, 3.0, 1.1, 5.0), strict=True)]
    for participants, steps in ((4, 5), (1, 5), (4, 400)):
        share = sqrt(100 / max(100, steps))
        b = beta * share
        rule = Auto(beta, rho)
        x = torch.linspace(-1, 2, 4, dtype=torch.float64)
        state, wrong, reach, far = rule.init(x), [], 1.0, []
        for t, (d, s) in enumerate(zip(D, S, strict=True)):
            mean = Mean({"update": d, "square": d.new_tensor([s])}, 1.0, participants, 4, steps=steps)
            if t:
                before = past(D[:t], b)
                c = float(d @ before / (d.norm() * before.norm()))
            else:
                c = 0.0
            reach = min(4.0, max(1.0, reach * (exp((c - 0.3) / 2) if c > 0.3 else exp(c - 0.3))))
            v, total = past(D[: t + 1], b), sum(b ** (2 * (t - k)) * S[k] for k in range(t + 1))
            eta = total / (3 * (float(sq(v)) + rho * (1 - participants / 4) * total))
            eta = max(1.0, min(eta, sqrt(total / float(sq(v)))))
            new = rule.step(x, mean, state)
            wrong.append(apart(new, x - (1 + share * (eta - 1)) * v))
            far.append(abs(float(rule.broadcast(state)["reach"]) - reach))
            x = new
        name = f"auto, {participants} of 4 clients, {steps} steps"
        yield f"{name}: distance of the next model to the formula as printed", max(wrong), "<=", 1e-10
        yield f"{name}: distance of the reach to the formula as printed", max(far), "<=", 1e-10


@law("Server rules")
def private_extrapolation(server: Callable[[float], Server] = FedExP) -> Iterator[Measured]:
    """FedExP subtracts the known noise from |Dbar|^2, and does not extrapolate what does not stand out from it."""
    source, d, S = torch.Generator().manual_seed(0), 40, 30.0
    rule, x = server(0.1), torch.zeros(40, dtype=torch.float64)
    drawn = torch.randn(d, generator=source, dtype=torch.float64)
    update = drawn / drawn.norm()
    edge = 1 / (1 + 2 * sqrt(2 / d))  # |noise|^2 has the deviation sqrt(2 / d) of its mean
    wrong = []
    for noise in (0.0, 0.3, 0.99 * edge, 1.01 * edge, 2.0):
        mean = Mean({"update": update, "square": update.new_tensor([S])}, 1.0, 4, 4, noise=noise)
        eta = S / (2 * (1 - noise + 0.1)) if noise < edge else 1.0
        wrong.append(apart(rule.step(x, mean, rule.init(x)), -eta * update))
    yield "FedExP, five levels of noise: distance of the next model to the formula", max(wrong), "<=", EXACT


@law("Read-outs")
def read_outs(make: Callable[[str], Algorithm] = lambda name: RECIPES[name]()) -> Iterator[Measured]:
    """The returned model is the one that each rule names, while training goes on from the last iterate."""
    problem, x0 = unequal(), torch.linspace(-1, 2, 4, dtype=torch.float64)

    def returned(algorithm: Algorithm) -> tuple[Vec, Iterates]:
        xs, run = iterates(problem, x0, algorithm, ROUNDS, local_steps=2)
        return parameters_to_vector(run.model.parameters()).detach(), xs

    for name in ("fedexp", "fedexpm", "scaffold_exp"):
        x, xs = returned(make(name))
        yield (
            f"{name}: distance of the returned model to the mean of the last two iterates",
            apart(x, (xs[-1] + xs[-2]) / 2),
            "<=",
            EXACT,
        )
    for name in ("fedavg", "fedexpsls", "fedsls", "delta_sgd", "scaffold", "fedlin"):
        x, xs = returned(make(name))
        yield f"{name}: distance of the returned model to the last iterate", apart(x, xs[-1]), "<=", 0
    for name in ("feddog", "auto"):
        x, xs = returned(make(name))
        w = x.new_tensor(
            [comb(t + 7, 8) for t in range(1, ROUNDS + 1)]
        )  # polynomial decay: x_t weighs t (t+1) ... (t+7)
        mean = (w / w.sum()) @ torch.stack(xs[1:])
        yield (
            f"{name}: distance of the returned model to the weighted mean of the iterates",
            apart(x, mean),
            "<=",
            EXACT,
        )
    eye = RecordedServer(ScheduleFree(0.7, 0.4))
    x, _ = returned(Algorithm(Constant(0.1), eye))
    z = [x0 - 0.7 * torch.stack([d for _, d, _ in eye.seen[: t + 1]]).sum(0) for t in range(ROUNDS)]
    yield (
        "schedule-free SGD: distance of the returned model to the mean of z_t",
        apart(x, torch.stack(z).mean(0)),
        "<=",
        EXACT,
    )


@law("Weights")
def weighted_means(weights: str = "samples") -> Iterator[Measured]:
    """The server receives Dbar = sum p_i Delta_i and S = sum p_i |Delta_i|^2 with the p_i of the cohort."""
    problem, x0, steps = unequal(), torch.linspace(-1, 2, 4, dtype=torch.float64), [3, 1, 4, 2]
    alone = []
    for i, (A, b) in enumerate(problem.clients):  # Delta_i, from runs with a single client
        one = LeastSquares([A], [b], problem.mean)
        alone.append(x0 - iterates(one, x0, fedavg(lr=0.1), 1, local_steps=steps[i])[0][1])
    p = shares(problem, "samples")
    for cohort in ((0, 1, 2, 3), (1, 3), (2,), (0, 2, 3)):
        eye = RecordedServer(Average())
        algorithm = Algorithm(Constant(0.1), eye)
        iterates(problem, x0, algorithm, 1, local_steps=steps, weights=weights, cohort=Always(cohort))
        total = sum(p[i] for i in cohort)
        D = torch.stack([p[i] / total * alone[i] for i in cohort]).sum(0)
        S = sum(p[i] / total * float(sq(alone[i])) for i in cohort)
        _, update, square = eye.seen[0]
        yield f"clients {cohort}: distance of Dbar to the weighted mean", apart(update, D), "<=", EXACT
        yield f"clients {cohort}: |S / sum p_i |Delta_i|^2 - 1|", abs(float(square) / S - 1), "<=", EXACT


@law("FedNova")
def effective_steps(make: Callable[..., Algorithm] = fednova) -> Iterator[Measured]:
    """Linear losses with gradients g_i: x moves by lr (sum p_i a_i) (sum p_i g_i), where a_i counts each g_i's weight."""
    problem, x0, tau, lr = unequal(), torch.zeros(4, dtype=torch.float64), [3, 1, 4, 2], 0.1
    p = shares(problem, "samples")

    def weight(steps: int, rho: float, mu: float) -> float:
        """Return a_i: how often a client with momentum or a proximal term applies the gradient."""
        speed, gone = 0.0, 0.0
        for _ in range(steps):
            speed = rho * speed + 1 - lr * mu * gone
            gone += speed
        return gone

    for name, rho, mu in (("plain", 0.0, 0.0), ("momentum 0.7", 0.7, 0.0), ("a proximal term, mu = 0.8", 0.0, 0.8)):
        algorithm = make(lr=lr, beta=rho, mu=mu, server_lr=0.6)
        xs, _ = iterates(problem, x0, algorithm, 1, linear, local_steps=tau, weights="samples")
        effective = sum(w * weight(t, rho, mu) for w, t in zip(p, tau, strict=True))
        slope = torch.stack([w * A.mean(0) for w, A in zip(p, problem.A, strict=True)]).sum(0)
        yield (
            f"FedNova, {name}: distance of a round to the formula",
            apart(xs[1], -0.6 * lr * effective * slope),
            "<=",
            EXACT,
        )
