"""Delta-SGD: each client's step follows the local smoothness it meets.

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (001 alg. 1).
Deviations: both gradients of the quotient are taken on the current batch, as the authors' code does; 001's text
describes reuse_gradient=True. eta_0 and theta_0 seed the recursion and are never steps. Where the model or the gradient did
not change, the quotient says nothing and does not bound the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import not_negative, positive
from fedstride.core.rows import Col, Rows, State, Vec, norm
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class DeltaSGD:
    """eta_k = min{ gamma |dy| / (2 |dg|), sqrt(1 + delta theta_(k-1)) eta_(k-1) }, theta_k = eta_k / eta_(k-1)."""

    lr0: float = 0.2
    theta0: float = 1.0
    gamma: float = 2.0
    delta: float = 0.1
    reuse_gradient: bool = False  # True: the gradient of the step before, on its own batch; one gradient a step
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    grows_from: ClassVar[str] = "lr0"

    def __post_init__(self) -> None:
        positive(self, lr0=self.lr0, gamma=self.gamma)
        not_negative(self, theta0=self.theta0, delta=self.delta)

    @property
    def needs_loss(self) -> bool:
        return not self.reuse_gradient

    @property
    def growth_bound(self) -> float:
        return self.lr0 * math.sqrt(1 + self.delta * self.theta0)

    def init(self, x: Vec, context: Context) -> State:
        return {
            "eta": torch.full_like(context.size, self.lr0),
            "theta": torch.full_like(context.size, self.theta0),
        }

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        last = state["eta"]
        eta = (1 + self.delta * state["theta"]).sqrt() * last
        if "y" in state:
            before = state["g"] if self.reuse_gradient else oracle.grad(state["y"])[1]
            dy, dg = norm(W - state["y"]), norm(G - before)
            smooth = torch.where((dy > 0) & (dg > 0), self.gamma * dy / (2 * dg), torch.inf)  # 001 alg. 1, line 9
            eta = torch.minimum(smooth, eta)
        state["eta"], state["theta"], state["y"] = eta, eta / last, W.clone()
        if self.reuse_gradient:
            state["g"] = G
        return -eta * G
