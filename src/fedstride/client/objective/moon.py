"""MOON: features drawn to the global model's and away from the client's previous ones.

Li, He, Song. Model-contrastive federated learning. CVPR 2021 (001 table 5).
Deviations: the two reference models see the batch in evaluation mode, so that they move no statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstride.client.objective.terms import Terms
from fedstride.core.batch import Tree, called
from fedstride.core.errors import not_negative, positive
from fedstride.core.model import Replica
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class Moon:
    """f_i + mu CE([cos(z, z_glob), cos(z, z_prev)] / temperature, 0); z = module.features(inputs)."""

    mu: float = 1.0
    temperature: float = 0.5
    slot: ClassVar[str] = "objective"
    needs_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        not_negative(self, mu=self.mu)
        positive(self, temperature=self.temperature)

    def memory(self, x: Vec) -> State:
        return {"previous": x.clone()}  # on a first participation the global model stands in

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms(contrast=_Contrast(self.mu, self.temperature, x, memory["previous"]))

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {"previous": W.clone()}


@dataclass(frozen=True)
class _Contrast:
    mu: float
    temperature: float
    x: Vec
    previous: Rows

    def others(self, replica: Replica, row: int, inputs: Tree) -> tuple[Tensor, ...]:
        replica.module.eval()
        found = []
        with torch.no_grad():
            for model in (self.x, self.previous[row]):
                replica.bind(model)
                found.append(called(replica.module.features, inputs).flatten(1))  # type: ignore[arg-type]
        replica.train()
        return tuple(found)

    def value(self, z: Tensor, others: tuple[Tensor, ...]) -> Tensor:
        logits = torch.stack([F.cosine_similarity(z.flatten(1), other) for other in others], 1) / self.temperature
        return self.mu * F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))
