"""All clients of a chunk at once with torch.func.vmap, for models whose operations cost less than launching them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.core.rows import Col, Rows
from fedstride.oracle.loop import Loop
from fedstride.oracle.protocol import Batch, Meter


class Vmap:
    """f_B and its gradient for all rows at once; rows are grouped by batch size.

    If vmap fails on the model or the loss during the run, the rows are computed one by one.
    """

    def __init__(
        self,
        replica: Replica,
        loss: Loss,
        batches: Sequence[Batch],
        meter: Meter,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.replica, self.criterion, self.meter = replica, loss, meter
        self.rows = list(range(len(batches))) if rows is None else list(rows)  # positions in the chunk
        self.alone = Loop(replica, loss, batches, meter, rows=self.rows)
        self.sizes = [len(inputs) for inputs, _ in batches]
        of_size = {n: [i for i, size in enumerate(self.sizes) if size == n] for n in dict.fromkeys(self.sizes)}
        self.groups = [(some, *_stacked([batches[i] for i in some])) for some in of_size.values()]

    def loss(self, W: Rows) -> Col:
        L = W.new_empty(len(W), 1)
        try:
            with torch.no_grad():
                for some, inputs, targets in self.groups:
                    L[some, 0] = vmap(self._value)(self._views(W, some), inputs, targets)
        except RuntimeError:
            return self.alone.loss(W)
        for i, n in zip(self.rows, self.sizes, strict=True):
            self.meter.forwards[i] += n
        return L

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        try:
            L, G = self.together(W)
        except RuntimeError:
            return self.alone.grad(W)
        for i, n in zip(self.rows, self.sizes, strict=True):
            self.meter.gradients[i] += n
        return L, G

    def together(self, W: Rows) -> tuple[Col, Rows]:
        """Return losses and gradients with vmap, without counting them and without the fallback to the loop."""
        L, G = W.new_empty(len(W), 1), torch.empty_like(W)
        for some, inputs, targets in self.groups:
            parts, values = vmap(grad_and_value(self._value))(self._views(W, some), inputs, targets)
            flat = [g.reshape(len(some), -1) for g in parts]
            if len(some) == len(W):
                torch.cat(flat, 1, out=G)
                L[:, 0] = values
            else:
                G[some], L[some, 0] = torch.cat(flat, 1), values
        return L, G

    def take(self, rows: list[int]) -> Vmap:
        some = copy.copy(self)
        some.alone = self.alone.take(rows)
        some.rows, some.sizes = [self.rows[i] for i in rows], [self.sizes[i] for i in rows]
        place = {old: new for new, old in enumerate(rows)}
        some.groups = []
        for members, inputs, targets in self.groups:
            kept = [j for j, i in enumerate(members) if i in place]
            if kept:
                some.groups.append(([place[members[j]] for j in kept], inputs[kept], targets[kept]))
        return some

    def _views(self, W: Rows, some: list[int]) -> tuple[Tensor, ...]:
        """Return the parameters as a tuple with a leading client dimension; gradients of a flat row are much slower."""
        some_rows = W if len(some) == len(W) else W[some]
        split = torch.split(some_rows, self.replica.sizes, 1)
        return tuple(part.view(-1, *shape) for part, shape in zip(split, self.replica.shapes, strict=True))

    def _value(self, parameters: tuple[Tensor, ...], inputs: Tensor, targets: Tensor) -> Tensor:
        named = dict(zip(self.replica.names, parameters, strict=True))
        output = functional_call(self.replica.module, named, (inputs,))
        return self.criterion(output.to(self.replica.dtype) if output.dtype is torch.bfloat16 else output, targets)


def _stacked(batches: Sequence[Batch]) -> Batch:
    return torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])
