"""Laws of the papers' protocol: weight decay is part of f, clipping acts before corrections.

FedExP app. D.3 has weight decay 1e-4 and gradients clipped to norm 10.
Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedlin, fedsls, fedsps, fedtrack, scaffold
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.objectives import recorded
from fedstride.research.verify.problems import EXACT, LeastSquares, apart, end, gradients, unequal
from fedstride.wire import TopK

Recipe = Callable[..., Algorithm]
DECAY, CLIP = 0.3, 1.5


@law("Weight decay")
def weight_decay(decay: float = DECAY) -> Iterator[Measured]:
    """Training with weight decay is training on f_i + decay/2 |x|^2, for gradients, losses and exchanged gradients."""
    problem = unequal()
    d = problem.A[0].shape[1]
    # the same objective as least squares: rows sqrt(decay n) e_j with target 0, under the sum loss divided by n
    ridged = [torch.cat([A / len(A) ** 0.5, DECAY**0.5 * torch.eye(d).double()]) for A in problem.A]
    targets = [torch.cat([b / len(b) ** 0.5, torch.zeros(d).double()]) for b in problem.b]
    ridge = LeastSquares(ridged, targets)  # the sum loss
    for name, algorithm in {
        "FedAvg": fedavg(lr=0.1),
        "SCAFFOLD": scaffold(lr=0.1),
        "FedLin": fedlin(lr=0.1),
        "FedLin, client TOP-2 of 4": fedlin(lr=0.1, up=TopK(2), error_feedback=False),
        "FedTrack, one component": fedtrack(lr=0.1, block=20),
        "FedSLS": fedsls(c=0.3),
        "FedSPS": fedsps(lr_max=0.3),
    }.items():
        distance = apart(end(problem, algorithm, weight_decay=decay), end(ridge, algorithm))
        yield f"{name}: distance of a run with weight decay to one on f + decay/2 |x|^2", distance, "<=", 1e-10
    _, steps, _ = recorded(problem, fedsls(), 2, local_steps=2, weight_decay=decay)
    losses = [float(problem.loss(*_outputs(problem, s.client, s.y))) + DECAY / 2 * float(sq(s.y)) for s in steps]
    wrong = max(abs(s.loss - value) / value for s, value in zip(steps, losses, strict=True))
    yield "FedSLS: distance of the searched loss to f + decay/2 |y|^2", wrong, "<=", EXACT


def _outputs(problem: LeastSquares, i: int, y: Vec) -> tuple[torch.Tensor, torch.Tensor]:
    return problem.A[i] @ y, problem.b[i]


@law("Clipping")
def clipping(clip: float = CLIP) -> Iterator[Measured]:
    """Gradients are shortened to the norm, never lengthened, before the correction is added."""
    problem = unequal()
    for name, algorithm in {"FedAvg": fedavg(lr=0.05), "FedLin": fedlin(lr=0.6)}.items():
        xs, steps, _ = recorded(problem, algorithm, 12, local_steps=3, clip_norm=clip)
        wrong, short = [], 0
        for s in steps:
            own = gradients(problem, s.y)
            length = float(own[s.client].norm())
            g = own[s.client] * min(1.0, CLIP / (length + 1e-6))  # as torch.nn.utils.clip_grad_norm_
            short += length < CLIP
            if algorithm.drift is not None:  # exchanged gradients are not clipped
                at = gradients(problem, xs[s.round])
                g = g + torch.stack(at).mean(0) - at[s.client]
            wrong.append(apart(s.g, g))
        yield f"{name}: distance of a direction to the clipped gradient plus its correction", max(wrong), "<=", EXACT
        yield f"{name}: gradients that needed no clipping, of {len(steps)}", short, ">=", 1
        yield f"{name}: gradients that needed clipping, of {len(steps)}", len(steps) - short, ">=", 1
