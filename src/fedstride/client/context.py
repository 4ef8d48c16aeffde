"""What a chunk of clients knows before its local work starts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Size, Tensor

from fedstride._moved import renamed
from fedstride.core.rows import Col


@dataclass(frozen=True)
class Context:
    """One row per client of the chunk; rows are sorted by their number of steps, longest first."""

    seed: int
    round: int  # 0 for the first
    rounds: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]  # tau_i
    size: Col  # n_i, samples
    batch: Col  # b_i, samples per step
    broadcast: dict[str, Tensor] = field(default_factory=dict)  # what the server sent beside the model
    shapes: tuple[Size, ...] = ()  # of the model's tensors, in the order of a row
    call: int = 0  # exchanges of this round before this one, in all attempts at it

    @property
    def tau(self) -> Col:
        return self.size.new_tensor(self.steps)[:, None]

    def growth(self, factor: float) -> Col:
        """factor^(b/n): what a step may grow by, so that it is `factor` in an epoch.

        One by one: torch's vectorised power rounds differently from its scalar one, and chunks must not change bits.
        """
        return torch.cat([factor**share for share in torch.split(self.batch / self.size, 1)])

    def active(self, k: int) -> int:
        """How many clients take step k: they are the first rows."""
        return sum(tau > k for tau in self.steps)


__getattr__ = renamed(__name__, Plan=Context)
