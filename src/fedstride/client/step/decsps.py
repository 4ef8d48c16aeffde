"""DecSPS: decreasing stochastic Polyak steps, which converge even if clients have no common minimiser.

Orvieto, Lacoste-Julien, Loizou. Dynamics of SGD with stochastic Polyak stepsizes. NeurIPS 2022.
Mukherjee, Loizou, Stich. Locally adaptive federated learning. TMLR 2024, for its use on clients (FedDecSPS).
Deviations: the bound on the step is reset in every round; k is not, and counts round x tau_i steps before the round.
The step is never negative. With drift correction or clipping, it is computed from the loss and gradient without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import finite, positive
from fedstride.core.rows import Col, Rows, State, Vec, sq
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class DecSPS:
    """Decreasing Polyak steps: eta_k = min{(f_B - f*) / |g|^2, c_(k-1) eta_(k-1)} / c_k, c_k = c0 sqrt(k + 1).

    Args:
        c0: scale of c_k; larger values give smaller steps.
        lr_max: the initial eta_(-1), with c_(-1) = c0.
        f_star: f*, a lower bound of the loss.

    Raises:
        InvalidInput: if c0 or lr_max is not positive, or f_star is not finite.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.DecSPS()), rounds=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    c0: float = 1.0
    lr_max: float = 10.0
    f_star: float = 0.0
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self, c0=self.c0, lr_max=self.lr_max)
        finite(self, f_star=self.f_star)

    def init(self, x: Vec, context: Context) -> State:
        eta = torch.full_like(context.size, self.lr_max)
        return {"eta": eta, "bound": self.c0 * eta, "k": context.round * context.tau}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        L, g = getattr(oracle, "plain", None) or (L, G)
        square = sq(g)
        polyak = torch.where(square > 0, (L - self.f_star) / square, torch.inf).clamp(min=0)
        state["bound"] = torch.minimum(polyak, state["bound"])  # c_k eta_k
        state["k"] = state["k"] + 1
        state["eta"] = state["bound"] / (self.c0 * state["k"].sqrt())  # DecSPS
        return -state["eta"] * G
