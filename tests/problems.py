"""Tiny problems that the tests share: seeded, a few dozen parameters, nothing to download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import fedstride as fs
from fedstride.client.context import Context
from fedstride.core.rows import Col, Rows

SIZES = (6, 9, 5, 8)
STEPS = (2, 4, 1, 3)  # tau_i
Data = list[tuple[Tensor, Tensor]]


class Classifier(nn.Module):
    """4 -> 3 -> 3 with a `features` method: 27 parameters."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(4, 3), middle or nn.Tanh(), nn.Linear(3, 3)

    def features(self, inputs: Tensor) -> Tensor:
        return self.middle(self.body(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A module with the initial weights of this seed; the test's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also formats three tracebacks, for other devices
        return make().to(dtype)


def classifier(dtype: torch.dtype = torch.float64, middle: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    return seeded(lambda: Classifier(middle()), dtype)


def classification(sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 1) -> Data:
    """Gaussian inputs, three classes, shifted a little more for each client."""
    source = torch.Generator().manual_seed(seed)
    data = []
    for i, n in enumerate(sizes):
        inputs = torch.randn(n, 4, generator=source, dtype=torch.float64) + 0.3 * i
        data.append((inputs.to(dtype), torch.randint(3, (n,), generator=source)))
    return data


def regression(sizes: Sequence[int] = SIZES, d: int = 5, seed: int = 2) -> Data:
    """Least squares whose clients disagree."""
    source = torch.Generator().manual_seed(seed)
    pairs = []
    for n in sizes:
        pairs.append(
            (torch.randn(n, d, generator=source, dtype=torch.float64), torch.randn(n, 1, generator=source).double())
        )
    return pairs


def linear(x: Tensor | None = None, d: int = 5) -> nn.Module:
    """One output without bias, whose parameter is x."""
    model = seeded(lambda: nn.Linear(d, 1, bias=False))
    if x is not None:
        model.weight.data.copy_(x.reshape(1, -1))
    return model


def hessians(data: Data) -> list[tuple[Tensor, Tensor]]:
    """(H_i, H_i x - grad f_i(x)) of the loss "mse"."""
    return [(2 * A.T @ A / len(A), 2 * (A.T @ b)[:, 0] / len(A)) for A, b in data]


def minimiser(data: Data, weights: Sequence[float]) -> Tensor:
    H, h = zip(*hessians(data), strict=True)
    p = [w / sum(weights) for w in weights]
    return torch.linalg.solve(
        sum(a * b for a, b in zip(p, H, strict=True)), sum(a * b for a, b in zip(p, h, strict=True))
    )


def learn(algorithm: str | fs.Algorithm = "fedavg", **options: Any) -> fs.Run:
    """Three rounds of the classifier, unless options say otherwise."""
    given = {"model": classifier(), "loss": "cross_entropy", "clients": classification(), "rounds": 3, **options}
    return fs.train(given.pop("model"), given.pop("loss"), given.pop("clients"), algorithm, **given)


def records(run: fs.Run) -> list[dict[str, Any]]:
    """The history without the clock."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.history]


def same_bits(one: fs.Run, other: fs.Run) -> bool:
    models = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return torch.equal(one.x, other.x) and records(one) == records(other) and all(torch.equal(a, b) for a, b in models)


@dataclass(frozen=True)
class Always:
    """A sampler that draws the same cohort in every round and every attempt."""

    cohort: tuple[int, ...]

    def check(self, clients: int) -> None:
        pass

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        return list(self.cohort)


def context(
    steps: Sequence[int] = (1,), size: float = 10.0, batch: float = 10.0, round: int = 0, rounds: int = 1
) -> Context:
    one = torch.ones(len(steps), 1, dtype=torch.float64)
    return Context(0, round, rounds, tuple(range(len(steps))), tuple(steps), size * one, batch * one)


class Quadratic:
    """f_i(w) = <h_i, w^2> / 2, one row of curvatures per client; counts its evaluations."""

    def __init__(self, H: Rows) -> None:
        self.H, self.losses, self.grads = H, 0, 0

    def loss(self, W: Rows) -> Col:
        self.losses += 1
        return (self.H * W**2).sum(1, keepdim=True) / 2

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        self.grads += 1
        return (self.H * W**2).sum(1, keepdim=True) / 2, self.H * W

    def take(self, rows: list[int]) -> Quadratic:
        return Quadratic(self.H[rows])


class Fixed:
    """A sampler that returns a given list per call."""

    def __init__(self, cohorts):
        self.cohorts = iter(cohorts)

    def check(self, clients):
        pass

    def draw(self, sizes, source):
        return next(self.cohorts)
