"""Conversion between an nn.Module and a row: trainable parameters are views of a row; buffers are kept separate."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedstride.core.batch import Tree, called, leaves, mapped, tensors_of
from fedstride.core.errors import InvalidInput
from fedstride.core.rows import Vec


class Replica:
    """A copy of a module whose trainable parameters are views of the bound row.

    Tied parameters appear once; frozen ones are not part of the row. Buffers that change in training (BatchNorm's
    statistics) form a second, separate row, so that norms and compressors never include them.
    """

    def __init__(self, module: nn.Module, moving: tuple[str, ...] = (), frozen_stats: bool = False) -> None:
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            raise InvalidInput("model: lazy parameters without a shape; run the model on a batch before training.")
        self.module = copy.deepcopy(module)
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        if not self.parameters:
            raise InvalidInput(
                "model: no trainable parameters; expected at least one with requires_grad=True. "
                "Call model.requires_grad_(True), or pass another model."
            )
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{t} on {dev}" for t, dev in kinds))
            raise InvalidInput(
                f"model: parameters of several types or devices ({found}); convert it with model.to(...)."
            )
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device
        if not self.dtype.is_floating_point:
            raise InvalidInput(f"model: parameters are {self.dtype}; expected a floating point type.")
        self.sizes = [p.numel() for p in self.parameters]
        self.shapes = [p.shape for p in self.parameters]
        self.d = sum(self.sizes)
        self.moving = moving
        self.frozen_stats = frozen_stats
        self.channels_last = False  # whether filters have the layout that is fastest for convolutions

    def row(self) -> Vec:
        """Return a copy of the trainable parameters as one vector, in the order of module.parameters()."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def bind(self, row: Vec) -> None:
        """Make the parameters views of the row, so that they share memory. Channels-last filters are copies."""
        for p, part in zip(self.parameters, self.views(row), strict=True):
            filters = self.channels_last and part.dim() == 4
            p.data = part.clone(memory_format=torch.channels_last) if filters else part

    def views(self, row: Vec) -> list[Tensor]:
        """Return the parts of a row in the shapes of the parameters."""
        return [part.view(shape) for part, shape in zip(torch.split(row, self.sizes), self.shapes, strict=True)]

    def __call__(self, inputs: Tree) -> Any:
        """Return the output in the model's own precision: mixed precision ends before the loss."""
        return full_precision(called(self.module, inputs), self.dtype)

    def train(self) -> None:
        """Set training mode, except for BatchNorm layers with frozen statistics."""
        self.module.train()
        if self.frozen_stats:
            for m in self.module.modules():
                if isinstance(m, _BatchNorm):
                    m.eval()

    def buffers(self) -> list[Tensor]:
        """Return the buffers that change in training, and the frozen parameters that only the server changes."""
        named: dict[str, Tensor] = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return [named[name] for name in self.moving]

    def stats(self) -> Vec:
        """Return a copy of the changing buffers as one vector of the model's type."""
        return torch.cat([b.reshape(-1).to(self.dtype) for b in self.buffers()] or [self.parameters[0].new_empty(0)])

    def stats_floor(self) -> Vec:
        """Return the smallest valid stats(): variances and counts are not negative."""
        floors = [
            torch.full((b.numel(),), 0.0 if name.endswith(("running_var", "num_batches_tracked")) else -math.inf)
            for name, b in zip(self.moving, self.buffers(), strict=True)
        ]
        return torch.cat(floors or [torch.empty(0)]).to(self.parameters[0])

    def bind_stats(self, row: Vec) -> None:
        """Copy a vector of stats() into the buffers."""
        at = 0
        for b in self.buffers():
            part = row[at : at + b.numel()].view(b.shape)
            b.data.copy_(part if b.dtype.is_floating_point else part.round())  # invisible to autograd
            at += b.numel()

    def exported(self, row: Vec, stats: Vec) -> nn.Module:
        """Return a module for the user, with its own memory."""
        self.bind(row.clone())
        self.bind_stats(stats)
        return copy.deepcopy(self.module).eval()


def full_precision(output: Any, dtype: torch.dtype) -> Any:
    """Convert bfloat16 outputs; objects such as those of Hugging Face models convert their loss and logits later."""
    if isinstance(output, Tensor):
        return output.to(dtype) if output.dtype is torch.bfloat16 else output
    if isinstance(output, tuple | list | dict):
        return mapped(lambda v: full_precision(v, dtype) if isinstance(v, Tensor) else v, output)
    return output


def frozen_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are not trained, by name; tied ones under each of their names."""
    return {name: p.data for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes."""
    found = hashlib.sha256()
    for name, v in sorted(tensors.items()):
        found.update(f"{name} {v.dtype} {list(v.shape)}".encode())
        found.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether the output of a sample depends on the other samples of the batch."""
    return any(isinstance(m, _BatchNorm) for m in module.modules())


def likes_channels_last(module: nn.Module, inputs: Tree) -> bool:
    """Return whether channels-last filters speed up the model's convolutions and the model works with them."""
    replica, layers = Replica(module), [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    if replica.dtype == torch.float64 or not layers:
        return False
    if any(m.in_channels < 8 and max(m.kernel_size) == 1 for m in layers):
        return False  # torch 2.13's backward kernel for these writes out of bounds if the stride is 2
    replica.channels_last = True
    replica.bind(replica.row())
    try:
        with own_randomness(replica.device), torch.enable_grad():
            value = sum(v.sum() for v in tensors_of(called(replica.module, inputs)) if v.requires_grad)
            torch.autograd.grad(value, replica.parameters, allow_unused=True)  # type: ignore[arg-type]
    except RuntimeError:  # for example a view() of a tensor that is not contiguous any more
        return False
    return True


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Restore the random state of the caller on exit."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def probe(module: nn.Module, inputs: Tree) -> tuple[Any, tuple[str, ...], bool]:
    """Run a copy of the module in training mode; return (output, names of changed buffers, whether it was random)."""
    twin = copy.deepcopy(module).train()
    before = {name: b.clone() for name, b in twin.named_buffers()}
    device = next((v.device for v in leaves(inputs)), torch.device("cpu"))
    with own_randomness(device), torch.enable_grad():
        state = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        output = called(twin, inputs)
        random = not torch.equal(state, torch.random.get_rng_state())
        if cuda is not None:
            random |= not torch.equal(cuda, torch.cuda.get_rng_state(device))
    moved = tuple(name for name, b in twin.named_buffers() if not torch.equal(before[name], b))
    return output, moved, random
