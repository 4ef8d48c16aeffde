"""Attacks on the mean: what one of six clients may upload, and what becomes of the run."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedstride as fs
from tests.hostile.engine import Change, Hostile, Row, alternating, becomes, times
from tests.hostile.row import Seen

POINTS = 0.02  # of accuracy that an attack may cost
CLIENTS, ROUNDS = 6, 16
HUGE = 1e30


@dataclass(frozen=True)
class Task:
    """What is trained."""

    algorithm: str
    batch_norm: bool
    aggregate: bool
    normalise: bool


@dataclass(frozen=True)
class Upload:
    """An attack by client 0 of six."""

    what: str
    algorithm: str
    change: Change
    kind: str = "updates"  # the exchange that is attacked
    start: int = 0
    batch_norm: bool = False
    aggregate: bool = False  # whether a trimmed mean replaces the mean, because no mean can withstand this
    normalise: bool = False

    @property
    def name(self) -> str:
        robust = ", TrimmedMean(0.2)" if self.aggregate else ""
        return f"{self.algorithm}{robust}: {self.what}" + (f", from round {self.start + 1}" if self.start else "")

    @property
    def task(self) -> Task:
        return Task(self.algorithm, self.batch_norm, self.aggregate, self.normalise)

    expected = "the run ends, can be resumed, and loses less than 2 points"

    def run(self) -> Seen:
        """Train with the hostile client, resume, and compare with the same run without an attack."""
        honest, later = undisturbed(self.task, ROUNDS), undisturbed(self.task, ROUNDS + 2)
        with tempfile.TemporaryDirectory() as folder:
            hostile = Hostile(self.change, start=self.start, kind=self.kind)
            run = trained(self.task, hostile, checkpoint=folder)
            again = trained(self.task, None, checkpoint=folder, rounds=ROUNDS + 2)
        refused = sum((Counter(row["refused"]) for row in run.history), Counter[str]())
        lost = honest - accuracy(run)
        finite = bool(torch.isfinite(again.x).all()) and math.isfinite(again.history[-1]["test_loss"])
        held = lost <= POINTS and finite and later - accuracy(again) <= POINTS
        told = ", ".join(f"{why}: {n}" for why, n in sorted(refused.items())) or "nothing refused"
        return Seen(held, f"{100 * honest:.1f} to {100 * accuracy(run):.1f} %, {told}")


@cache
def undisturbed(task: Task, rounds: int) -> float:
    """Return the accuracy without an attack."""
    return accuracy(trained(task, None, rounds))


def accuracy(run: fs.Run) -> float:
    return float(run.history[-1]["test_accuracy"])


@cache
def data() -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Digits, a ninth for each client and the rest to test."""
    X, y = (torch.tensor(v) for v in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    X, y = X[order].float() / 16, y[order]
    return [(X[i::9], y[i::9]) for i in range(CLIENTS)], (
        torch.cat([X[i::9] for i in (6, 7, 8)]),
        torch.cat([y[i::9] for i in (6, 7, 8)]),
    )


def trained(task: Task, engine: Hostile | None, rounds: int = ROUNDS, **more: object) -> fs.Run:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(32)] if task.batch_norm else []
        model = nn.Sequential(nn.Linear(64, 32), *middle, nn.ReLU(), nn.Linear(32, 10))
    clients, test = data()
    name, _, settings = task.algorithm.partition("(")
    algorithm: object = task.algorithm
    if task.aggregate:
        algorithm = fs.Algorithm(step=fs.Constant(float(settings[3:-1])), aggregate=fs.TrimmedMean(0.2), name=name)
    where = engine if engine is not None else fs.engine.Local(oracle="loop")
    options = {"batch_size": None if name in ("fedlin", "fedtrack") else 20, "local_steps": 10, "seed": 1}
    options |= {"normalise": task.normalise, **more}
    return fs.train(model, "cross_entropy", clients, algorithm, rounds=rounds, test=test, engine=where, **options)


def negative_variance(row: Row, round: int) -> None:
    row["stats"][:, 32:64] = -1e3


def of_one_tensor(factor: float) -> Change:
    """Multiply the smallest of the mean squares."""

    def change(row: Row, round: int) -> None:
        row["mean_squares"][:, row["mean_squares"][0].argmin()] *= factor

    return change


