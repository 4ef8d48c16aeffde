"""The clients of `auto`: Polyak's step along a direction scaled tensor by tensor, under a cap relative to the weights.

Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak step-size for SGD. AISTATS 2021, for the step itself;
You, Gitman, Ginsburg. Large batch training of convolutional networks. 2017, for steps relative to the weights.
Deviations: the cap, its schedule, the limit on gradients that grow and the moving target for losses below zero are ours. The
other half is server/auto.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.client.context import Context
from fedstride.core.errors import positive
from fedstride.core.rows import Col, Rows, State, Vec, dot, repeat, sq
from fedstride.oracle import Oracle

WARM_UP = 10  # rounds: untrained networks are easily ruined by long steps
LINEAR = 2.0  # a model with one matrix is not: its cap is twice as large from the start
MANY = 10  # local steps: beyond them, a client's steps are shorter, so that it drifts no farther than sqrt(K / 10)
STRETCH = 20.0  # most that a radius is multiplied by where inputs are small
SUDDEN = 2.0  # most that a gradient counts for, in q_j: where a network begins to learn, gradients grow a hundredfold


@dataclass(frozen=True)
class CappedPolyak:
    """y -= eta u with u_j = r_j g_j / max{q_j, rms(g_j) / 2} for each tensor j, and eta = min{2 (f_B - f*) / <g, u>, cap}.

    r_j is the root mean square of the tensor's weights and q_j the usual one of its gradient, so eta is the fraction of its own
    size by which a step changes a tensor, and no step changes it by more than twice that: the units of loss and parameters do not
    matter. Where a layer's inputs are so small that its bias would change the outputs more than its weights do, r_j is larger.

    The cap is 0.06 min{1, (t + 1)/10, sqrt(10 / K)} / sqrt(1 + t/10) in round t for a client that takes K local steps: it rises
    over the first rounds, as far as the number of steps allows, and then falls with the square root of time, which needs no
    planned number of rounds. Models with one matrix need no rise: their cap is 0.12 min{1, sqrt(10 / K)} / sqrt(1 + t/10).

    A server sends r_j / q_j, q_j^2, a factor for the cap, and f* once the loss goes below zero. Without one, as in the first round,
    a client takes r_j and q_j from its own first gradient, and f* = min(0, 2 f).
    """

    cap: float = 0.06
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True
    scales_tensors: ClassVar[bool] = True
    along_gradient: ClassVar[bool] = False
    least_loss: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        positive(self, cap=self.cap)

    def init(self, x: Vec, context: Context) -> State:
        zero = torch.zeros_like(context.size)
        shapes, sent = context.shapes or (x.shape,), context.broadcast
        state = {name: zero.clone() for name in ("eta", "loss", "taken")}
        layers, t = sum(len(shape) > 1 for shape in shapes), context.round
        drift = (MANY / context.tau.clamp(min=MANY)).sqrt()
        most = drift.clamp(max=(t + 1) / WARM_UP) if layers > 1 else LINEAR * drift
        state["cap"] = self.cap * most / math.sqrt(1 + t / WARM_UP) * sent.get("reach", 1.0)
        state["mean_squares"] = zero.repeat(1, len(shapes))
        state |= {f"tensor {j}": zero.new_empty(len(zero), 0, s.numel()) for j, s in enumerate(shapes)}
        if "scale" in sent:
            state |= {name: repeat(sent[name], len(zero)) for name in ("scale", "squares")}
            state["target"] = zero + sent["target"]
        else:
            state["radii"] = repeat(radii(x, shapes), len(zero))
            state["biases"] = repeat(biases(shapes, x.device), len(zero))
        return state

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        sizes = [v.shape[2] for name, v in state.items() if name.startswith("tensor ")]  # without a look at values
        squares = torch.cat([sq(part) / part.shape[1] for part in torch.split(G, sizes, 1)], 1)
        if "started" not in state:
            state["started"], state["loss"] = torch.ones_like(L), L.clone()
            if "scale" not in state:
                q, n = squares.sqrt(), squares.new_tensor(sizes)
                r = balanced(started(state["radii"], L, q, n), q, n, state["biases"])
                state["scale"], state["squares"] = ratio(r, q), squares
                state["target"] = 2 * L.clamp(max=0)
        state["taken"] = state["taken"] + 1
        state["mean_squares"] = state["mean_squares"] + (squares - state["mean_squares"]) / state["taken"]
        scale = state["scale"] * (SUDDEN * ratio(state["squares"], squares).sqrt()).clamp(max=1)
        U = torch.cat([c * part for c, part in zip(torch.split(scale, 1, 1), torch.split(G, sizes, 1), strict=True)], 1)
        slope = dot(G, U).clamp(min=torch.finfo(W.dtype).tiny)
        state["eta"] = torch.minimum(2 * (L - state["target"]).clamp(min=0) / slope, state["cap"])
        return -state["eta"] * U


def radii(x: Vec, shapes: Sequence[torch.Size]) -> Vec:
    """The size of each tensor: the root mean square of its weights.

    Vectors, which may be zero or have few entries, and matrices that are zero have at least the geometric mean of the other
    matrices' sizes.
    """
    rms = torch.stack([(sq(part) / len(part)).sqrt() for part in torch.split(x, [s.numel() for s in shapes])])
    matrix = torch.tensor([len(s) > 1 for s in shapes], device=x.device)
    known = matrix & (rms > 0)
    known = torch.where(known.any(), known, rms > 0)
    logs = torch.where(known, rms, 1.0).log().sum() / known.sum().clamp(min=1)
    typical = torch.where(known.any(), logs.exp(), 0.0)
    return torch.where(matrix & (rms > 0), rms, torch.maximum(rms, typical))


def started(radii: Tensor, loss: Tensor, q: Tensor, sizes: Tensor) -> Tensor:
    """The radii; where all are 0, so that they say nothing, the length of Polyak's step along each tensor's g_j / q_j."""
    return torch.where((radii > 0).any(-1, keepdim=True), radii, ratio(2 * loss.abs(), q * sizes))


def biases(shapes: Sequence[torch.Size], device: torch.device) -> Tensor:
    """The index of each matrix's bias, or the tensor's own index if it has none.

    A bias is a vector with one entry per output that follows its matrix, or another matrix with as many outputs: an LSTM has
    two before its biases.
    """
    found = list(range(len(shapes)))
    for j in reversed(range(len(shapes) - 1)):
        if len(shapes[j]) > 1 and shapes[j + 1][0] == shapes[j][0]:
            vector, known = len(shapes[j + 1]) == 1, found[j + 1] != j + 1
            found[j] = found[j + 1] if vector or known else j
    return torch.tensor(found, device=device)


def balanced(radii: Tensor, q: Tensor, sizes: Tensor, biases: Tensor) -> Tensor:
    """The radii, stretched where a layer's weights would change the loss less than its bias does: its inputs are small."""
    effects = radii * q * sizes.sqrt()
    return radii * ratio(effects.gather(-1, biases), effects).clamp(1, STRETCH)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, 0 where b is not positive."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)
