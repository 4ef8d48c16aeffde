"""Models and data of the tasks of `fedstride bench painless` that are not part of the library.

Data functions take the seed of a run and return training and test samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core import losses
from fedstride.core.losses import Loss
from fedstride.data import load

Samples = tuple[Tensor, Tensor]  # inputs and targets
Data = Callable[[int], tuple[Samples, Samples]]
TEST = 99  # seed of generated test samples, for all seeds of a run


# Models


class CNN(nn.Module):
    """Two padded 5 x 5 convolutions, each with pooling, and two linear layers."""

    def __init__(self, channels: int, side: int, width: int = 6, hidden: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(2 * width * (side // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes)),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


def normalised_cnn(channels: int, norm: Callable[[int], nn.Module], width: int = 6, classes: int = 10) -> nn.Module:
    """Two strided convolutions, each with a normalisation layer, and a mean over the pixels."""
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, stride=2, padding=1), norm(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), norm(2 * width), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)),
    )


def tanh_mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Tanh(), nn.Linear(hidden, classes))


class Block(nn.Module):
    """Attention and a perceptron, each around a residual connection; norms after (BERT) or before (GPT-2) them."""

    def __init__(self, width: int, heads: int, post: bool) -> None:
        super().__init__()
        self.heads, self.post = heads, post
        self.query, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, (self.attend, self.think), strict=True):
            x = norm(x + layer(x)) if self.post else x + layer(norm(x))
        return x

    def attend(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.query(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1)
        joined: Tensor = self.join((shares @ v).transpose(1, 2).reshape(n, length, width))
        return joined

    def think(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.narrow(F.gelu(self.widen(x)))
        return narrow


class Transformer(nn.Module):
    """A classifier of sequences whose weights all start with deviation 0.02, as those of BERT and GPT-2 do."""

    def __init__(
        self, post: bool, vocabulary: int, length: int, classes: int, width: int = 16, heads: int = 2, blocks: int = 2
    ) -> None:
        super().__init__()
        self.post = post
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, post) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, sequences: Tensor) -> Tensor:
        x = self.tokens(sequences) + self.places
        x = self.blocks(self.norm(x))[:, 0] if self.post else self.norm(self.blocks(x)).mean(1)
        scores: Tensor = self.head(x)
        return scores


class LowRank(nn.Module):
    """A frozen random perceptron with a product of low-rank factors beside each layer; one factor of each starts at 0."""

    def __init__(self, inputs: int, hidden: int, classes: int, rank: int) -> None:
        super().__init__()
        sizes = ((inputs, hidden), (hidden, classes))
        self.frozen = nn.ModuleList([nn.Linear(a, b).requires_grad_(False) for a, b in sizes])
        self.down = nn.ParameterList([torch.randn(a, rank) / math.sqrt(a) for a, _ in sizes])
        self.up = nn.ParameterList([torch.zeros(rank, b) for _, b in sizes])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = F.relu(self.frozen[0](x) + x @ self.down[0] @ self.up[0])
        scores: Tensor = self.frozen[1](x) + x @ self.down[1] @ self.up[1]
        return scores


def gaussian_nll(output: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood, without its constant, of a mean and a log-variance: below 0 where the fit is close."""
    mean, log_variance = output.unbind(1)
    return 0.5 * (log_variance + (target - mean).square() * torch.exp(-log_variance)).mean()


def constant(loss: Loss, targets: Tensor) -> float:
    """Return the loss of the best prediction that ignores the inputs."""
    if loss is gaussian_nll:
        return 0.5 * (1 + math.log(float(targets.double().var(correction=0))))
    return losses.constant(loss, targets)["loss"]


# Data


@lru_cache(2)  # runs of one task follow each other, and each needs one data set
def _cached(name: str, pooled: bool = False) -> tuple[Samples, Samples, Tensor | None]:
    table = load(name)
    if not pooled:
        return table.train, table.test, table.groups
    (x, y), (z, t) = table.train, table.test
    return (F.avg_pool2d(x, 2), y), (F.avg_pool2d(z, 2), t), None


def source(name: str, pooled: bool = False, positive: int | None = None) -> Data:
    """Return a named data set; pooled: images of half the side; positive: this class against all others."""

    def read(seed: int) -> tuple[Samples, Samples]:
        (x, y), (z, t), _ = _cached(name, pooled)
        return ((x, y), (z, t)) if positive is None else ((x, (y == positive).long()), (z, (t == positive).long()))

    return read