def false_moments(value: float, part: slice) -> Change:
    def change(row: Row, round: int) -> None:
        row["moments"][:, part] = value

    return change


RECIPES = ("fedavg(lr=0.3)", "fedexp(lr=0.3)", "auto", "scaffold(lr=0.3)", "fednova(lr=0.3)", "fedsls", "delta_sgd")
NOVA, SCAFFOLD, LIN, AUTO, EXP = "fednova(lr=0.3)", "scaffold(lr=0.3)", "fedlin(lr=3)", "auto", "fedexp(lr=0.3)"
FEDAVG = "fedavg(lr=0.3)"
FACTORS = (1e3, 1e5, -1e3)
ATTACKS = [
    *(Upload(f"update x {factor:g}", name, times(factor)) for name in RECIPES for factor in FACTORS),
    Upload("update x 1e4", FEDAVG, times(1e4), start=8),
    Upload("update x -1e3", AUTO, times(-1e3), start=8),
    Upload("update x 1e12", FEDAVG, times(1e12)),
    Upload("gradient x 1e4", LIN, times(1e4), kind="gradients"),
    Upload("gradient x -1e3", LIN, times(-1e3), kind="gradients"),
    *(Upload(f"update is {v}", FEDAVG, becomes(v, "update")) for v in (math.nan, math.inf, HUGE)),
    Upload("control variate 1e30", SCAFFOLD, becomes(HUGE, "control")),
    Upload("control variate 1e30, then -1e30", SCAFFOLD, alternating(HUGE, "control"), start=3),
    Upload("control variate x 1e4", SCAFFOLD, times(1e4, "control")),
    Upload("control variate NaN", SCAFFOLD, becomes(math.nan, "control")),
    *(Upload(f"effective steps {v:g}", NOVA, becomes(v, "effective_steps")) for v in (-1.0, 0.0, 1e6, math.nan)),
    *(Upload(f"loss {v:g}", AUTO, becomes(v, "loss")) for v in (HUGE, -HUGE, 1e4, -5.0, -20.0, math.nan)),
    Upload("loss 1e30, then -1e30", AUTO, alternating(HUGE, "loss"), start=2),
    *(Upload(f"mean squares {v:g}", AUTO, becomes(v, "mean_squares")) for v in (HUGE, -1.0, math.nan)),
    *(Upload(f"mean squares x {f:g}", AUTO, times(f, "mean_squares")) for f in (0.0, 90.0, 9000.0)),
    Upload("mean squares of one tensor x 1e4", AUTO, of_one_tensor(1e4)),
    *(Upload(f"squared norm {v:g}", EXP, becomes(v, "square")) for v in (HUGE, -1.0, 1e4, math.inf)),
    *(Upload(f"squared norm {v:g}", AUTO, becomes(v, "square")) for v in (HUGE, -1.0)),
    Upload("BatchNorm variances -1e3", FEDAVG, negative_variance, batch_norm=True),
    Upload("BatchNorm statistics 1e30", FEDAVG, becomes(HUGE, "stats"), batch_norm=True),
    Upload("BatchNorm statistics x 1e4", FEDAVG, times(1e4, "stats"), batch_norm=True),
    Upload("BatchNorm statistics NaN", FEDAVG, becomes(math.nan, "stats"), batch_norm=True),
    *(Upload(f"training loss {v:g}", FEDAVG, becomes(v, "train_loss")) for v in (1e38, -1e38, math.nan)),
    Upload("client step inf", FEDAVG, becomes(math.inf, "client_step")),
    *(Upload(f"{name} -1", FEDAVG, becomes(-1, name)) for name in ("gradients", "failed", "trials")),
    Upload("sums of the inputs 1e30", FEDAVG, false_moments(HUGE, slice(1, None)), "moments", normalise=True),
    Upload("variances of the inputs -1", FEDAVG, false_moments(-1.0, slice(129, None)), "moments", normalise=True),
    Upload("number of samples 2^62", FEDAVG, false_moments(2.0**62, slice(0, 1)), "moments", normalise=True),
    *(Upload(f"update x {f:g}", FEDAVG, times(f), aggregate=True) for f in (-1.0, -5.0, 10.0, 99.0, 1e5)),
]
