"""A chunk of clients with their data and a replica of the model, which builds the oracle of any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedstride._moved import renamed
from fedstride.client.context import Context
from fedstride.client.personal import Personal
from fedstride.core.batch import moved
from fedstride.core.losses import Loss
from fedstride.core.model import Replica
from fedstride.core.rows import Rows, Vec, generator, seed_of
from fedstride.oracle import Batch, Choice, Contrast, Form, Linear, Loop, Meter, Oracle, Perceptron, Vmap
from fedstride.oracle.linear import Matrices, Reduced, ahead, factor, gathered, reduced, together

AHEAD_NUMBERS = 2**21  # maximum numbers in the samples that are fetched together for the next steps of a chunk


class Samples(Protocol):
    """The data of one client."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor | None = None) -> Batch:
        """Return (inputs, targets) of the samples at these indices, or of all samples."""
        ...


@dataclass(frozen=True)
class Span:
    """Matrices of full-batch problems that stay valid from round to round, with the tensors they were computed from."""

    parts: list[Tensor]  # inputs and targets of each client
    versions: list[int]  # version counters of these tensors, to detect changes in place
    samples: Matrices
    factors: Tensor | None  # Cholesky factors of the Gram matrices; None if samples are linearly dependent
    gram: Tensor | None  # the Gram matrices, of the same samples

    def belongs_to(self, parts: list[Tensor]) -> bool:
        """Return whether the matrices were computed from these tensors in their present state."""
        same = all(mine is theirs for mine, theirs in zip(self.parts, parts, strict=True))
        return same and self.versions == [v._version for v in parts]


Spans = dict[tuple[int, ...], Span]  # by clients: single ones and whole chunks


