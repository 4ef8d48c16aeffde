"""The server of `auto`: momentum with a step from the diversity of the updates; it learns the scales of the clients' steps.

After Jhunjhunwala, Wang, Joshi. FedExP. ICLR 2023 (eq. 9 and 115). The other half is client/step/capped_polyak.py.
Deviations: eps becomes rho (1 - M/N) s, so that rescaling the problem changes nothing; 3 instead of 2; s forgets by
beta^2, as the squared length of a sum of independent updates does; the step is at least 1, as in FedAvg with momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.step.capped_polyak import balanced, biases, radii, ratio, started
from fedstride.core.errors import decay, not_negative
from fedstride.core.rows import State, Vec, dot, norm, sq
from fedstride.wire import Mean

MEMORY = 0.9  # of the gradients' mean squares, per round
STEADY = 0.3  # cosine between an update and the sum of those before: above it, longer steps would have done the same
FARTHEST = 4.0  # most that the clients' cap is multiplied by
MANY = 100  # local steps: beyond them, clients arrive where momentum and extrapolation would carry the model


@dataclass(frozen=True)
class Auto:
    """v = Dbar + beta v, s = S + beta^2 s; x -= eta v with eta = s / (3 (|v|^2 + rho (1 - M/N) s)), within bounds.

    eta is at least 1; and at most sqrt(s) / |v|, if that is more than 1, so that |eta v| <= sqrt(s): without it, clients that agree
    on where to be and not on how to get there (|Dbar| near 0, S not) would throw the model far away.

    Where the median client takes K > 100 local steps, both are less: beta is 0.8 sqrt(100 / K), and eta - 1 is multiplied by
    sqrt(100 / K).

    The clients' cap is multiplied by a reach between 1 and 4, which grows while updates keep their direction and shrinks,
    twice as fast, when they do not: with c the cosine between Dbar and the v before it, reach *= exp((c - 0.3) / 2) where
    c > 0.3, else exp(c - 0.3).

    For the clients' steps: r_j is the size of tensor j now, or at the start if that was more, stretched where a layer's inputs
    are small; q_j^2 follows the mean square of its gradient over the cohorts. Once the cohort's mean loss was below zero, the
    target f* lies as far below the lowest one as that is below the first, or below zero.
    """

    beta: float = 0.8
    rho: float = 0.1
    needs: ClassVar[tuple[str, ...]] = ("square", "loss", "mean_squares")
    slot: ClassVar[str] = "server"
    extrapolates: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True
    learned: ClassVar[dict[str, bool]] = {
        **dict.fromkeys(("first", "lowest", "target"), False),
        **dict.fromkeys(("radii", "squares", "scale"), True),
    }

    def __post_init__(self) -> None:
        decay(self, beta=self.beta)
        not_negative(self, rho=self.rho)

    def init(self, x: Vec) -> State:
        one, zero = x.new_ones(()), x.new_zeros(())
        return {"eta": one, "reach": one, "s": zero, "v": torch.zeros_like(x)}

    def broadcast(self, state: State) -> State:
        return {name: state[name] for name in ("reach", "scale", "squares", "target") if name in state}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        steadiness = ratio(dot(mean.update, state["v"]), norm(mean.update) * norm(state["v"])) - STEADY
        growth = torch.where(steadiness > 0, steadiness / 2, steadiness).exp()
        state["reach"] = (state["reach"] * growth).clamp(1, FARTHEST)
        share = math.sqrt(MANY / max(MANY, mean.steps))
        beta = self.beta * share
        v = state["v"] = mean.update + beta * state["v"]
        s = state["s"] = mean.square + beta**2 * state["s"]
        below = 3 * (sq(v) + self.rho * (1 - mean.participants / mean.clients) * s)
        eta = torch.where(below > 0, torch.minimum(s / below, (s / sq(v)).sqrt()), 1.0)
        state["eta"] = share * eta.clamp(min=1) + (1 - share)
        new = x - state["eta"] * v
        if "mean_squares" in mean.fields:  # not under privacy
            self._scale(x, new, mean, state)
        return new

    def _scale(self, x: Vec, new: Vec, mean: Mean, state: State) -> None:
        """What the next cohort needs to know of gradients, weights and losses."""
        seen, loss = mean.fields["mean_squares"], mean.fields["loss"][0]
        sizes = x.new_tensor([shape.numel() for shape in mean.shapes])
        if "radii" not in state:
            state |= {"first": loss, "lowest": loss, "squares": seen}
            state["radii"] = started(radii(x, mean.shapes), loss, seen.sqrt(), sizes)
        old = state["squares"]
        squares = state["squares"] = torch.where(old > 0, MEMORY * old + (1 - MEMORY) * seen, seen)
        r, q = torch.maximum(radii(new, mean.shapes), state["radii"]), squares.sqrt()
        state["scale"] = ratio(balanced(r, q, sizes, biases(mean.shapes, x.device)), q)
        lowest = state["lowest"] = torch.minimum(state["lowest"], loss)
        below = lowest - torch.maximum(state["first"] - lowest, lowest.abs())
        state["target"] = torch.where(lowest < 0, below, torch.zeros_like(loss))

    def output(self, x: Vec, state: State) -> Vec:
        return x
