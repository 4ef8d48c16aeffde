"""Choice of the oracle: a static rule from the model, the loss and the FLOPs, never from timing, for reproducibility."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedstride.core.batch import Batch, leaves, samples_of, selected
from fedstride.core.errors import Refused
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, own_randomness
from fedstride.core.rows import repeat
from fedstride.oracle.flops import FlopCounter
from fedstride.oracle.forms import Form, form_of
from fedstride.oracle.loop import Loop
from fedstride.oracle.protocol import Meter
from fedstride.oracle.vmap import Vmap

CLOSED = {  # closed forms, with the reason to use them
    "linear": "a linear model with a loss of known derivative",
    "mlp": "layers, activations and a loss of known derivative",
}
ORACLES = ("auto", *CLOSED, "vmap", "loop")
LAUNCH_BOUND = 50e6  # FLOPs per step below which launching operations costs more than computing them
CONVOLUTION_BOUND = 30e6  # the same for models with convolutions: vmap turns them into grouped ones, which are slow
CHUNK_NUMBERS = 2**20  # maximum numbers of models and batches in a chunk, so that they fit in a core's cache
LARGEST_CHUNK = 64  # clients
RECURRENT = "recurrent layers are slower with vmap"  # and torch does not count their FLOPs


@dataclass(frozen=True)
class Choice:
    """The chosen oracle, the number of clients per chunk, and the reason."""

    oracle: str = "loop"
    chunk: int = 1  # maximum number of clients that share a matrix of rows
    why: str = "requested"
    form: Form | None = None  # closed form of the model and its loss
    heavy: bool = False  # whether the step of one client keeps a core busy

    def about(self) -> dict[str, Any]:
        """Return the choice as plain values, for the record of a run."""
        return {"oracle": self.oracle, "chunk": self.chunk, "why": self.why}


@dataclass(frozen=True)
class Case:
    """The input of choose()."""

    model: nn.Module
    loss: Loss
    batch: Batch  # as large as the largest batch of any client
    random: bool  # whether the model draws random numbers
    moving: Sequence[str]  # buffers that change in training
    contrast: bool = False  # whether the objective compares features of several models
    mixed: bool = False  # mixed precision


def choose(case: Case, oracle: str = "auto", chunk: int | None = None) -> Choice:
    """Choose the oracle and the chunk size, or check the requested ones."""
    if oracle == "loop":
        return Choice(chunk=chunk or 1)
    form = None if case.contrast or case.mixed else form_of(case.model, case.loss, case.batch)
    if oracle in CLOSED and (form is None or form.oracle != oracle):
        raise Refused(
            f'Local: oracle="{oracle}" with a model or a loss without this closed form. Use "vmap", "loop" or "auto".'
        )
    # Use the formula if there is one: importing torch's counter takes more than a second.
    flops = step_flops(case.model, case.loss, case.batch) if form is None else form.flops(samples_of(case.batch[0]))
    launches = 1 if form is None else len(form.layers)  # each layer launches operations of its own
    enough = math.ceil(launches * LAUNCH_BOUND / max(flops, 1.0))
    fitting = max(1, min(enough, LARGEST_CHUNK, CHUNK_NUMBERS // _numbers(case)))
    if form is not None and oracle != "vmap":
        return Choice(form.oracle, chunk or fitting, CLOSED[form.oracle], form, heavy=flops > LAUNCH_BOUND)
    size = f"{flops / 1e6:.3g} MFLOP per client-step"
    if oracle == "auto" and flops > LAUNCH_BOUND:
        return Choice("loop", chunk or 1, f"{size}, enough to keep a core busy", heavy=True)
    if oracle == "auto" and flops > CONVOLUTION_BOUND and any(isinstance(m, _ConvNd) for m in case.model.modules()):
        return Choice("loop", chunk or 1, f"{size} with convolutions, which are slower with vmap")
    against = _against_vmap(case)
    if oracle == "vmap":
        if against:
            raise Refused(f'Local: oracle="vmap" cannot be used: {against}. Use "loop" or "auto".')
        return Choice("vmap", chunk or max(2, fitting), "requested")
    if against:
        return Choice("loop", chunk or 1, against, heavy=against == RECURRENT)
    if fitting < 2:
        return Choice("loop", chunk or 1, "several models do not fit in a core's cache")
    return Choice("vmap", chunk or fitting, f"{size}, so launching operations would cost more than computing them")


def step_flops(model: nn.Module, loss: Loss, batch: Batch) -> float:
    """Return the FLOPs of one loss and its gradient, extrapolated from a few samples."""
    replica, few = Replica(model), selected(batch, slice(8))
    with FlopCounter() as counter, torch.enable_grad(), own_randomness(replica.device):
        Loop(replica, loss, [few], Meter(1)).grad(replica.row()[None])
    return float(counter.flops) * samples_of(batch[0]) / samples_of(few[0])


def _numbers(case: Case) -> int:
    """Return the numbers of one client's model and batch."""
    model = sum(p.numel() for p in case.model.parameters() if p.requires_grad)
    return model + sum(int(v.numel()) for v in leaves(case.batch[0]))


def _against_vmap(case: Case) -> str | None:
    """Return the reason why vmap cannot be used, or None; compares it with the loop on two different models."""
    if case.random:
        return "the model draws random numbers"
    if case.moving:
        return "the model has buffers that change in training"
    if case.contrast:
        return "the objective compares the features of several models"
    if any(isinstance(m, nn.RNNBase) for m in case.model.modules()):
        return RECURRENT
    few = selected(case.batch, slice(4))
    replica = Replica(case.model)
    replica.train()
    W = repeat(replica.row(), 2)
    W[1] *= 0.9
    try:
        with torch.enable_grad():
            found = Vmap(replica, case.loss, [few, few], Meter(2)).together(W)[1]
            expected = Loop(replica, case.loss, [few, few], Meter(2)).grad(W)[1]
    except Exception as error:  # a user's model may raise any exception
        return f"vmap fails on the model ({type(error).__name__})"
    tolerance = 1e-8 if W.dtype == torch.float64 else 1e-3
    same = bool((found - expected).norm() <= tolerance * expected.norm())
    return None if same else "vmap and the loop disagree on this model"
