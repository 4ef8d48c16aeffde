"""Low-rank adapters (LoRA) of a model: where their factors are in a row, and the frozen weights that they add to.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: low-rank adaptation of large language models. ICLR 2022.
A layer multiplies its input by W + s B A, with W frozen and the factors A [r, n] and B [m, r] trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedstride.core.errors import Refused
from fedstride.core.model import Replica
from fedstride.core.rows import Vec


@dataclass(frozen=True)
class Pair:
    """The factors of one adapter."""

    weight: str  # name of the frozen weight
    a: int  # where A starts in a row
    b: int
    rows: int  # of B A
    columns: int
    rank: int
    scaling: float
    transposed: bool  # the frozen weight is stored as [columns, rows]

    def factors(self, row: Vec) -> tuple[Tensor, Tensor]:
        """Return A and B as views of a row."""
        m, n, r = self.rows, self.columns, self.rank
        return row[self.a : self.a + r * n].view(r, n), row[self.b : self.b + m * r].view(m, r)

    @property
    def size(self) -> int:
        return self.rows * self.columns


def pairs_of(model: nn.Module) -> tuple[Pair, ...]:
    """Find the adapters of a model: layers with `lora_A`, `lora_B`, `scaling` and `base_layer`, as those of peft.

    Raises:
        Refused: there are none with two trained factors, or one is not of the form W + s B A.
    """
    replica, starts, at = Replica(model), {}, 0
    for name, size in zip(replica.names, replica.sizes, strict=True):
        starts[name], at = at, at + size
    found = [pair for layer, adapter in _adapters(model) for pair in _pair(model, layer, adapter, replica, starts)]
    if not found:
        raise Refused(
            "ExactLoRA with a model without a LoRA layer whose two factors are trained: it averages their products. Leave "
            "it out, or use a model from peft.get_peft_model(model, LoraConfig(...))."
        )
    return tuple(found)


def _adapters(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of layers with adapters, and of each adapter."""
    for name, module in model.named_modules():
        factors = getattr(module, "lora_A", None)
        if isinstance(factors, nn.ModuleDict) and isinstance(getattr(module, "lora_B", None), nn.ModuleDict):
            yield from ((name, adapter) for adapter in factors)
        if any(p.requires_grad for key, p in module.named_parameters() if key.startswith("lora_embedding_")):
            raise Refused(_unlike(name, "an embedding"))


def _pair(model: nn.Module, at: str, adapter: str, replica: Replica, starts: dict[str, int]) -> list[Pair]:
    layer, prefix = model.get_submodule(at), f"{at}." if at else ""
    names = [f"{prefix}{factor}.{adapter}.weight" for factor in ("lora_A", "lora_B")]
    A, B = (model.get_parameter(name) for name in names)
    if not A.requires_grad or not B.requires_grad:
        return []  # with a frozen factor, the mean of the products is the product of the means
    if adapter in getattr(layer, "lora_variant", {}) or getattr(layer, "use_dora", {}).get(adapter):
        raise Refused(_unlike(at, "a variant of LoRA"))
    weight, transposed = f"{prefix}base_layer.weight", bool(getattr(layer, "fan_in_fan_out", False))
    known = dict(model.named_parameters(remove_duplicate=False))
    if A.dim() != 2 or B.dim() != 2 or weight not in known:
        raise Refused(_unlike(at, f"a {type(layer).__name__}"))
    W, shape = known[weight], (len(B), A.shape[1])
    if tuple(W.shape) != (shape[::-1] if transposed else shape) or W.dtype != replica.dtype:
        raise Refused(_unlike(at, f"a weight of type {W.dtype} and shape {list(W.shape)}"))
    if W.requires_grad or any(sum(p is mine for p in known.values()) > 1 for mine in (W, A, B)):
        raise Refused(
            f"ExactLoRA with the layer {at!r}, whose weight is {'trained' if W.requires_grad else 'shared with others'}: the "
            "server must be able to change it for this layer alone. Freeze it, or leave this layer out."
        )
    a, b = (starts[name] for name in names)
    scaling: Any = layer.scaling
    return [Pair(weight, a, b, *shape, len(A), float(scaling[adapter]), transposed)]


def _unlike(layer: str, what: str) -> str:
    return (
        f"ExactLoRA with the layer {layer!r}, {what}: expected a linear layer (W + s B A) v, with W in the type of A and B. "
        "Leave this layer out, or use the mean of the factors."
    )
