"""One function per algorithm: plain loops over rounds and clients, float64, formulas with their source.

x = global model, Delta_i = x - y_i, p = weights over the cohort, pi = weights over the federation,
Dbar = sum p_i Delta_i, S = sum p_i |Delta_i|^2.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from .clients import Done, Objective, Plus, proximal
from .problems import autograd


@dataclass
class Setting:
    """The problem and the work: what fs.train is told besides the algorithm."""

    problem: object
    tau: object = 3  # a number, one per client, or a function (round, client)
    rounds: int = 10
    weights: object = "uniform"
    cohorts: list | None = None  # who takes part, round by round
    weight_decay: float = 0.0
    clip: float | None = None
    batch_size: int | None = None
    batches: object = None  # (round, client, step) -> rows

    @property
    def N(self):
        return len(self.problem.sizes)

    @property
    def pi(self):
        w = {"uniform": np.ones(self.N), "samples": np.array(self.problem.sizes, float)}
        w = w[self.weights] if isinstance(self.weights, str) else np.array(self.weights, float)
        return w / w.sum()

    def cohort(self, t):
        return list(range(self.N)) if self.cohorts is None else sorted(self.cohorts[t])

    def p(self, t):
        w = self.pi[self.cohort(t)]
        return w / w.sum()

    def steps(self, t, i):
        return self.tau(t, i) if callable(self.tau) else self.tau if isinstance(self.tau, int) else self.tau[i]

    def objective(self, t, i):
        batch = None if self.batches is None else lambda k: self.batches(t, i, k)
        return Objective(self.problem, i, batch, self.batch_size, self.weight_decay, self.clip)


class Trace(dict):
    """Columns, one entry per round; "x" has one more, the start; "output" is the returned model."""

    def __init__(self, x):
        super().__init__()
        self["x"] = [x]

    def add(self, x, p, done, deltas, objectives, server_step=1.0):
        dbar = mean(p, deltas)
        self["x"].append(x)
        self["output"] = x
        for name, value in {
            "server_step": server_step,
            "client_step": mean(p, [np.mean(d.steps) for d in done]),
            "train_loss": mean(p, [d.first for d in done]),
            "S": mean(p, [sq(d) for d in deltas]),
            "drift2": mean(p, [sq(d - dbar) for d in deltas]),
            "gradients": sum(f.gradients for f in objectives),
            "forwards": sum(f.forwards for f in objectives),
            "trials": mean(p, [d.trials / len(d.steps) for d in done]),
            "failed": sum(d.failed for d in done),
        }.items():
            self.setdefault(name, []).append(value)


def sq(v):
    return float((v**2).sum())


def mean(p, rows):
    return sum(weight * row for weight, row in zip(p, rows, strict=True))


def exponential(factor=0.998):
    return lambda t: factor**t


def stepwise(rounds, factor=0.1, at=(0.5, 0.75)):
    return lambda t: factor ** sum(t >= share * rounds for share in at)


def top_k(v, k):
    """The k largest in magnitude; among equals the lowest index wins."""
    k = k if isinstance(k, int) else round(k * len(v))
    order = sorted(range(len(v)), key=lambda j: (-abs(v[j]), j))
    kept = np.zeros_like(v)
    for j in order[:k]:
        kept[j] = v[j]
    return kept


def local(S, t, x, client, around=lambda f: f, corr=lambda i: 0.0):
    """All clients of round t from x: (done, Delta_i, objectives)."""
    objectives = [S.objective(t, i) for i in S.cohort(t)]
    done = [client(around(f), x, S.steps(t, i), t, corr(i)) for f, i in zip(objectives, S.cohort(t), strict=True)]
    return done, [x - d.y for d in done], objectives


# ---------------------------------------------------------------- averages of plain clients


def fedavg(S, client, server_lr=1.0):
    """Also FedSLS, Delta-SGD, FedSPS, by their clients."""
    x = S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        x = x - server_lr * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


def fedprox(S, client, mu, server_lr=1.0):
    x = S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client, lambda f, x=x: proximal(f, x, mu))
        x = x - server_lr * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


def fedavgm(S, client, server_lr=1.0, beta=0.9):
    x, v = S.problem.x0, 0.0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        v = mean(S.p(t), deltas) + beta * v
        x = x - server_lr * v
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


def fednova(S, client, a, mu=0.0, server_lr=1.0):
    """x -= tau_eff sum p_i Delta_i / a_i; a(tau) = the effective number of steps."""
    x = S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client, lambda f, x=x: proximal(f, x, mu))
        effective = [a(S.steps(t, i)) for i in S.cohort(t)]
        direction = mean(S.p(t), [d / a_i for d, a_i in zip(deltas, effective, strict=True)])
        x = x - server_lr * mean(S.p(t), effective) * direction
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


def nova_plain(tau):
    return tau


def nova_momentum(rho):
    return lambda tau: (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def nova_prox(eta, mu):
    return lambda tau: (1 - (1 - eta * mu) ** tau) / (eta * mu)


# ---------------------------------------------------------------- other objectives


def feddyn(S, client, alpha):
    """f_i - <lambda_i, y> + alpha/2 |y - x|^2; h moves by pi_i over the federation."""
    x, h, lam = S.problem.x0, 0.0, defaultdict(float)
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = [], [], []
        for i in S.cohort(t):
            f = S.objective(t, i)
            tilted = Plus(f, lambda y, i=i: -(lam[i] * y).sum(), lambda y, i=i: -lam[i])
            d = client(proximal(tilted, x, alpha), x, S.steps(t, i), t)
            done.append(d), deltas.append(x - d.y), fs.append(f)
        for i, d in zip(S.cohort(t), done, strict=True):
            lam[i] = lam[i] - alpha * (d.y - x)
            h = h - alpha * S.pi[i] * (d.y - x)
        x = mean(S.p(t), [d.y for d in done]) - h / alpha
        trace.add(x, S.p(t), done, deltas, fs)
    return trace


def moon(S, client, mu=1.0, temperature=0.5, server_lr=1.0):
    """CE + mu CE([cos(z, z_glob), cos(z, z_prev)] / T, label 0); z_prev from the client's last model, at first from x."""
    x, previous = S.problem.x0, {}
    trace = Trace(x)

    def contrast(i, y, glob, prev):
        rows = np.arange(S.problem.sizes[i])
        z, zg, zp = (S.problem.features(i, v, rows) for v in (y, torch.tensor(glob), torch.tensor(prev)))
        pairs = torch.stack([cosine(z, zg), cosine(z, zp)], 1) / temperature
        return mu * (torch.logsumexp(pairs, 1) - pairs[:, 0]).mean()

    for t in range(S.rounds):
        done, deltas, fs = [], [], []
        for i in S.cohort(t):
            f, prev = S.objective(t, i), previous.get(i, x)
            whole = Plus(
                f,
                lambda y, i=i, x=x, prev=prev: float(contrast(i, torch.tensor(y), x, prev)),
                lambda y, i=i, x=x, prev=prev: autograd(lambda v: contrast(i, v, x, prev), y),
            )
            d = client(whole, x, S.steps(t, i), t)
            previous[i] = d.y
            done.append(d), deltas.append(x - d.y), fs.append(f)
        x = x - server_lr * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


