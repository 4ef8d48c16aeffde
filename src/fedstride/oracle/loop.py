"""Loop over the clients with automatic differentiation: works for any model and any loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fedstride.core.batch import Batch, called, samples_of
from fedstride.core.losses import Loss
from fedstride.core.model import Replica, own_randomness
from fedstride.core.rows import Col, Rows
from fedstride.oracle.protocol import Contrast, Meter


class Loop:
    """f_B and its gradient for each row, by automatic differentiation through the replica.

    All evaluations of one object share batch, dropout mask and normalisation statistics: the random state is set from
    the row's seed each time, and only the first gradient changes the buffers.
    """

    def __init__(
        self,
        replica: Replica,
        loss: Loss,
        batches: Sequence[Batch],
        meter: Meter,
        *,
        rows: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        stats: Rows | None = None,
        contrast: Contrast | None = None,
        moves_stats: bool = True,
    ) -> None:
        self.replica, self.criterion, self.batches, self.meter = replica, loss, batches, meter
        self.rows = list(range(len(batches))) if rows is None else list(rows)  # positions in the chunk
        self.seeds, self.stats, self.contrast, self.moves_stats = seeds, stats, contrast, moves_stats
        self.others: dict[int, tuple[Tensor, ...]] = {}  # features of the other models, by position in the chunk
        self.data_loss: Col | None = None  # loss at the last gradient, without the contrast term

    def loss(self, W: Rows) -> Col:
        L = W.new_empty(len(W), 1)
        with torch.no_grad():
            for i in range(len(W)):
                L[i, 0] = self._value(i, W[i])[0]
                self.meter.forwards[self.rows[i]] += samples_of(self.batches[i][0])
        return L

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        L, D, G = W.new_empty(len(W), 1), W.new_empty(len(W), 1), torch.empty_like(W)
        for i in range(len(W)):
            value, data = self._value(i, W[i])
            parts = torch.autograd.grad(value, self.replica.parameters, allow_unused=True)
            L[i, 0], D[i, 0] = value.detach(), data.detach()
            for g, part in zip(parts, self.replica.views(G[i]), strict=True):
                part.zero_() if g is None else part.copy_(g)  # for any layout of g
            if self.stats is not None and self.moves_stats:
                self.stats[self.rows[i]] = self.replica.stats()
            self.meter.gradients[self.rows[i]] += samples_of(self.batches[i][0])
        self.moves_stats, self.data_loss = False, D
        return L, G

    def take(self, rows: list[int]) -> Loop:
        some = copy.copy(self)  # shares replica, meter, statistics, and the other models' features
        some.batches = [self.batches[i] for i in rows]
        some.rows = [self.rows[i] for i in rows]
        some.seeds = None if self.seeds is None else [self.seeds[i] for i in rows]
        return some

    def _value(self, i: int, row: Tensor) -> tuple[Tensor, Tensor]:
        if self.seeds is None:
            return self._forward(i, row)
        with own_randomness(self.replica.device):
            torch.manual_seed(self.seeds[i])
            return self._forward(i, row)

    def _forward(self, i: int, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss with the contrast term, loss of the data alone)."""
        replica = self.replica
        inputs, targets = self.batches[i]
        self._bind_stats(i)
        at = self.rows[i]
        if self.contrast is not None and at not in self.others:
            self.others[at] = self.contrast.others(replica, at, inputs)
            self.meter.forwards[at] += samples_of(inputs) * len(self.others[at])
        replica.bind(row)  # last, because the backward pass reads the parameters again
        if self.contrast is None:
            data = self.criterion(replica(inputs), targets)
            return data, data
        extra = self.contrast.value(called(replica.module.features, inputs), self.others[at])  # type: ignore[arg-type]
        self._bind_stats(i)  # undo the changes of the first forward pass
        data = self.criterion(replica(inputs), targets)
        return data + extra, data

    def _bind_stats(self, i: int) -> None:
        if self.stats is not None:
            self.replica.bind_stats(self.stats[self.rows[i]])
