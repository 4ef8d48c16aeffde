"""FedHyper's server: the step grows while successive mean updates agree, and shrinks when they oppose each other.

Wang, Wang, Li. FedHyper: a universal and robust learning rate scheduler with hypergradient descent. ICLR 2024 (FedHyper-G).
Deviations: FedHyper's schedulers of the clients' rates are not part of this rule. The authors' code keeps the step between
1/5 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import at_least_one
from fedstride.core.rows import State, Vec, dot
from fedstride.wire import Mean


@dataclass(frozen=True)
class Hypergradient:
    """eta_t = eta_(t-1) + <Dbar_t, Dbar_(t-1)>, between 1/bound and bound; x -= eta Dbar."""

    bound: float = 3.0
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        at_least_one(self, bound=self.bound)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_ones(()), "last": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        eta = state["eta"] + dot(mean.update, state["last"])  # FedHyper-G
        state["eta"], state["last"] = eta.clamp(1 / self.bound, self.bound), mean.update
        return x - state["eta"] * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
