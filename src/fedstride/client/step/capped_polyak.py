"""The clients of `auto`: Polyak's step under a cap that the federation moves by votes.

Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak step-size for SGD. AISTATS 2021, for the step itself.
Deviations: the cap, the votes and the lift are ours. The other half is server/auto.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedstride.client.plan import Plan
from fedstride.errors import fraction, positive
from fedstride.oracle import Oracle, along
from fedstride.rows import Col, Rows, State, Vec, dot, repeat, sq

STARVED = 20  # below 1/20 of its fair share of the squared gradient, a matrix is lifted to its share


@dataclass(frozen=True)
class CappedPolyak:
    """eta = min{f_B / (|g|^2 / 2), cap}.

    At its first step of a round a client whose Polyak step exceeds the cap tries the cap itself: it votes +1 if the loss
    falls as far as Armijo's condition asks, -3 if not, and then halves the cap for itself; 0 if the cap does not bind.
    In the first round it measures how the gradient is shared among the model's tensors. A server that sends the mean of
    that back has starved matrices lifted: inputs of a far too small scale would leave the first layer untrained.
    """

    cap: float = 0.3  # where no server sends one
    c: float = 0.5  # of Armijo's condition

    def __post_init__(self) -> None:
        positive(self, cap=self.cap)
        fraction(self, c=self.c)

    def init(self, x: Vec, plan: Plan) -> State:
        zero = torch.zeros_like(plan.size)
        shapes = plan.shapes or (x.shape,)
        cap = zero + plan.broadcast.get("cap", self.cap)
        state = {"eta": zero, "cap": cap, "vote": zero.clone(), "trials": zero.clone()}
        state["parts"] = zero.repeat(1, len(shapes))  # of the squared gradient, by tensor
        if plan.round == 0:
            state["sizes"] = state["parts"] + zero.new_tensor([shape.numel() for shape in shapes])
        lift = _lift(plan.broadcast["parts"], shapes) if "parts" in plan.broadcast else None
        return state if lift is None else {**state, "lift": repeat(lift, len(zero))}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        f, g = getattr(oracle, "plain", None) or (L, G)
        lift = state.get("lift")
        D, square = (G, sq(g)) if lift is None else (lift * G, dot(g, lift * g))
        polyak = (f / (0.5 * square + 1e-8)).clamp(min=0)
        if "started" not in state:
            state["started"] = torch.ones_like(polyak)
            if "sizes" in state:
                sizes = [int(n) for n in state["sizes"][0].tolist()]
                state["parts"] = torch.cat([sq(part) for part in torch.split(g, sizes, 1)], 1)
            self._vote(W, L, G, D, polyak, state, oracle)
        state["eta"] = torch.minimum(polyak, state["cap"])
        return -state["eta"] * D

    def _vote(self, W: Rows, L: Col, G: Rows, D: Rows, polyak: Col, state: State, oracle: Oracle) -> None:
        rows = [i for i, binds in enumerate((polyak > state["cap"])[:, 0].tolist()) if binds]
        if not rows:
            return
        cap = state["cap"][rows]
        value = along(oracle, W, D)(cap, rows)
        enough = value <= L[rows] - self.c * cap * dot(G[rows], D[rows])
        state["vote"][rows] = 4 * enough.to(W.dtype) - 3
        state["cap"][rows] = torch.where(enough, cap, cap / 2)
        state["trials"][rows] += 1


def _lift(parts: Vec, shapes: tuple[torch.Size, ...]) -> Vec | None:
    """Factors of the gradient, coordinate by coordinate; None if no matrix is starved."""
    fair = parts.mean()
    matrix = torch.tensor([len(shape) > 1 for shape in shapes], device=parts.device)
    starved = matrix & (parts > 0) & (STARVED * parts < fair)
    if not bool(starved.any()):
        return None
    factors = torch.where(starved, fair / parts, 1.0)
    return torch.cat([factor.expand(shape.numel()) for factor, shape in zip(factors, shapes, strict=True)])
