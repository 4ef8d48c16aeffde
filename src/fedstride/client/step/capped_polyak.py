"""The clients of `auto`: Polyak's step along a direction scaled tensor by tensor, under a cap relative to the weights.

Loizou, Vaswani, Laradji, Lacoste-Julien. Stochastic Polyak step-size for SGD. AISTATS 2021, for the step itself;
You, Gitman, Ginsburg. Large batch training of convolutional networks. 2017, for steps relative to the weights.
Deviations: the cap, its votes and the moving target for losses below zero are ours. The other half is server/auto.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedstride.client.plan import Plan
from fedstride.errors import fraction, positive
from fedstride.oracle import Oracle, along
from fedstride.rows import Col, Rows, State, Vec, dot, repeat, sq

WARM_UP = 5  # rounds until the cap is whole: a network that has not begun to learn is easily ruined
STEPS_PER_VOTE = 4  # at least: a vote costs one forward pass
ROUNDING = 1e-4  # predicted falls below this share of the loss are hidden by rounding


@dataclass(frozen=True)
class CappedPolyak:
    """y -= eta u with u_j = (r_j / q_j) g_j for each tensor j, and eta = min{2 (f_B - f*) / <g, u>, cap}.

    r_j is the root mean square of the tensor's weights and q_j that of its gradient, so eta is the share of its own size by
    which a step changes a tensor: no change of units of inputs, loss or parameters matters. A server sends r_j / q_j, the mean
    loss of the last cohort, f* (0 unless the loss goes below) and the factor `reach` by which the federation extends
    the cap. Without one, as in the first round, a client takes r_j and q_j from its own first gradient.

    At its first step of a round a client for which the cap binds tries the cap itself. If the loss falls as far as Armijo's
    condition asks, it votes for a longer reach, with the weight min{1, its loss / the cohort's}: clients that are right
    already should not decide. If not, it votes -3 and halves the cap for itself.
    """

    cap: float = 0.03
    c: float = 0.5  # of Armijo's condition

    def __post_init__(self) -> None:
        positive(self, cap=self.cap)
        fraction(self, c=self.c)

    def init(self, x: Vec, plan: Plan) -> State:
        zero = torch.zeros_like(plan.size)
        shapes, sent = plan.shapes or (x.shape,), plan.broadcast
        cap = zero + self.cap * sent.get("reach", 1.0) * min(1.0, (plan.round + 1) / WARM_UP)
        votes = [float(plan.round % math.ceil(STEPS_PER_VOTE / tau) == 0 and plan.round > 0) for tau in plan.steps]
        state = {name: zero.clone() for name in ("eta", "vote", "trials", "loss", "taken")}
        state |= {"cap": cap, "votes": zero.new_tensor(votes)[:, None]}
        state |= {"target": zero + sent["target"]} if "target" in sent else {}
        state |= {"mean_squares": zero.repeat(1, len(shapes)), "mean": zero + sent.get("loss", math.inf)}
        state |= {f"tensor {j}": zero.new_empty(len(zero), 0, s.numel()) for j, s in enumerate(shapes)}
        if "scale" in sent:
            state["scale"] = repeat(spread(sent["scale"], [s.numel() for s in shapes]), len(zero))
        else:
            state["radii"] = repeat(radii(x, shapes), len(zero))
        return state

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        sizes = [v.shape[2] for name, v in state.items() if name.startswith("tensor ")]  # without a look at values
        squares = torch.cat([sq(part) / part.shape[1] for part in torch.split(G, sizes, 1)], 1)
        first = "started" not in state
        if first:
            state["started"], state["loss"] = torch.ones_like(L), L.clone()
            if "target" not in state:
                state["target"] = 2 * L.clamp(max=0)
            if "scale" not in state:
                q = squares.sqrt()
                state["scale"] = spread(ratio(started(state["radii"], L, q, q.new_tensor(sizes)), q), sizes)
        state["taken"] = state["taken"] + 1
        state["mean_squares"] = state["mean_squares"] + (squares - state["mean_squares"]) / state["taken"]
        U = state["scale"] * G
        slope = dot(G, U)
        polyak = 2 * (L - state["target"]).clamp(min=0) / slope.clamp(min=torch.finfo(W.dtype).tiny)
        if first:
            self._vote(W, L, U, slope, polyak, state, oracle)
        state["eta"] = torch.minimum(polyak, state["cap"])
        return -state["eta"] * U

    def _vote(self, W: Rows, L: Col, U: Rows, slope: Col, polyak: Col, state: State, oracle: Oracle) -> None:
        asked = (state["votes"] > 0) & (polyak > state["cap"])
        rows = [i for i, votes in enumerate(asked[:, 0].tolist()) if votes]
        if not rows:
            return
        cap, f, fall = state["cap"][rows], L[rows], state["cap"][rows] * slope[rows]
        enough = along(oracle, W, U)(cap, rows) <= f - self.c * fall
        enough |= fall < ROUNDING * f.abs()
        target, mean = state["target"][rows], state["mean"][rows]
        weight = torch.where(mean < math.inf, ratio(f - target, mean - target).clamp(0, 1), 1.0)
        state["vote"][rows] = torch.where(enough, weight, -3.0)
        state["cap"][rows] = torch.where(enough, cap, cap / 2)
        state["trials"][rows] += 1


def radii(x: Vec, shapes: Sequence[torch.Size]) -> Vec:
    """The size of each tensor: the root mean square of its weights.

    Vectors, which may be zero or have few entries, and matrices that are zero have at least the geometric mean of the other
    matrices' sizes.
    """
    rms = torch.stack([(sq(part) / len(part)).sqrt() for part in torch.split(x, [s.numel() for s in shapes])])
    matrix = torch.tensor([len(s) > 1 for s in shapes], device=x.device)
    known = rms[matrix & (rms > 0)]
    known = known if len(known) else rms[rms > 0]
    typical = known.log().mean().exp() if len(known) else rms.new_zeros(())
    return torch.where(matrix & (rms > 0), rms, torch.maximum(rms, typical))


def spread(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """One number per tensor -> one per coordinate; of a vector or of each row."""
    return torch.cat([v.expand(*v.shape[:-1], n) for v, n in zip(torch.split(values, 1, -1), sizes, strict=True)], -1)


def started(radii: torch.Tensor, loss: torch.Tensor, q: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The radii; where all are 0, so that they say nothing, the length of Polyak's step along each tensor's g_j / q_j."""
    return torch.where((radii > 0).any(-1, keepdim=True), radii, ratio(2 * loss.abs(), q * sizes))


def ratio(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b, 0 where b is not positive."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)
