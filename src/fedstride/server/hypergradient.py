"""FedHyper on the server: the step grows while successive mean updates agree, and shrinks if they oppose each other.

Wang, Wang, Li. FedHyper: a universal and robust learning rate scheduler with hypergradient descent. ICLR 2024 (FedHyper-G).
Deviations: this rule does not include FedHyper's schedulers of the clients' step sizes. The authors' code limits the
step to [1/5, 5].
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
    """FedHyper-G: x -= eta Dbar with eta_t = eta_(t-1) + <Dbar_t, Dbar_(t-1)>, limited to [1/bound, bound].

    Args:
        bound: maximum of eta, at least 1.

    Raises:
        InvalidInput: if bound is less than 1.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.Hypergradient(bound=2.0)), rounds=5)
        >>> all(0.5 <= row["server_step"] <= 2 for row in run.history)
        True
    """

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