def ditto(S, client, lam, server_lr=1.0):
    """Li et al. 2021 alg. 1: x by FedAvg; v_i by as many steps on f_i(v) + lam/2 |v - x|^2, from where it was."""
    x, own = S.problem.x0, {}
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = [], [], []
        for i in S.cohort(t):
            f = S.objective(t, i)
            d = client(f, x, S.steps(t, i), t)
            own[i] = client(proximal(f, x, lam), own.get(i, x), S.steps(t, i), t).y
            done.append(d), deltas.append(x - d.y), fs.append(f)
        x = x - server_lr * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    trace["own"] = own
    return trace


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def fedsplit(S, client, prox):
    """FedLin App. J: u = 2x - z_i; steps on f_i + |y - u|^2 / (2s) from u; z_i += 2 (y - x); x = mean z_i."""
    x = S.problem.x0
    z = {i: x for i in range(S.N)}
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = [], [], []
        for i in range(S.N):
            f, u = S.objective(t, i), 2 * x - z[i]
            d = client(proximal(f, u, 1 / prox), u, S.steps(t, i), t)
            z[i] = z[i] + 2 * (d.y - x)
            done.append(d), deltas.append(x - d.y), fs.append(f)
        x = mean(S.p(t), [z[i] for i in range(S.N)])  # FedLin eq. (153)
        trace.add(x, S.p(t), done, deltas, fs, 2.0)
    return trace


