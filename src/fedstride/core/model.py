"""nn.Module <-> row: parameters are views of a row, frozen and tied weights and buffers are kept apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedstride.core.errors import InvalidInput
from fedstride.core.rows import Vec


class Replica:
    """A module of one's own whose trainable parameters point into whatever row is bound.

    Tied parameters count once; frozen ones never enter the row. Buffers that move in training (BatchNorm's
    statistics) are a second, separate row, so that norms and compressors never see them.
    """

    def __init__(self, module: nn.Module, moving: tuple[str, ...] = (), frozen_stats: bool = False) -> None:
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            raise InvalidInput("model: it has lazy parameters without a shape; run it once on a batch before training.")
        self.module = copy.deepcopy(module)
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        if not self.parameters:
            raise InvalidInput(
                "model: it has no trainable parameters; expected at least one with requires_grad=True. "
                "Call model.requires_grad_(True), or pass another model."
            )
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{t} on {dev}" for t, dev in kinds))
            raise InvalidInput(f"model: its parameters are of several kinds ({found}); convert it with model.to(...).")
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device
        if not self.dtype.is_floating_point:
            raise InvalidInput(f"model: parameters are {self.dtype}; expected a floating point type.")
        self.sizes = [p.numel() for p in self.parameters]
        self.shapes = [p.shape for p in self.parameters]
        self.d = sum(self.sizes)
        self.moving = moving
        self.frozen_stats = frozen_stats
        self.channels_last = False  # True: filters are laid out as convolutions read them fastest

    def row(self) -> Vec:
        """A copy of the trainable parameters as one vector, in the order of module.parameters()."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def bind(self, row: Vec) -> None:
        """Let the parameters be views of row: what changes the row changes the model. Filters are copies, if laid out anew."""
        for p, part in zip(self.parameters, self.views(row), strict=True):
            filters = self.channels_last and part.dim() == 4
            p.data = part.clone(memory_format=torch.channels_last) if filters else part

    def views(self, row: Vec) -> list[Tensor]:
        """The parts of a row in the shapes of the parameters."""
        return [part.view(shape) for part, shape in zip(torch.split(row, self.sizes), self.shapes, strict=True)]

    def __call__(self, inputs: Tensor) -> Tensor:
        """The output, in the model's own precision: mixed precision ends before the loss."""
        output: Tensor = self.module(inputs)
        return output.to(self.dtype) if output.dtype is torch.bfloat16 else output

    def train(self) -> None:
        self.module.train()
        if self.frozen_stats:
            for m in self.module.modules():
                if isinstance(m, _BatchNorm):
                    m.eval()

    def buffers(self) -> list[Tensor]:
        named = dict(self.module.named_buffers())
        return [named[name] for name in self.moving]

    def stats(self) -> Vec:
        """A copy of the moving buffers as one vector of the model's type."""
        return torch.cat([b.reshape(-1).to(self.dtype) for b in self.buffers()] or [self.parameters[0].new_empty(0)])

    def bind_stats(self, row: Vec) -> None:
        at = 0
        for b in self.buffers():
            part = row[at : at + b.numel()].view(b.shape)
            b.data.copy_(part if b.dtype.is_floating_point else part.round())  # no concern of autograd
            at += b.numel()

    def exported(self, row: Vec, stats: Vec) -> nn.Module:
        """A module for the user, with memory of its own."""
        self.bind(row.clone())
        self.bind_stats(stats)
        return copy.deepcopy(self.module).eval()


def has_batch_statistics(module: nn.Module) -> bool:
    """True if a sample's output depends on the other samples of the batch."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def likes_channels_last(module: nn.Module, inputs: Tensor) -> bool:
    """True if the model has convolutions, in a precision that gains from it, and works with its filters laid out so."""
    replica, layers = Replica(module), [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    if replica.dtype == torch.float64 or not layers:
        return False
    if any(m.in_channels < 8 and max(m.kernel_size) == 1 for m in layers):
        return False  # torch 2.13's kernel for these writes beyond its memory on the way back, if the stride is 2
    replica.channels_last = True
    replica.bind(replica.row())
    try:
        with own_randomness(inputs.device), torch.enable_grad():
            torch.autograd.grad(replica.module(inputs).sum(), replica.parameters, allow_unused=True)
    except RuntimeError:  # such as a view() of what is no longer contiguous
        return False
    return True


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Leave the caller's random state as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def probe(module: nn.Module, inputs: Tensor) -> tuple[Tensor, tuple[str, ...], bool]:
    """One forward pass in training mode, on a copy: the output, the buffers that moved, whether it drew random numbers."""
    twin = copy.deepcopy(module).train()
    before = {name: b.clone() for name, b in twin.named_buffers()}
    with own_randomness(inputs.device), torch.enable_grad():
        state = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state(inputs.device) if inputs.device.type == "cuda" else None
        output = twin(inputs)
        random = not torch.equal(state, torch.random.get_rng_state())
        if cuda is not None:
            random |= not torch.equal(cuda, torch.cuda.get_rng_state(inputs.device))
    moved = tuple(name for name, b in twin.named_buffers() if not torch.equal(before[name], b))
    return output, moved, random
