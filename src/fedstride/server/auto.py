"""The server of `auto`: momentum with a step from the diversity of the updates, and a cap moved by votes.

After Jhunjhunwala, Wang, Joshi. FedExP. ICLR 2023 (003 eq. 9 and 115). The other half is client/step/capped_polyak.py.
Deviations: eps becomes rho (1 - M/N) s, so that rescaling the problem changes nothing; 3 instead of 2; s forgets by
beta^2, as the squared length of a sum of independent updates does; no move is longer than the clients' moves are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.errors import decay, not_negative, positive
from fedstride.rows import State, Vec, sq
from fedstride.wire import Mean


@dataclass(frozen=True)
class Auto:
    """v = Dbar + beta v, s = S + beta^2 s; x -= eta v, eta = s / (3 (|v|^2 + rho (1 - M/N) s)), within bounds.

    At least 1 - beta, which is FedAvg with momentum; at most sqrt(s) / |v|, so that |eta v| <= sqrt(s): without it, clients
    that agree on where to be and not on how to get there (|Dbar| near 0, S not) would throw the model far away.
    The cap of the client steps follows the mean vote: cap *= 1.3^vote, never below the floor.
    """

    beta: float = 0.5
    rho: float = 0.1
    floor: float = 0.3  # least cap of the client step, and the first one
    needs: ClassVar[tuple[str, ...]] = ("square", "vote", "parts")

    def __post_init__(self) -> None:
        decay(self, beta=self.beta)
        not_negative(self, rho=self.rho)
        positive(self, floor=self.floor)

    def init(self, x: Vec) -> State:
        scalars = {"eta": 1 - self.beta, "cap": self.floor, "s": 0.0}
        return {**{k: x.new_tensor(v) for k, v in scalars.items()}, "v": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {name: state[name] for name in ("cap", "parts") if name in state}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        v = state["v"] = mean.update + self.beta * state["v"]
        s = state["s"] = mean.square + self.beta**2 * state["s"]
        below = 3 * (sq(v) + self.rho * (1 - mean.participants / mean.clients) * s)
        eta = torch.where(below > 0, torch.minimum(s / below, (s / sq(v)).sqrt()), 1.0)
        state["eta"] = eta.clamp(min=1 - self.beta)
        state["cap"] = (state["cap"] * 1.3 ** mean.fields["vote"][0]).clamp(min=self.floor)
        if "parts" in mean.fields:  # of the first round, when the model is as it was initialised; never under privacy
            state.setdefault("parts", mean.fields["parts"])
        return x - state["eta"] * v

    def output(self, x: Vec, state: State) -> Vec:
        return x
