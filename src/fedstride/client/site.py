"""The clients of one chunk with their data and a model: makes the oracle of any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedstride.client.plan import Plan
from fedstride.losses import Loss
from fedstride.model import Replica
from fedstride.oracle import Contrast, Loop, Meter
from fedstride.rows import Rows, generator, seed_of


class Samples(Protocol):
    def __len__(self) -> int: ...

    def take(self, index: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


@dataclass
class Site:
    """Where the data is. Batches are seeded by (seed, round, client), never by worker or arrival order."""

    plan: Plan
    samples: Sequence[Samples]  # one per row
    replica: Replica
    loss: Loss
    reduction: str | None  # of the loss: mean or sum over the batch
    batch_size: int | None  # None: the full batch
    random: bool = False  # the model draws random numbers (dropout)
    stats: Rows | None = None  # moving buffers, one row per client
    buffers: str = "average"  # what happens to them: average, local or frozen
    contrast: Contrast | None = None
    meter: Meter = field(init=False)
    _orders: dict[tuple[int, int], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.meter = Meter(len(self.samples))

    def batch(self, k: int, active: int) -> Loop:
        """Step k's batches of the first `active` clients."""
        return self._oracle([self._here(self.samples[i].take(self._index(i, k))) for i in range(active)], k)

    def full(self, active: int, k: int = 0) -> Loop:
        """All samples of the first `active` clients; moves no statistics."""
        oracle = self._oracle([self._here(self.samples[i].take()) for i in range(active)], k)
        oracle.moves_stats = False
        return oracle

    def component(self, row: int, j: int, block: int, charged: bool = True) -> Loop:
        """Block j of one client's samples, in their order."""
        index = torch.arange(j * block, min((j + 1) * block, len(self.samples[row])), device="cpu")
        meter = self.meter if charged else Meter(len(self.samples))
        return Loop(self.replica, self.loss, [self._here(self.samples[row].take(index))], meter, rows=[row])

    def share(self, row: int, j: int, block: int) -> float:
        """The weight of block j's loss in f_i: its part of the samples for a mean, 1 for a sum."""
        n = len(self.samples[row])
        return min(block, n - j * block) / n if self.reduction == "mean" else 1.0

    def noise(self, row: int, k: int, like: Tensor) -> Tensor:
        """Standard normal numbers for one client and step, of like's shape."""
        source = generator(self.plan.seed, self.plan.round, self.plan.clients[row], "noise", k)
        return torch.randn(like.shape, generator=source, dtype=like.dtype, device="cpu").to(like.device)

    def _here(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """On the model's device: once per batch, not once per evaluation."""
        return batch[0].to(self.replica.device), batch[1].to(self.replica.device)

    def _oracle(self, batches: list[tuple[Tensor, Tensor]], k: int) -> Loop:
        plan = self.plan
        seeds = [seed_of(plan.seed, plan.round, c, "forward", k) for c in plan.clients] if self.random else None
        return Loop(
            self.replica,
            self.loss,
            batches,
            self.meter,
            seeds=seeds,
            stats=self.stats,
            contrast=self.contrast,
            moves_stats=self.buffers != "frozen",
        )

    def _index(self, row: int, k: int) -> Tensor | None:
        n, b = len(self.samples[row]), self.batch_size
        if b is None or b >= n:
            return None
        per_epoch = -(-n // b)
        epoch, j = divmod(k, per_epoch)
        if (row, epoch) not in self._orders:
            self._orders.pop((row, epoch - 1), None)
            source = generator(self.plan.seed, self.plan.round, self.plan.clients[row], "batches", epoch)
            self._orders[row, epoch] = torch.randperm(n, generator=source, device="cpu")
        return self._orders[row, epoch][j * b : (j + 1) * b]
