"""Context of a chunk: seed, round, clients, steps and sizes, fixed before local training starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Size, Tensor

from fedstride._moved import renamed
from fedstride.core.rows import Col


@dataclass(frozen=True)
class Context:
    """Context of a chunk. Each client has one row; rows are sorted by decreasing number of steps."""

    seed: int
    round: int  # from 0
    rounds: int  # planned number of rounds
    clients: tuple[int, ...]
    steps: tuple[int, ...]  # tau_i, local steps
    size: Col  # n_i, samples
    batch: Col  # b_i, samples per step
    broadcast: dict[str, Tensor] = field(default_factory=dict)  # values that the server sent in addition to the model
    shapes: tuple[Size, ...] = ()  # shapes of the model's tensors, in the order of a row
    call: int = 0  # number of earlier exchanges of this round, over all attempts

    @cached_property
    def tau(self) -> Col:
        """tau_i as a Col."""
        return self.size.new_tensor(self.steps)[:, None]

    def growth(self, factor: float) -> Col:
        """Return factor^(b/n), the growth per step that amounts to `factor` per epoch.

        Computed one by one, because vectorised powers round differently and results must not depend on the chunk.
        """
        return torch.cat([factor**share for share in torch.split(self.batch / self.size, 1)])

    def active(self, k: int) -> int:
        """Return the number of clients that take step k; they are the first rows."""
        return len(self.steps) if self.steps[-1] > k else sum(tau > k for tau in self.steps)


__getattr__ = renamed(__name__, Plan=Context)
