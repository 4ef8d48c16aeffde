"""FedDyn on the clients: a linear term that aligns the local minimisers with the global one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization. ICLR 2021.
Deviations: none. The server half is server/feddyn.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.objective.terms import Terms
from fedstride.core.errors import positive
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class FedDynObjective:
    """FedDyn's local objective: f_i(y) - <lambda_i, y> + alpha/2 |y - x|^2; then lambda_i -= alpha (y_K - x).

    Use it with fs.FedDyn of the same alpha; fs.recipes.feddyn() combines both.

    Args:
        alpha: strength of the regularisation.

    Raises:
        InvalidInput: if alpha is not positive.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.FedDynObjective(alpha=0.1), server=fs.FedDyn(alpha=0.1))
    """

    alpha: float = 0.1
    slot: ClassVar[str] = "objective"
    corrects_drift: ClassVar[bool] = True
    half_of: ClassVar[str] = "FedDyn"

    def __post_init__(self) -> None:
        positive(self, alpha=self.alpha)

    def memory(self, x: Vec) -> State:
        return {"lambda": torch.zeros_like(x)}

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms(curvature=self.alpha, center=x, linear=-memory["lambda"])

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {"lambda": memory["lambda"] - self.alpha * (W - x)}