def roles() -> Tensor:
    """Return the speaking role of every training sample of Shakespeare."""
    groups = _cached("shakespeare")[2]
    assert groups is not None
    return groups


def windows(length: int) -> Data:
    """Return the last characters of Shakespeare's windows, with the next character as target."""

    def read(seed: int) -> tuple[Samples, Samples]:
        (x, y), (z, t), _ = _cached("shakespeare")
        return (x[:, -length:], y), (z[:, -length:], t)

    return read


def halves(read: Callable[..., Any], standardise: bool = True, unit: float | None = None, **options: Any) -> Data:
    """Return a small table of scikit-learn, half of it as test set, drawn by the seed; unit: that of a real target."""

    def split(seed: int) -> tuple[Samples, Samples]:
        X, y = read(return_X_y=True, **options)
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[: len(y) // 2], order[len(y) // 2 :]
        if standardise:
            X = (X - X[train].mean(0)) / X[train].std(0)
        x = torch.tensor(X, dtype=torch.float32)
        t = torch.tensor(y) if unit is None else torch.tensor(y / unit, dtype=torch.float32)
        return (x[train], t[train]), (x[test], t[test])

    return split


def generated(sample: Callable[[int, torch.Generator], Samples], train: int, test: int = 2000) -> Data:
    """Return training samples that depend on the seed, and test samples that do not."""

    def draw(seed: int) -> tuple[Samples, Samples]:
        random = [torch.Generator().manual_seed(s) for s in (seed + 1, TEST)]
        return sample(train, random[0]), sample(test, random[1])

    return draw


def counting(n: int, random: torch.Generator) -> Samples:
    """Sequences of 12 out of 12 tokens: is one token more frequent than another?"""
    x = torch.randint(12, (n, 12), generator=random)
    return x, ((x == 1).sum(1) > (x == 2).sum(1)).long()


def majority(n: int, random: torch.Generator) -> Samples:
    """Sequences of 10 out of 6 tokens: which of the first three is the most frequent?"""
    x = torch.randint(6, (n, 10), generator=random)
    return x, F.one_hot(x, 6).sum(1)[:, :3].argmax(1)


def ridges(n: int, random: torch.Generator) -> Samples:
    """A sum of 8 smooth ridges of 10 inputs, with a little noise."""
    fixed = torch.Generator().manual_seed(5)
    W, v = torch.randn(10, 8, generator=fixed), torch.randn(8, generator=fixed)
    x = torch.randn(n, 10, generator=random)
    return x, torch.tanh(x @ W / 2) @ v / 2 + 0.05 * torch.randn(n, generator=random)


def hastie(n: int, random: torch.Generator) -> Samples:
    """Are the squares of 10 normal numbers large together? (Hastie, Tibshirani, Friedman. Example 10.2)"""
    x = torch.randn(n, 10, generator=random)
    return x, (x.square().sum(1) > 9.34).long()


def friedman(n: int, random: torch.Generator) -> Samples:
    """Friedman's first function: 5 of 10 inputs matter (Multivariate adaptive regression splines, 1991), in tens."""
    x = torch.rand(n, 10, generator=random)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + torch.randn(n, generator=random)) / 10


def waves(n: int, random: torch.Generator) -> Samples:
    """A wave whose noise depends on another input."""
    x = 2 * torch.rand(n, 4, generator=random) - 1
    noise = torch.exp(-3 + 1.5 * x[:, 1]) * torch.randn(n, generator=random)
    return x, torch.sin(3 * x[:, 0]) * x[:, 2] + noise


def people(n: int, random: torch.Generator) -> Samples:
    """A raw table: age, years of education, weekly hours, income, wealth and five flags; who has a loan?"""

    def normal() -> Tensor:
        return torch.randn(n, generator=random)

    age, education = 45 + 14 * normal(), (13 + 2.5 * normal()).round()
    hours, income = 38 + 8 * normal(), torch.exp(10.4 + 0.5 * normal() + 0.08 * (education - 13))
    wealth = (torch.rand(n, generator=random) < 0.3) * torch.exp(11 + normal())
    flags = (torch.rand(n, 5, generator=random) < 0.3).float()
    odds = (income.log() - 10.4) * 2 - ((age - 42) / 14) ** 2 + flags[:, 0] - (wealth > 60_000) * 1.5 + 0.4
    y = torch.rand(n, generator=random) < torch.sigmoid(2 * odds)
    return torch.cat([torch.stack([age, education, hours, income, wealth], 1), flags], 1), y.long()
