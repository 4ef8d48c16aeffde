"""FedExProx on the server: extrapolation of proximal steps, constant or from gradient diversity.

Li, Acharya, Richtarik. The power of extrapolation in federated learning. NeurIPS 2024.
Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import State, Vec, sq
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedExProx:
    """FedExProx: x -= alpha Dbar with a constant alpha, or alpha = S / |Dbar|^2 for "grads".

    Args:
        alpha: extrapolation, a positive number or "grads" (gradient diversity).

    Raises:
        InvalidInput: if alpha is not positive, or an unknown name.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.Proximal(mu=1.0), server=fs.FedExProx(alpha="grads"))
    """

    alpha: float | str = "grads"
    needs: ClassVar[tuple[str, ...]] = ("square",)
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        if isinstance(self.alpha, str):
            if self.alpha != "grads":
                raise InvalidInput(
                    f'FedExProx: alpha={self.alpha!r} is unknown; expected a positive number or "grads".'
                )
        else:
            positive(self, alpha=self.alpha)

    @property
    def extrapolates(self) -> bool:
        return self.alpha == "grads"

    def init(self, x: Vec) -> State:
        return {"eta": x.new_ones(())}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        below = sq(mean.update)
        diversity = torch.where(below > 0, mean.square / below, 1.0)
        state["eta"] = diversity if self.alpha == "grads" else x.new_tensor(self.alpha)
        return x - state["eta"] * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
