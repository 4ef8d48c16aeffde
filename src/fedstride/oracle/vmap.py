"""All clients of a chunk at once with torch.func.vmap, for models whose operations cost less than launching them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedstride.core.batch import Batch, Tree, joined, samples_of, selected, signature_of
from fedstride.core.losses import IGNORED, Loss
from fedstride.core.model import Replica, full_precision
from fedstride.core.rows import Col, Rows
from fedstride.oracle.loop import Loop
from fedstride.oracle.protocol import Meter


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
        self.replica, self.meter = replica, meter
        self.criterion = _cross_entropy if loss is F.cross_entropy else loss
        self.rows = list(range(len(batches))) if rows is None else list(rows)  # positions in the chunk
        self.alone = Loop(replica, loss, batches, meter, rows=self.rows)
        self.sizes = [samples_of(inputs) for inputs, _ in batches]
        alike: dict[Any, list[int]] = {}
        for i, (n, batch) in enumerate(zip(self.sizes, batches, strict=True)):
            alike.setdefault(n if isinstance(batch[0], Tensor) else (n, signature_of(batch)), []).append(i)
        self.groups = [(some, *_stacked([batches[i] for i in some])) for some in alike.values()]

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
            values, parts = self._differentiated(self._views(W, some), inputs, targets)
            flat = [g.reshape(len(some), -1) for g in parts]
            if len(some) == len(W):
                torch.cat(flat, 1, out=G)
                L[:, 0] = values
            else:
                G[some], L[some, 0] = torch.cat(flat, 1), values
        return L, G

    def _differentiated(
        self, views: tuple[Tensor, ...], inputs: Tree, targets: Tree
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return losses and gradients: by autograd around vmap, which is faster and does not import torch's compiler.

        It overlooks autocast and the padding_idx of embeddings under vmap; torch.func.grad inside vmap does not.
        """
        pads = any(getattr(module, "padding_idx", None) is not None for module in self.replica.module.modules())
        if pads or torch.is_autocast_enabled(views[0].device.type):
            parts, values = vmap(grad_and_value(self._value))(views, inputs, targets)
            return values, parts
        with torch.enable_grad():
            parameters = tuple(part.detach().requires_grad_() for part in views)
            values = vmap(self._value)(parameters, inputs, targets)
            return values.detach(), torch.autograd.grad(values.sum(), parameters, materialize_grads=True)

    def take(self, rows: list[int]) -> Vmap:
        some = copy.copy(self)
        some.alone = self.alone.take(rows)
        some.rows, some.sizes = [self.rows[i] for i in rows], [self.sizes[i] for i in rows]
        place = {old: new for new, old in enumerate(rows)}
        some.groups = []
        for members, inputs, targets in self.groups:
            kept = [j for j, i in enumerate(members) if i in place]
            if kept:
                some.groups.append(([place[members[j]] for j in kept], selected(inputs, kept), selected(targets, kept)))
        return some

    def _views(self, W: Rows, some: list[int]) -> tuple[Tensor, ...]:
        """Return the parameters as a tuple with a leading client dimension; gradients of a flat row are much slower."""
        some_rows = W if len(some) == len(W) else W[some]
        split = torch.split(some_rows, self.replica.sizes, 1)
        return tuple(part.view(-1, *shape) for part, shape in zip(split, self.replica.shapes, strict=True))

    def _value(self, parameters: tuple[Tensor, ...], inputs: Tree, targets: Tree) -> Tensor:
        named = dict(zip(self.replica.names, parameters, strict=True))
        args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, None)
        args = (args,) if isinstance(args, Tensor) else tuple(args)
        output = functional_call(self.replica.module, named, args, kwargs)
        return self.criterion(full_precision(output, self.replica.dtype), targets)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return F.cross_entropy, to the same bits; under vmap torch's own imports sympy, which takes half a second."""
    if output.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return F.cross_entropy(output, target)
    kept = target != IGNORED
    chosen = F.log_softmax(output, 1).gather(1, torch.where(kept, target, 0)[:, None])[:, 0]
    return torch.where(kept, -chosen, 0).sum() / kept.sum()


def _stacked(batches: Sequence[Batch]) -> Batch:
    return joined([b[0] for b in batches], torch.stack), joined([b[1] for b in batches], torch.stack)