# ---------------------------------------------------------------- adaptive servers


def fedopt(S, client, kind, server_lr=0.1, betas=(0.9, 0.99), tau=1e-3, bias_correction=False):
    """Reddi et al. 2021: FedAdagrad, FedAdam, FedYogi."""
    x, b1, b2 = S.problem.x0, *betas
    m, v = np.zeros_like(x), np.full_like(x, 0.0 if bias_correction else tau**2)
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        D = mean(S.p(t), deltas)
        m = b1 * m + (1 - b1) * D
        if kind == "adagrad":
            v = v + D**2
        elif kind == "adam":
            v = b2 * v + (1 - b2) * D**2
        elif kind == "yogi":
            v = v - (1 - b2) * D**2 * np.sign(v - D**2)
        mhat, vhat = (m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1))) if bias_correction else (m, v)
        x = x - server_lr * mhat / (np.sqrt(vhat) + tau)
        trace.add(x, S.p(t), done, deltas, fs, server_lr)
    return trace


# ---------------------------------------------------------------- servers that find their step; g_t = Dbar


def norm(v):
    return np.sqrt(sq(v))


def feddog(S, client, r_eps=1e-6):
    """Ivgi, Hinder, Carmon 2023: distance over gradients; polynomial-decay averaging with 8, from t = 1."""
    x, xs, gs, average = S.problem.x0, [S.problem.x0], [], None
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        gs.append(mean(S.p(t), deltas))
        r = max(r_eps * (1 + norm(xs[0])), *(norm(one - xs[0]) for one in xs))
        eta = r / np.sqrt(sum(sq(g) for g in gs))
        x = x - eta * gs[-1]
        xs.append(x)
        share = (8 + 1) / (t + 1 + 8)
        average = x if average is None else (1 - share) * average + share * x
        trace.add(x, S.p(t), done, deltas, fs, eta)
    trace["output"] = average
    return trace


def fedprodigy(S, client, betas=(0.9, 0.999), d0=1e-6, eps=1e-8):
    """Mishchenko, Defazio 2024, Adam version, with gamma = 1."""
    x0 = x = S.problem.x0
    (b1, b2), d, m, v, r, s = betas, d0, 0.0, 0.0, 0.0, 0.0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        g = mean(S.p(t), deltas)
        m = b1 * m + (1 - b1) * d * g
        v = b2 * v + (1 - b2) * d**2 * g**2
        r = np.sqrt(b2) * r + (1 - np.sqrt(b2)) * d**2 * (g * (x0 - x)).sum()
        s = np.sqrt(b2) * s + (1 - np.sqrt(b2)) * d**2 * g
        x = x - d * m / (np.sqrt(v) + d * eps)
        trace.add(x, S.p(t), done, deltas, fs, d)
        d = max(d, r / np.abs(s).sum())
    return trace


def feddadapt(S, client, d0=1e-6, beta=0.0):
    """Defazio, Mishchenko 2023, SGD with G = |g_0| and gamma = 1, the numerator as in the authors' code."""
    x0 = x = S.problem.x0
    d, s, lambdas, gs = d0, 0.0 * x0, [], []
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        gs.append(mean(S.p(t), deltas))
        lambdas.append(d / norm(gs[0]))
        s = s + lambdas[-1] * gs[-1]
        d = max(d, (sq(s) - sum(a**2 * sq(g) for a, g in zip(lambdas, gs, strict=True))) / norm(s))
        x = beta * x + (1 - beta) * (x0 - s)
        trace.add(x, S.p(t), done, deltas, fs, lambdas[-1])
    return trace


