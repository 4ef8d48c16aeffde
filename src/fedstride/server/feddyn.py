"""FedDyn on the server: the mean of the models, corrected by the accumulated drift.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization. ICLR 2021.
Deviations: none. The client half is client/objective/feddyn.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedDyn:
    """FedDyn: h -= alpha sum pi_i (y_i - x); x+ = sum p_i y_i - h / alpha.

    Use it with fs.FedDynObjective of the same alpha; fs.recipes.feddyn() combines both.

    Args:
        alpha: strength of the regularisation.

    Raises:
        InvalidInput: if alpha is not positive.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.FedDynObjective(alpha=0.1), server=fs.FedDyn(alpha=0.1))
    """

    alpha: float = 0.1
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    exact_mean: ClassVar[bool] = True
    half_of: ClassVar[str] = "FedDyn"

    def __post_init__(self) -> None:
        positive(self, alpha=self.alpha)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_ones(()), "h": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        state["h"] = state["h"] + self.alpha * mean.share * mean.update
        return x - mean.update - state["h"] / self.alpha

    def output(self, x: Vec, state: State) -> Vec:
        return x
