"""MOON: features are pulled towards those of the global model and away from those of the client's previous model.

Li, He, Song. Model-contrastive federated learning. CVPR 2021 (Delta-SGD table 5).
Deviations: the two reference models run in evaluation mode, so that they do not change BatchNorm's statistics.
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
    """MOON's local objective: f_i + mu CE([cos(z, z_glob), cos(z, z_prev)] / temperature, 0).

    z = model.features(inputs); z_glob and z_prev are those of the global model and of the client's previous model.

    Args:
        mu: weight of the contrastive term; 0 turns it off.
        temperature: divisor of the cosine similarities.

    Raises:
        InvalidInput: if an argument is out of range; in fs.train, if the model has no `features` method.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.Moon(mu=1.0))
        >>> model = fs.models.MLP((3,), classes=2)  # has `features`, as all models of fs.models
    """

    mu: float = 1.0
    temperature: float = 0.5
    slot: ClassVar[str] = "objective"
    needs_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        not_negative(self, mu=self.mu)
        positive(self, temperature=self.temperature)

    def memory(self, x: Vec) -> State:
        return {"previous": x.clone()}  # in a client's first round, the global model

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms(contrast=_Contrast(self.mu, self.temperature, x, memory["previous"]))

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {"previous": W.clone()}


@dataclass(frozen=True)
class _Contrast:
    """The contrastive term of the clients of a chunk."""

    mu: float
    temperature: float
    x: Vec | Rows
    previous: Rows

    def others(self, replica: Replica, row: int, inputs: Tree) -> tuple[Tensor, ...]:
        replica.module.eval()
        found = []
        with torch.no_grad():
            for model in (self.x if self.x.dim() == 1 else self.x[row], self.previous[row]):
                replica.bind(model)
                found.append(called(replica.module.features, inputs).flatten(1))  # type: ignore[arg-type]
        replica.train()
        return tuple(found)

    def value(self, z: Tensor, others: tuple[Tensor, ...]) -> Tensor:
        logits = torch.stack([F.cosine_similarity(z.flatten(1), other) for other in others], 1) / self.temperature
        return self.mu * F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))