def fedschedulefree(S, client, server_lr=1.0, beta=0.9):
    """Defazio et al. 2024: clients start from y; x is the plain mean of z_1, ..., z_t."""
    y = z = S.problem.x0
    zs = []
    trace = Trace(y)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, y, client)
        z = z - server_lr * mean(S.p(t), deltas)
        zs.append(z)
        x = sum(zs) / len(zs)
        y = (1 - beta) * z + beta * x
        trace.add(y, S.p(t), done, deltas, fs, server_lr)
    trace["output"] = x
    return trace


def fedhyper(S, client, bound=3.0):
    """Wang, Wang, Li 2024: FedHyper-G."""
    x, eta, last = S.problem.x0, 1.0, None
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        g = mean(S.p(t), deltas)
        if last is not None:
            eta = min(max(eta + (g * last).sum(), 1 / bound), bound)
        x, last = x - eta * g, g
        trace.add(x, S.p(t), done, deltas, fs, eta)
    return trace


# ---------------------------------------------------------------- extrapolation


def extrapolation(p, deltas, eps, exact=False, cap=np.inf):
    """FedExP eq. (9); without the 1/2 for exact projections (FedExP C.4.1)."""
    S, D = mean(p, [sq(d) for d in deltas]), mean(p, deltas)
    return min(cap, max(1.0, S / ((1 if exact else 2) * (sq(D) + eps))))


def fedexp(S, client, eps=1e-3, exact=False, cap=np.inf, last_two=True):
    """Also FedExpSLS (FedSLS Alg. 5), with Armijo clients and the last iterate."""
    x = S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        eta = extrapolation(S.p(t), deltas, eps, exact, cap)
        x = x - eta * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, eta)
    if last_two:
        trace["output"] = (trace["x"][-1] + trace["x"][-2]) / 2
    return trace


def fedexpm(S, client, eps=1e-3, beta=0.9):
    """FedExP eq. (115), the sum over the past written out."""
    x, v, m = S.problem.x0, 0.0, []
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        v = mean(S.p(t), deltas) + beta * v
        m.append(mean(S.p(t), [sq(d) for d in deltas]))
        eta = sum((beta / 2) ** (t - k) * m[k] for k in range(t + 1)) / (2 * (sq(v) + eps))
        x = x - eta * v
        trace.add(x, S.p(t), done, deltas, fs, eta)
    trace["output"] = (trace["x"][-1] + trace["x"][-2]) / 2
    return trace


def fedexprox(S, client, gamma, alpha):
    """Li et al. 2024: f_i + |y - x|^2 / (2 gamma); alpha constant or GraDS."""
    x = S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client, lambda f, x=x: proximal(f, x, 1 / gamma))
        D = mean(S.p(t), deltas)
        eta = mean(S.p(t), [sq(d) for d in deltas]) / sq(D) if alpha == "grads" else alpha
        x = x - eta * D
        trace.add(x, S.p(t), done, deltas, fs, eta)
    return trace


# ---------------------------------------------------------------- drift corrections


def scaffold(S, client, server_lr=1.0, eps=None, cap=np.inf):
    """FedExP Alg. 2; eps given = SCAFFOLD-ExP."""
    x, c, own = S.problem.x0, 0.0 * S.problem.x0, defaultdict(lambda: 0.0 * S.problem.x0)
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client, corr=lambda i, c=c: c - own[i])
        moved = 0.0 * x
        for i, d, delta in zip(S.cohort(t), done, deltas, strict=True):
            total = sum(d.steps)
            new = own[i] - c + delta / total if total else own[i]
            moved = moved + S.pi[i] * (new - own[i])
            own[i] = new
        c = c + moved
        eta = server_lr if eps is None else extrapolation(S.p(t), deltas, eps, cap=cap)
        x = x - eta * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, fs, eta)
    trace["c"] = c
    if eps is not None:
        trace["output"] = (trace["x"][-1] + trace["x"][-2]) / 2
    return trace


