"""The clients of `auto`: Polyak's step under a cap that the federation moves by votes.

Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak step-size for SGD. AISTATS 2021, for the step itself.
Deviations: the cap and the votes are ours. The other half is server/auto.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedstride.client.plan import Plan
from fedstride.errors import fraction, positive
from fedstride.oracle import Oracle, along
from fedstride.rows import Col, Rows, State, Vec, sq


@dataclass(frozen=True)
class CappedPolyak:
    """eta = min{f_B / (|g|^2 / 2), cap}.

    At its first step of a round a client whose Polyak step exceeds the cap tries the cap itself: it votes +1 if the loss
    falls as far as Armijo's condition asks, -3 if not, and then halves the cap for itself; 0 if the cap does not bind.
    """

    cap: float = 0.3  # where no server sends one
    c: float = 0.5  # of Armijo's condition

    def __post_init__(self) -> None:
        positive(self, cap=self.cap)
        fraction(self, c=self.c)

    def init(self, x: Vec, plan: Plan) -> State:
        zero = torch.zeros_like(plan.size)
        cap = zero + plan.broadcast.get("cap", self.cap)
        return {"eta": zero, "cap": cap, "vote": zero.clone(), "trials": zero.clone()}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        f, g = getattr(oracle, "plain", None) or (L, G)
        polyak = (f / (0.5 * sq(g) + 1e-8)).clamp(min=0)
        first = "started" not in state
        rows = [i for i, binds in enumerate((polyak > state["cap"])[:, 0].tolist()) if binds] if first else []
        if rows:
            cap = state["cap"][rows]
            value = along(oracle, W, G)(cap, rows)
            enough = value <= L[rows] - self.c * cap * sq(G[rows])
            state["vote"][rows] = 4 * enough.to(W.dtype) - 3
            state["cap"][rows] = torch.where(enough, cap, cap / 2)
            state["trials"][rows] += 1
        state["started"] = torch.ones_like(polyak)
        state["eta"] = torch.minimum(polyak, state["cap"])
        return -state["eta"] * G
