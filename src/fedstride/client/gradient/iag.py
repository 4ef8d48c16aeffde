"""Incrementally aggregated gradients (FedTrack): one full gradient per round, then one component per step.

Mitra, Jaafar, Pappas, Hassani. Federated learning with incrementally aggregated gradients. CDC 2021 (FedTrack).
Deviations: components are visited in the order of the samples (the theory allows any order). If a round visits no
component twice, the old gradient of a component is recomputed at x instead of stored; the history counts the gradients
that the algorithm needs, n_i + H - 1 per round, without these recomputations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fedstride.client.chunk import Chunk
from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class IAG:
    """The full gradient at x plus the changes of the components visited since, each weighted by its share of f_i.

    Args:
        block: samples per component.
        table_gib: maximum size in GiB of a client's table of gradients, needed if a round visits a component twice.

    Raises:
        InvalidInput: if an argument is invalid, or, before training, if a table would exceed table_gib.

    Example:
        >>> algorithm = fs.Algorithm(gradient=fs.IAG(block=4), drift=fs.GradientCorrection())
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=5, local_steps=3)
        >>> run.history[0]["gradients"]  # 16 + 2 x 4 samples for each of the four clients
        96
    """

    block: int = 1
    table_gib: float = 1.0
    batches: ClassVar[bool] = False
    slot: ClassVar[str] = "gradient"
    by_components: ClassVar[bool] = True
    exact_gradient: ClassVar[bool] = False
    gives_loss: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.block, int) or self.block < 1:
            raise InvalidInput(f"IAG: block={self.block!r} is invalid: expected a whole number of samples >= 1.")
        positive(self, table_gib=self.table_gib)

    def begin(self, chunk: Chunk, x: Vec, base: tuple[Col, Rows] | None) -> Callable[[int, int], Oracle]:
        return _Running(self, chunk, x, base or self.anchor(chunk, x)).oracle

    def anchor(self, chunk: Chunk, x: Vec) -> tuple[Col, Rows]:
        C = len(chunk.samples)
        return chunk.full(C).grad(repeat(x, C))

    def components(self, n: int) -> int:
        """Return the number of components of n samples."""
        return -(-n // self.block)

    def keeps_table(self, n: int, steps: int) -> bool:
        """Return whether a round visits some component twice."""
        return steps - 1 > self.components(n)

    def check_memory(self, client: int, n: int, steps: int, row_bytes: int) -> None:
        """Refuse a client whose table of gradients would exceed table_gib."""
        need = self.components(n) * row_bytes / 2**30
        if self.keeps_table(n, steps) and need > self.table_gib:
            raise InvalidInput(
                f"IAG: client {client} visits components more than once ({steps} steps, {self.components(n)} components), "
                f"which needs a table of {need:.2f} GiB; at most table_gib={self.table_gib} is allowed. "
                "Use a larger block, fewer local steps, or a larger table_gib."
            )


@dataclass
class _Running:
    """The estimates of a chunk during a round."""

    rule: IAG
    chunk: Chunk
    x: Vec
    base: tuple[Col, Rows]
    tables: dict[int, Rows] = field(default_factory=dict)  # by row: last gradient of each component

    def __post_init__(self) -> None:
        self.estimate = self.base[1].clone()
        for row, n in enumerate(map(len, self.chunk.samples)):
            if self.rule.keeps_table(n, self.chunk.context.steps[row]):
                parts = [
                    self.chunk.components([row], [j], self.rule.block, charged=False)
                    for j in range(self.rule.components(n))
                ]
                self.tables[row] = torch.cat([part.grad(self.x[None])[1] for part in parts])

    def oracle(self, k: int, active: int) -> Oracle:
        return _Estimate(self, k, active)

    def refresh(self, k: int, W: Rows) -> None:
        """Re-evaluate the component of step k at W for every active client, and update the estimates."""
        chunk, block, active = self.chunk, self.rule.block, range(len(W))
        chosen = [(k - 1) % self.rule.components(len(chunk.samples[row])) for row in active]
        new = chunk.components(list(active), chosen, block).grad(W)[1]
        old = self._old(chosen, new)
        share = new.new_tensor([chunk.share(row, j, block) for row, j in zip(active, chosen, strict=True)])[:, None]
        self.estimate[: len(W)] += share * (new - old)  # FedTrack eq. (6)
        for row, table in self.tables.items():
            if row in active:
                table[chosen[row]] = new[row]

    def _old(self, chosen: list[int], like: Rows) -> Rows:
        """Return the previous gradients of the chosen components, from a table or recomputed at x."""
        old = torch.empty_like(like)
        kept = [row for row in range(len(like)) if row in self.tables]
        again = [row for row in range(len(like)) if row not in self.tables]
        for row in kept:
            old[row] = self.tables[row][chosen[row]]
        if again:
            some = self.chunk.components(again, [chosen[row] for row in again], self.rule.block, charged=False)
            old[again] = some.grad(repeat(self.x, len(again)))[1]
        return old


@dataclass(frozen=True)
class _Estimate:
    running: _Running
    k: int
    active: int

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        run = self.running
        if self.k > 0:
            run.refresh(self.k, W)
        return run.base[0][: self.active], run.estimate[: self.active].clone()

    def loss(self, W: Rows) -> Col:
        raise AssertionError("IAG estimates gradients, not losses; Algorithm refuses rules that need losses")

    def take(self, rows: list[int]) -> Oracle:
        raise AssertionError("IAG has no batches to take; Algorithm refuses rules that need them")
