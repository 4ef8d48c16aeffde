"""Exact aggregation of low-rank updates: the mean of the clients' products, not the product of their mean factors.

Singhal, Ponkshe, Vepakomma. FedEx-LoRA: exact aggregation for federated and efficient fine-tuning of large language
models. ACL 2025.
Deviations: the difference is computed from the updates, mean(dB_i dA_i) - mean(dB_i) mean(dA_i), which is the same and
rounds less; the changed weights are sent as they are, not as low-rank factors, so that clients can miss rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.core.lora import Pair
from fedstride.core.rows import State, Vec
from fedstride.wire.mean import Aggregator, WeightedMean

PRODUCTS = "products"


@dataclass(frozen=True)
class ExactLoRA:
    """The weighted mean of the updates; the part of the products B_i A_i that it misses is added to the frozen weights W.

    With the server rule fs.Average(), the next model has W + s B A equal to the mean of the clients' W + s B_i A_i. Other
    server rules move the factors on from there. Clients upload their factors only. They receive the frozen weights of all
    layers with adapters in every round: their bytes are counted. An averaged read-out has the last round's frozen weights.

    Args:
        pairs: the adapters; fs.train() finds them in the model.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.AdamW(lr=1e-3), aggregate=fs.ExactLoRA())
    """

    pairs: tuple[Pair, ...] = field(default=(), repr=False)
    changes_frozen: ClassVar[bool] = True

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the frozen weights that change."""
        return tuple(dict.fromkeys(pair.weight for pair in self.pairs))

    def start(self) -> Aggregator:
        return _WithProducts(pairs=self.pairs)

    def corrected(self, stats: Vec, fields: State) -> Vec:
        """Return the frozen weights, the last entries of stats, plus the part of the products that the mean of the factors misses; removes a field."""
        products = torch.split(fields.pop(PRODUCTS), [pair.size for pair in self.pairs])
        after, starts = stats.clone(), self._starts(len(stats))
        for pair, product in zip(self.pairs, products, strict=True):
            dA, dB = pair.factors(fields["update"])
            missed = pair.scaling * (product.view(pair.rows, pair.columns) - dB @ dA)
            W = after[starts[pair.weight] :][: pair.size]
            W += (missed.T if pair.transposed else missed).reshape(-1)
        return after

    def _starts(self, end: int) -> dict[str, int]:
        """Return where each frozen weight starts, if the last one ends there."""
        sizes, starts = {pair.weight: pair.size for pair in self.pairs}, {}
        at = end - sum(sizes.values())
        for name in self.weights:
            starts[name], at = at, at + sizes[name]
        return starts


@dataclass
class _WithProducts(WeightedMean):
    """The weighted mean, also of the products dB_i dA_i, which the server computes from the updates as they arrive."""

    pairs: tuple[Pair, ...] = ()

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None:
        rows = [torch.cat([_product(pair, row) for pair in self.pairs]) for row in fields["update"]]
        super().add_rows(first, weights, {**fields, PRODUCTS: torch.stack(rows)})


def _product(pair: Pair, row: Vec) -> Vec:
    dA, dB = pair.factors(row)
    return (dB @ dA).reshape(-1)
