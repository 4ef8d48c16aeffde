"""Laws of auto: what its clients and its server make of tensors, biases, many local steps, and losses below zero.

The sources are in client/step/capped_polyak.py and server/auto.py. The server's step has a law in servers.py.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import sqrt

import torch
from torch import Tensor

from fedstride.client.context import Context
from fedstride.client.step import CappedPolyak, Step
from fedstride.core.rows import Vec
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import apart
from fedstride.server import Auto, Server
from fedstride.wire import Mean

SHAPES = tuple(map(torch.Size, ((3, 2), (3,), (2, 3))))  # a matrix with its bias, and one without
SIZES = [shape.numel() for shape in SHAPES]


def _squares(v: Vec) -> list[float]:
    return [float(part.square().mean()) for part in torch.split(v, SIZES)]


def _radii(x: Vec) -> list[float]:
    """Return the root mean squares of the tensors; the bias has at least the geometric mean of the matrices'."""
    first, bias, second = map(sqrt, _squares(x))
    return [first, max(bias, sqrt(first * second)), second]


def _scale(r: list[float], q: list[float]) -> list[float]:
    """Return r_j / q_j, the first up to 20 times as much, so that its weights change the loss as much as their bias."""
    stretch = min(20.0, max(1.0, r[1] * q[1] * sqrt(3) / (r[0] * q[0] * sqrt(6))))
    return [stretch * r[0] / q[0], r[1] / q[1], r[2] / q[2]]


def _drawn(source: torch.Generator, small: float) -> Vec:
    """Return a random row, whose first matrix is small."""
    v = torch.randn(sum(SIZES), generator=source, dtype=torch.float64)
    return torch.cat([small * v[: SIZES[0]], v[SIZES[0] :]])


@law("Step rules")
def steps(make: Callable[[], Step] = CappedPolyak) -> Iterator[Measured]:
    """Every move is that of the formula: in early and late rounds, after few and many steps, with and without a server."""
    source, one = torch.Generator().manual_seed(0), torch.ones(1, 1, dtype=torch.float64)
    words = {"reach": 2.5 * one[0, 0], "scale": one.new_tensor([0.3, 0.02, 0.1]), "target": -0.4 * one[0, 0]}
    words["squares"] = one.new_tensor([1e-4, 1e-2, 1.0])
    moves, means = [], []
    for (t, tau), sent, first in product(((0, 5), (4, 5), (4, 40), (30, 5), (30, 1000)), ({}, words), (3.0, -0.5)):
        rule, x = make(), _drawn(source, 1.0)
        state = rule.init(x, Context(0, t, 50, (0,), (tau,), one, one, sent, SHAPES))
        cap = 0.06 * min(1.0, (t + 1) / 10, sqrt(10 / max(10, tau))) / sqrt(1 + t / 10) * (2.5 if sent else 1.0)
        target, scale, seen = -0.4 if sent else min(0.0, 2 * first), [0.3, 0.02, 0.1], list[list[float]]()
        usual = [1e-2, 1e-1, 1.0]
        for k, loss in enumerate((first, first + 0.01, 0.01, -2.0)):
            g = 4**k * _drawn(source, 0.1)
            seen.append(_squares(g))
            if k == 0 and not sent:
                usual = list(map(sqrt, seen[0]))
                scale = _scale(_radii(x), usual)
            factors = [c * q / max(q, sqrt(now) / 2) for c, q, now in zip(scale, usual, seen[-1], strict=True)]
            u = torch.cat([c * part for c, part in zip(factors, torch.split(g, SIZES), strict=True)])
            eta = min(2 * max(0.0, loss - target) / float(g @ u), cap)
            moves.append(apart(rule.step(x[None], loss * one, g[None], state, None)[0], -eta * u))  # type: ignore[arg-type]
        means.append(apart(state["mean_squares"][0], x.new_tensor(seen).mean(0)))
    yield "auto, three tensors: distance of a move to the formula as printed", max(moves), "<=", 1e-10
    yield "auto, three tensors: distance of what is sent to the mean squares of the gradients", max(means), "<=", 1e-10


@law("Server rules")
def scales(make: Callable[[], Server] = Auto) -> Iterator[Measured]:
    """The server sends r_j / q_j and q_j^2 of all tensors and the target f*, from the sizes, mean squares and losses so far."""
    for name, length in (("", 1.0), (", from a model of zeros", 0.0)):
        source, rule = torch.Generator().manual_seed(0), make()
        x = length * _drawn(source, 1.0)
        state, losses, q2, wrong, off = rule.init(x), list[float](), list[float](), [], []
        start: list[float] = []
        for loss in (3.0, 1.0, 2.0, -0.5, 0.3, -2.0, -1.5, -2.5):
            losses.append(loss)
            seen = _squares(_drawn(source, 0.1))
            q2 = [0.9 * old + 0.1 * new for old, new in zip(q2, seen, strict=True)] if q2 else seen
            q = list(map(sqrt, q2))
            start = start or (_radii(x) if length else [2 * loss / (n * v) for n, v in zip(SIZES, q, strict=True)])
            fields: dict[str, Tensor] = {
                "update": 0.3 * _drawn(source, 0.1),
                **{"square": x.new_tensor([2.0]), "mean_squares": x.new_tensor(seen), "loss": x.new_tensor([loss])},
            }
            x = rule.step(x, Mean(fields, 1.0, 4, 4, SHAPES, steps=5), state)
            r = [max(now, before) for now, before in zip(_radii(x), start, strict=True)]
            lowest = min(losses)
            target = lowest - max(3.0 - lowest, -lowest) if lowest < 0 else 0.0
            sent = rule.broadcast(state)
            wrong += [apart(sent["scale"], x.new_tensor(_scale(r, q))), apart(sent["squares"], x.new_tensor(q2))]
            off.append(abs(float(sent["target"]) - target))
        yield f"auto{name}: distance of the scale to the formula as printed", max(wrong), "<=", 1e-10
        yield f"auto{name}: distance of the target to the formula as printed", max(off), "<=", 1e-10
