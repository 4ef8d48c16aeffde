"""A client's local loop under every step rule: y <- y - eta (g + corr), step by step, counting evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch


def norm(v):
    return np.sqrt((v**2).sum())


def clipped(g, max_norm):
    """As torch does it: one parameter, its gradient clipped in place."""
    parameter = torch.nn.Parameter(torch.zeros(len(g), dtype=torch.float64))
    parameter.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_norm_([parameter], max_norm)
    return parameter.grad.numpy()


class Objective:
    """f_B of one client in one round: the user's loss, weight decay, clipped gradient; counts samples."""

    def __init__(self, problem, i, batch=None, batch_size=None, weight_decay=0.0, clip=None):
        self.problem, self.i, self.n = problem, i, problem.sizes[i]
        self.batch = batch or (lambda k: np.arange(self.n))
        self.b = min(batch_size or self.n, self.n)
        self.weight_decay, self.clip = weight_decay, clip
        self.gradients = self.forwards = 0

    def value(self, y, k):
        return self.problem.value(self.i, y, self.batch(k)) + self.weight_decay / 2 * (y**2).sum()

    def loss(self, y, k):
        self.forwards += len(self.batch(k))
        return self.value(y, k)

    def grad(self, y, k):
        self.gradients += len(self.batch(k))
        g = self.problem.gradient(self.i, y, self.batch(k)) + self.weight_decay * y
        return self.value(y, k), g if self.clip is None else clipped(g, self.clip)

    def full(self, y):
        """The whole client's gradient, for the exchange before the local steps."""
        rows = np.arange(self.n)
        self.gradients += self.n
        return self.problem.gradient(self.i, y, rows) + self.weight_decay * y


class Plus:
    """f + an extra term, given by its value and its gradient."""

    def __init__(self, f, extra, slope):
        self.f, self.extra, self.slope, self.n, self.b = f, extra, slope, f.n, f.b

    def loss(self, y, k):
        return self.f.loss(y, k) + self.extra(y)

    def grad(self, y, k):
        value, g = self.f.grad(y, k)
        return value + self.extra(y), g + self.slope(y)


def proximal(f, centre, mu):
    return Plus(f, lambda y: mu / 2 * ((y - centre) ** 2).sum(), lambda y: mu * (y - centre))


@dataclass
class Done:
    """What a client did in a round."""

    y: np.ndarray
    steps: list = field(default_factory=list)
    first: float = np.nan  # the first local loss
    trials: int = 0
    failed: int = 0

    def saw(self, value):
        if np.isnan(self.first):
            self.first = value


def constant(lr, schedule=lambda t: 1.0):
    def client(f, y, tau, t, corr=0.0):
        done = Done(y)
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            eta = lr * schedule(t)
            done.y = done.y - eta * (g + corr)
            done.steps.append(eta)
        return done

    return client


def per_step(lr):
    """FedLin: eta_i = etabar / tau_i."""
    return lambda f, y, tau, t, corr=0.0: constant(lr / tau)(f, y, tau, t, corr)


def momentum(lr, beta):
    def client(f, y, tau, t, corr=0.0):
        done, v = Done(y), 0.0  # fresh each round
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            v = beta * v + (g + corr)
            done.y = done.y - lr * v
            done.steps.append(lr)
        return done

    return client


def torch_optimizer(make):
    """The optimizer itself: make(parameters) -> torch.optim.Optimizer, fresh each round."""

    def client(f, y, tau, t, corr=0.0):
        done, parameter = Done(y), torch.nn.Parameter(torch.tensor(y))
        optimizer = make([parameter])
        for k in range(tau):
            value, g = f.grad(parameter.detach().numpy().copy(), k)
            done.saw(value)
            parameter.grad = torch.tensor(g + corr)
            optimizer.step()
            done.steps.append(optimizer.param_groups[0]["lr"])
        done.y = parameter.detach().numpy().copy()
        return done

    return client


def polyak(c=0.5, lr_max=np.inf, f_star=0.0, growth=None):
    """Delta-SGD footnote 4; step from plain f_B and g, moved along g + corr."""

    def client(f, y, tau, t, corr=0.0):
        done, previous = Done(y), 1.0
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            eta = min((value - f_star) / (c * (g**2).sum() + 1e-8), lr_max)
            if growth is not None:
                eta = min(eta, growth ** (f.b / f.n) * previous)
            done.y = done.y - eta * (g + corr)
            done.steps.append(eta)
            previous = eta
        return done

    return client


def decsps(c0=1.0, lr_max=10.0, f_star=0.0):
    """Orvieto et al. 2022: the bound starts anew in every round, k counts the steps of all rounds."""

    def client(f, y, tau, t, corr=0.0):
        done, last_c, last = Done(y), c0, lr_max
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            c = c0 * np.sqrt(t * tau + k + 1)
            polyak = (value - f_star) / (g**2).sum() if g.any() else np.inf
            eta = max(0.0, min(polyak, last_c * last)) / c
            done.y = done.y - eta * (g + corr)
            done.steps.append(eta)
            last_c, last = c, eta
        return done

    return client


def ngn(sigma=1.0):
    """Orvieto, Xiao 2024."""

    def client(f, y, tau, t, corr=0.0):
        done = Done(y)
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            eta = sigma / (1 + sigma * (g**2).sum() / (2 * value)) if value > 0 else 0.0
            done.y = done.y - eta * (g + corr)
            done.steps.append(eta)
        return done

    return client


def armijo(lr_max=1.0, c=0.1, backtrack=0.9, reset="grow", growth=2.0):
    """FedSLS Alg. 2-3, on f_B(y) + <corr, y>."""

    def client(f, y, tau, t, corr=0.0):
        done, last = Done(y), lr_max
        for k in range(tau):
            value, g = f.grad(done.y, k)
            done.saw(value)
            value, d = value + (corr * done.y).sum(), g + corr
            if norm(d) < 1e-8:
                done.steps.append(0.0)
                continue
            if k == 0 or reset == "max":
                eta = lr_max
            elif reset == "keep":
                eta = last
            else:
                eta = min(lr_max, last * growth ** (f.b / f.n))
            for _ in range(100):
                trial = done.y - eta * d
                done.trials += 1
                if f.loss(trial, k) + (corr * trial).sum() <= value - c * eta * (d**2).sum():
                    break
                eta *= backtrack
            else:
                eta = 1e-6
                done.failed += 1
            last = eta
            done.y = done.y - eta * d
            done.steps.append(eta)
        return done

    return client


def delta_sgd(lr0=0.2, theta0=1.0, gamma=2.0, delta=0.1, reuse_gradient=False):
    """Delta-SGD Alg. 1 and App. B.1; the quotient uses g, the move g + corr."""

    def client(f, y, tau, t, corr=0.0):
        done, eta, theta, old_y, old_g = Done(y), lr0, theta0, None, None
        for k in range(1, tau + 1):
            value, g = f.grad(done.y, k - 1)
            done.saw(value)
            new = np.sqrt(1 + delta * theta) * eta
            if k >= 2:
                old = old_g if reuse_gradient else f.grad(old_y, k - 1)[1]
                if norm(g - old) > 0:
                    new = min(gamma * norm(done.y - old_y) / (2 * norm(g - old)), new)
            eta, theta = new, new / eta
            old_y, old_g = done.y, g
            done.y = done.y - eta * (g + corr)
            done.steps.append(eta)
        return done

    return client