@dataclass
class Chunk:
    """Clients with their data. Batches are seeded by (seed, round, client), never by worker or order of arrival."""

    context: Context
    samples: Sequence[Samples]  # one per row
    replica: Replica
    loss: Loss
    reduction: str | None  # reduction of the loss over a batch: mean, sum, or None for neither
    batch_size: int | None  # None for full batches
    random: bool = False  # whether the model draws random numbers (dropout)
    stats: Rows | None = None  # buffers that change in training, one row per client
    buffers: str = "average"  # policy for these buffers: average, local or frozen
    contrast: Contrast | None = None
    personal: Personal | None = None  # entries that stay with their client
    choice: Choice = field(default_factory=Choice)
    spans: Spans | None = None  # cache of the engine; None disables the reduced problems
    meter: Meter = field(init=False)
    _whole: dict[int, Oracle] = field(init=False, default_factory=dict)  # full-batch oracles, by active rows
    sizes: list[int] = field(init=False)
    _ahead: dict[tuple[int, int], Matrices] = field(init=False, default_factory=dict)  # by step and active rows
    _orders: dict[tuple[int, int], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.meter, self.sizes = Meter(len(self.samples)), [len(s) for s in self.samples]

    def batch(self, k: int, active: int) -> Oracle:
        """Return the oracle of step k for the first `active` clients."""
        if (k, active) in self._ahead and self.choice.form is not None:
            return closed(self.choice.form, self._ahead[k, active], self.meter)
        index = [self._index(i, k) for i in range(active)]
        same = all(i is None for i in index) and not self.random and self.stats is None and self.contrast is None
        if same and active in self._whole:
            return self._whole[active]
        if self.choice.form is not None and not same:
            return closed(self.choice.form, self._fetched(self.choice.form, k, active), self.meter)
        batches = [self._here(self.samples[i].take(index[i])) for i in range(active)]
        oracle = self._oracle(batches, range(active), k, moves_stats=self.buffers != "frozen")
        if same:
            self._whole = {active: oracle}
        return oracle

    def full(self, active: int, k: int = 0) -> Oracle:
        """Return the oracle of all samples of the first `active` clients; it changes no buffers."""
        return self._oracle([self._here(self.samples[i].take()) for i in range(active)], range(active), k)

    def reduced(self, x: Vec, fixed_step: bool) -> Reduced | None:
        """Return the full-batch problems in the span of their samples, or None if that would not save work."""
        form = self.choice.form
        if form is None or self.spans is None or self.context.steps[-1] < 2:
            return None
        span = self._span(form, self.context.clients, [s.take() for s in self.samples])
        if span.factors is None or span.gram is None:
            return None
        return reduced(form, span.samples, None if fixed_step else span.factors, span.gram, x, self.meter)

    def _span(self, form: Form, clients: tuple[int, ...], batches: list[Batch]) -> Span:
        assert self.spans is not None
        parts = [v for batch in batches for v in batch]
        if clients not in self.spans or not self.spans[clients].belongs_to(parts):
            here = [self._here(batch) for batch in batches]
            if len(clients) == 1:
                factors = factor(form, here[0][0])
            else:
                factors = together([self._span(form, (c,), [b]).factors for c, b in zip(clients, batches, strict=True)])
            gram = None if factors is None else factors @ factors.mT
            self.spans[clients] = Span(parts, [v._version for v in parts], gathered(form, here), factors, gram)
        return self.spans[clients]

    def components(self, rows: list[int], chosen: list[int], block: int, charged: bool = True) -> Oracle:
        """Return the oracle of one block of samples for each of these rows; evaluations are counted if `charged`."""
        batches = []
        for row, j in zip(rows, chosen, strict=True):
            index = torch.arange(j * block, min((j + 1) * block, self.sizes[row]), device="cpu")
            batches.append(self._here(self.samples[row].take(index)))
        return self._oracle(batches, rows, meter=self.meter if charged else Meter(len(self.samples)))

    def share(self, row: int, j: int, block: int) -> float:
        """Return the weight of the loss of block j in f_i: its fraction of the samples for a mean, 1 for a sum."""
        n = self.sizes[row]
        return min(block, n - j * block) / n if self.reduction == "mean" else 1.0

    def noise(self, row: int, k: int, like: Tensor) -> Tensor:
        """Return standard normal numbers for one client and step, in the shape of `like`."""
        source = generator(self.context.seed, self.context.round, self.context.clients[row], "noise", k)
        return torch.randn(like.shape, generator=source, dtype=like.dtype, device="cpu").to(like.device)

    def _here(self, batch: Batch) -> Batch:
        """Move a batch to the model's device, once per batch instead of once per evaluation."""
        return moved(batch[0], self.replica.device), moved(batch[1], self.replica.device)

    def _oracle(
        self,
        batches: list[Batch],
        rows: Sequence[int],
        k: int = 0,
        moves_stats: bool = False,
        meter: Meter | None = None,
    ) -> Oracle:
        meter, choice = meter or self.meter, self.choice
        if choice.form is not None:
            return closed(choice.form, gathered(choice.form, batches), meter, rows)
        if choice.oracle == "vmap":
            return Vmap(self.replica, self.loss, batches, meter, rows)
        context = self.context
        seeds = (
            [seed_of(context.seed, context.round, context.clients[i], "forward", k) for i in rows]
            if self.random
            else None
        )
        return Loop(
            self.replica,
            self.loss,
            batches,
            meter,
            rows=rows,
            seeds=seeds,
            stats=self.stats,
            contrast=self.contrast,
            moves_stats=moves_stats,
        )

    def _fetched(self, form: Form, k: int, active: int) -> Matrices:
        """Return the batches of step k as matrices; fetch those of the next steps at the same time."""
        most = max(1, AHEAD_NUMBERS // (active * form.features * (self.batch_size or 1)))
        steps = min(most, self.context.steps[active - 1] - k, *(self._left(row, k) for row in range(active)))
        if steps > 0:
            index = [self._order(row, k, steps) for row in range(active)]
            found = ahead(form, *self._stacked(index), steps)
        else:
            batches = [self._here(s.take(self._index(i, k))) for i, s in enumerate(self.samples[:active])]
            found = [gathered(form, batches)]
        self._ahead = {(k + j, active): samples for j, samples in enumerate(found)}
        return found[0]

    def _stacked(self, index: list[Tensor]) -> Batch:
        """Return equally many samples of each of the first clients, with a leading client dimension."""
        some = self.samples[: len(index)]
        if self.replica.device.type == "cpu" and all(hasattr(s, "put") for s in some):
            X, T = (v.new_empty(len(index), len(index[0]), *v.shape[1:]) for v in some[0].take())
            for i, s in enumerate(some):
                s.put(index[i], X[i], T[i])  # type: ignore[attr-defined]  # without a temporary copy
            return X, T
        batches = [self._here(s.take(i)) for s, i in zip(some, index, strict=True)]
        return torch.stack([inputs for inputs, _ in batches]), torch.stack([targets for _, targets in batches])

    def _left(self, row: int, k: int) -> int:
        """Return the number of complete batches from step k to the end of a client's epoch; 0 for full batches."""
        n, b = self.sizes[row], self.batch_size
        return 0 if b is None or b >= n else n // b - k % -(-n // b)

    def _index(self, row: int, k: int) -> Tensor | None:
        """Return the indices of a client's batch in step k, or None for the full batch."""
        return None if self.batch_size is None or self.batch_size >= self.sizes[row] else self._order(row, k)

    def _order(self, row: int, k: int, steps: int = 1) -> Tensor:
        """Return the indices of a client's batches from step k on, all in one epoch."""
        n, b = self.sizes[row], self.batch_size or 1
        epoch, j = divmod(k, -(-n // b))
        if (row, epoch) not in self._orders:
            self._orders.pop((row, epoch - 1), None)
            source = generator(self.context.seed, self.context.round, self.context.clients[row], "batches", epoch)
            self._orders[row, epoch] = torch.randperm(n, generator=source, device="cpu")
        return self._orders[row, epoch][j * b : (j + steps) * b]


def closed(form: Form, samples: Matrices, meter: Meter, rows: Sequence[int] | None = None) -> Linear | Perceptron:
    """Return the oracle of a closed form."""
    kind = Perceptron if form.hidden else Linear
    return kind(form, samples, meter, rows)


__getattr__ = renamed(__name__, Site=Chunk)