def fedlin(S, client, up=None, down=None, error_feedback=True, server_lr=1.0):
    """FedLin: h_i = C_up(rho_i + grad f_i), g_t = C_down(e + mean h_i), corr = g_t - grad f_i(x)."""
    x, e, rho, seen = S.problem.x0, 0.0, defaultdict(float), set()
    trace = Trace(x)
    for t in range(S.rounds):
        fs = {i: S.objective(t, i) for i in S.cohort(t)}
        full = {i: f.full(x) for i, f in fs.items()}
        sent = {}
        for i in fs:
            if up is None or (error_feedback and i not in seen):  # the first round is uncompressed
                sent[i] = full[i]
            elif error_feedback:
                sent[i] = top_k(rho[i] + full[i], up)
                rho[i] = rho[i] + full[i] - sent[i]
            else:
                sent[i] = top_k(full[i], up)
            seen.add(i)
        h = mean(S.p(t), list(sent.values()))
        if down is None or (error_feedback and t == 0):
            g = h
        elif error_feedback:
            g = top_k(e + h, down)
            e = e + h - g
        else:
            g = top_k(h, down)
        done = [client(fs[i], x, S.steps(t, i), t, g - full[i]) for i in fs]
        deltas = [x - d.y for d in done]
        x = x - server_lr * mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, list(fs.values()), server_lr)
    return trace


def fedtrack(S, lr, block=1):
    """FedTrack Alg. 1: components are blocks of samples in order, one refreshed per step, a table of all gradients."""
    P, x = S.problem, S.problem.x0
    trace = Trace(x)
    for t in range(S.rounds):
        fs = {i: S.objective(t, i) for i in S.cohort(t)}
        full = {i: f.full(x) for i, f in fs.items()}
        g = mean(S.p(t), list(full.values()))
        done = []
        for i, f in fs.items():
            blocks = [np.arange(s, min(s + block, f.n)) for s in range(0, f.n, block)]
            share = [len(b) / f.n if P.mean else 1.0 for b in blocks]
            table = [w * P.gradient(i, x, b) for w, b in zip(share, blocks, strict=True)]
            d = Done(x)
            d.saw(f.value(x, 0))
            for l in range(S.steps(t, i)):
                if l >= 1:
                    j = (l - 1) % len(blocks)
                    table[j] = share[j] * P.gradient(i, d.y, blocks[j])
                    f.gradients += len(blocks[j])
                d.y = d.y - lr * (
                    g - full[i] + sum(table) + S.weight_decay * d.y
                )  # FedTrack line 7, f with weight decay
                d.steps.append(lr)
            done.append(d)
        deltas = [x - d.y for d in done]
        x = x - mean(S.p(t), deltas)
        trace.add(x, S.p(t), done, deltas, list(fs.values()))
    return trace


# ---------------------------------------------------------------- compressed updates


def fedavg_compressed(S, client, k, error_feedback=True):
    """The compressor acts on Delta_i: h_i = TOP-k(rho_i + Delta_i), rho_i += Delta_i - h_i."""
    x, rho, seen = S.problem.x0, defaultdict(float), set()
    trace = Trace(x)
    for t in range(S.rounds):
        done, deltas, fs = local(S, t, x, client)
        sent = []
        for i, delta in zip(S.cohort(t), deltas, strict=True):
            if not error_feedback:
                sent.append(top_k(delta, k))
            elif i not in seen:  # the first message is whole
                sent.append(delta)
            else:
                sent.append(top_k(rho[i] + delta, k))
                rho[i] = rho[i] + delta - sent[-1]
            seen.add(i)
        x = x - mean(S.p(t), sent)
        trace.add(x, S.p(t), done, sent, fs)
    return trace
