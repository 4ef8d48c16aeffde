"""Which oracle: a static rule from the model, the loss and the work, never from timing, so that a run can be repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedstride.core.errors import Refused
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, own_randomness
from fedstride.core.rows import repeat
from fedstride.oracle.linear import Form, form_of
from fedstride.oracle.loop import Loop
from fedstride.oracle.protocol import Batch, Meter
from fedstride.oracle.vmap import Vmap

ORACLES = ("auto", "linear", "vmap", "loop")
LAUNCH_BOUND = 50e6  # FLOPs of a step below which starting operations costs more than doing them
CHUNK_NUMBERS = 2**20  # of models and batches together that a chunk may hold: what stays in a core's cache
LARGEST_CHUNK = 64  # clients
RECURRENT = "recurrent layers are slower together"  # and torch does not count their FLOPs


@dataclass(frozen=True)
class Choice:
    """How gradients are computed, for how many clients at a time, and why."""

    oracle: str = "loop"
    chunk: int = 1  # most clients that share a matrix of rows
    why: str = "asked for"
    form: Form | None = None  # of a linear model
    heavy: bool = False  # a client's step alone keeps a core busy

    def about(self) -> dict[str, Any]:
        return {"oracle": self.oracle, "chunk": self.chunk, "why": self.why}


@dataclass(frozen=True)
class Case:
    """What the rule looks at."""

    model: nn.Module
    loss: Loss
    batch: Batch  # as large as any client's
    random: bool  # the model draws random numbers
    moving: Sequence[str]  # buffers that move in training
    contrast: bool = False  # the objective compares features of several models
    mixed: bool = False  # mixed precision


def choose(case: Case, oracle: str = "auto", chunk: int | None = None) -> Choice:
    if oracle == "loop":
        return Choice(chunk=chunk or 1)
    form = None if case.contrast or case.mixed else form_of(case.model, case.loss, case.batch)
    if form is None and oracle == "linear":
        raise Refused(
            'Local: oracle="linear" with a model or a loss without a closed form. Use "vmap", "loop" or "auto".'
        )
    # Where there is a formula, nothing is counted: the counter makes torch import itself for more than a second.
    flops = step_flops(case.model, case.loss, case.batch) if form is None else form.flops(len(case.batch[0]))
    enough = math.ceil(LAUNCH_BOUND / max(flops, 1.0))
    fitting = max(1, min(enough, LARGEST_CHUNK, CHUNK_NUMBERS // _numbers(case)))
    if form is not None and oracle != "vmap":
        return Choice("linear", chunk or fitting, "a linear model with a loss of known derivative", form)
    size = f"{flops / 1e6:.3g} MFLOP per client-step"
    if oracle == "auto" and flops > LAUNCH_BOUND:
        return Choice("loop", chunk or 1, f"{size}, enough to keep a core busy", heavy=True)
    against = _against_vmap(case)
    if oracle == "vmap":
        if against:
            raise Refused(f'Local: oracle="vmap" cannot be used: {against}. Use "loop" or "auto".')
        return Choice("vmap", chunk or max(2, fitting), "asked for")
    if against:
        return Choice("loop", chunk or 1, against, heavy=against == RECURRENT)
    if fitting < 2:
        return Choice("loop", chunk or 1, "the model is too large for several to share a core's cache")
    return Choice("vmap", chunk or fitting, f"{size}, so that starting operations would cost more than doing them")


def step_flops(model: nn.Module, loss: Loss, batch: Batch) -> float:
    """FLOPs of one loss and its gradient: counted on a few samples, to which they are proportional."""
    replica, few = Replica(model), (batch[0][:8], batch[1][:8])
    with FlopCounterMode(display=False) as counter, torch.enable_grad(), own_randomness(replica.device):
        Loop(replica, loss, [few], Meter(1)).grad(replica.row()[None])
    return float(counter.get_total_flops()) * len(batch[0]) / len(few[0])


def _numbers(case: Case) -> int:
    model = sum(p.numel() for p in case.model.parameters() if p.requires_grad)
    return model + case.batch[0].numel()


def _against_vmap(case: Case) -> str | None:
    """Why vmap cannot be used here, or None: it is tried out against the loop, on two different models."""
    if case.random:
        return "the model draws random numbers"
    if case.moving:
        return "the model has buffers that move in training"
    if case.contrast:
        return "the objective compares the features of several models"
    if any(isinstance(m, nn.RNNBase) for m in case.model.modules()):
        return RECURRENT
    few = (case.batch[0][:4], case.batch[1][:4])
    replica = Replica(case.model)
    replica.train()
    W = repeat(replica.row(), 2)
    W[1] *= 0.9
    try:
        with torch.enable_grad():
            found = Vmap(replica, case.loss, [few, few], Meter(2)).together(W)[1]
            expected = Loop(replica, case.loss, [few, few], Meter(2)).grad(W)[1]
    except Exception as error:  # whatever a user's model may raise
        return f"vmap fails on the model ({type(error).__name__})"
    tolerance = 1e-8 if W.dtype == torch.float64 else 1e-3
    same = bool((found - expected).norm() <= tolerance * expected.norm())
    return None if same else "vmap and the loop disagree on this model"
