"""The server of `auto`: extrapolation without a scale, and a cap moved by votes.

After Jhunjhunwala, Wang, Joshi. FedExP. ICLR 2023 (003 eq. 9). The other half is client/step/capped_polyak.py.
Deviations: eps becomes rho (1 - M/N) S, so that rescaling the problem changes nothing and full participation has no floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.errors import not_negative, positive
from fedstride.rows import State, Vec, dot, sq
from fedstride.wire import Mean


@dataclass(frozen=True)
class Auto:
    """x -= eta Dbar with eta = max{1, S / (2 (|Dbar|^2 + rho (1 - M/N) S))}."""

    rho: float = 0.1
    floor: float = 0.3  # least cap of the client step
    needs: ClassVar[tuple[str, ...]] = ("square", "vote")

    def __post_init__(self) -> None:
        not_negative(self, rho=self.rho)
        positive(self, floor=self.floor)

    def init(self, x: Vec) -> State:
        scalars = {"eta": 1.0, "cap": self.floor, "cosine": 0.5}
        return {**{k: x.new_tensor(v) for k, v in scalars.items()}, "last": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {"cap": state["cap"]}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        D, S = mean.update, mean.square
        below = 2 * (sq(D) + self.rho * (1 - mean.participants / mean.clients) * S)
        eta = state["eta"] = torch.where(below > 0, S / below, 1.0).clamp(min=1)
        state["cap"] = self._cap(mean, state)
        state["last"] = D
        return x - eta * D

    def _cap(self, mean: Mean, state: State) -> Vec:
        """Successive mean updates that oppose each other mean that clients forget: then the cap does not rise."""
        both = (sq(mean.update) * sq(state["last"])).sqrt()
        if bool(both > 0):
            state["cosine"] = 0.8 * state["cosine"] + 0.2 * dot(mean.update, state["last"]) / both
        vote = mean.fields["vote"][0]
        vote = torch.where(state["cosine"] < -0.1, vote.clamp(max=0), vote)
        vote = torch.where(state["cosine"] < -0.25, vote - 0.3, vote)
        return (state["cap"] * 1.3**vote).clamp(min=self.floor)

    def output(self, x: Vec, state: State) -> Vec:
        return x
