"""Small heterogeneous problems in float64: loss and gradient by hand (autograd for the network), no fedstride."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class LeastSquares:
    """1/2 sum (a'w + b - t)^2, or the mean of the squares: a linear model with a bias."""

    def __init__(self, sizes, d=4, mean=False, seed=0, scale=0.6, noise=1.0, interpolated=False):
        rng = np.random.default_rng(seed)
        self.sizes, self.d, self.mean = list(sizes), d, mean
        common = rng.normal(size=d + 1)
        self.A, self.b = [], []
        for n in sizes:
            own = common + (0 if interpolated else 1) * rng.normal(size=d + 1)
            A = scale * rng.normal(size=(n, d)) * (1 + rng.random(d))
            self.A.append(A)
            self.b.append(A @ own[:-1] + own[-1] + (0 if interpolated else noise) * rng.normal(size=n))
        self.x0 = 0.5 * rng.normal(size=d + 1)

    def value(self, i, x, rows):
        _, r = self._residual(i, x, rows)
        return (r**2).mean() if self.mean else 0.5 * (r**2).sum()

    def gradient(self, i, x, rows):
        A, r = self._residual(i, x, rows)
        return 2 * A.T @ r / len(r) if self.mean else A.T @ r

    def _residual(self, i, x, rows):
        A = np.hstack([self.A[i][rows], np.ones((len(rows), 1))])
        return A, A @ x - self.b[i][rows]

    def module(self):
        return set_parameters(nn.Linear(self.d, 1).double(), self.x0)

    def loss(self):
        if self.mean:
            return "mse"
        return lambda output, target: 0.5 * ((output - target) ** 2).sum()

    def clients(self):
        return [(torch.tensor(A), torch.tensor(b)[:, None]) for A, b in zip(self.A, self.b, strict=True)]


class Softmax:
    """Multinomial logistic regression, mean cross-entropy; each client prefers its own classes."""

    def __init__(self, sizes, d=3, classes=3, seed=1):
        rng = np.random.default_rng(seed)
        self.sizes, self.d, self.classes, self.mean = list(sizes), d, classes, True
        self.A = [rng.normal(size=(n, d)) + rng.normal(size=d) for n in sizes]
        self.b = [(rng.integers(0, classes, n) * rng.integers(0, 2, n) + i) % classes for i, n in enumerate(sizes)]
        self.x0 = 0.3 * rng.normal(size=classes * (d + 1))

    def value(self, i, x, rows):
        logits = self._logits(i, x, rows)
        picked = logits[np.arange(len(rows)), self.b[i][rows]]
        return (np.log(np.exp(logits).sum(1)) - picked).mean()

    def gradient(self, i, x, rows):
        logits = self._logits(i, x, rows)
        error = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        error[np.arange(len(rows)), self.b[i][rows]] -= 1
        error /= len(rows)
        return np.concatenate([(error.T @ self.A[i][rows]).ravel(), error.sum(0)])

    def _logits(self, i, x, rows):
        W, bias = x[: -self.classes].reshape(self.classes, self.d), x[-self.classes :]
        return self.A[i][rows] @ W.T + bias

    def module(self):
        return set_parameters(nn.Linear(self.d, self.classes).double(), self.x0)

    def loss(self):
        return "cross_entropy"

    def clients(self):
        return [(torch.tensor(A), torch.tensor(b)) for A, b in zip(self.A, self.b, strict=True)]


class TwoLayers(nn.Module):
    def __init__(self, d, width, classes):
        super().__init__()
        self.first, self.second = nn.Linear(d, width), nn.Linear(width, classes)

    def features(self, inputs):
        return torch.tanh(self.first(inputs))

    def forward(self, inputs):
        return self.second(self.features(inputs))


class Network(Softmax):
    """A two-layer tanh network on Softmax's data; gradients by autograd."""

    def __init__(self, sizes, d=3, width=4, classes=3, seed=2):
        super().__init__(sizes, d, classes, seed)
        self.width = width
        self.x0 = 0.7 * np.random.default_rng(seed).normal(size=width * (d + 1) + classes * (width + 1))

    def features(self, i, x, rows):
        """z = tanh(W1 a + b1) for a flat torch vector x."""
        cut = self.width * self.d
        W1, b1 = x[:cut].reshape(self.width, self.d), x[cut : cut + self.width]
        return torch.tanh(torch.tensor(self.A[i][rows]) @ W1.T + b1)

    def cross_entropy(self, i, x, rows):
        rest = x[self.width * (self.d + 1) :]
        W2, b2 = rest[: -self.classes].reshape(self.classes, self.width), rest[-self.classes :]
        logits = self.features(i, x, rows) @ W2.T + b2
        return (torch.logsumexp(logits, 1) - logits[torch.arange(len(rows)), torch.tensor(self.b[i][rows])]).mean()

    def value(self, i, x, rows):
        return float(self.cross_entropy(i, torch.tensor(x), rows))

    def gradient(self, i, x, rows):
        return autograd(lambda v: self.cross_entropy(i, v, rows), x)

    def module(self):
        return set_parameters(TwoLayers(self.d, self.width, self.classes).double(), self.x0)


def autograd(function, x):
    v = torch.tensor(x, requires_grad=True)
    (g,) = torch.autograd.grad(function(v), v)
    return g.numpy()


def set_parameters(module, x):
    torch.nn.utils.vector_to_parameters(torch.tensor(x), module.parameters())
    return module
