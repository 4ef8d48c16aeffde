"""Delta-SGD: each client adapts its step size to the local smoothness of its loss.

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD alg. 1).
Deviations: both gradients of the quotient use the current batch, as in the authors' code, and one dropout mask; the text of
the paper describes reuse_gradient=True. eta_0 and theta_0 start the recursion and are never used as steps. If the model or the
gradient did not change, the quotient does not bound the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import not_negative, positive, yes_or_no
from fedstride.core.rows import Col, Rows, State, Vec, norm
from fedstride.oracle import Oracle


@dataclass(frozen=True)
class DeltaSGD:
    """Delta-SGD: y -= eta_k g with eta_k = min{gamma |dy| / (2 |dg|), sqrt(1 + delta theta_(k-1)) eta_(k-1)}.

    theta_k = eta_k / eta_(k-1); dy and dg are the changes of the model and of the gradient since the previous step.

    Args:
        lr0: eta_0; the first step of a round is sqrt(1 + delta theta0) lr0.
        theta0: theta_0.
        gamma: factor of the smoothness estimate; larger values give larger steps.
        delta: limit on the growth of the step; 0 means that it never grows.
        reuse_gradient: whether dg uses the gradient of the previous step, with the batch and the dropout mask of that step;
            this saves one of two gradient evaluations per step. If False, both gradients have the current batch and mask.

    Raises:
        InvalidInput: if lr0 or gamma is not positive, or theta0 or delta is negative.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(step=fs.DeltaSGD()), rounds=5, local_steps=5)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr0: float = 0.2
    theta0: float = 1.0
    gamma: float = 2.0
    delta: float = 0.1
    reuse_gradient: bool = False
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    grows_from: ClassVar[str] = "lr0"

    def __post_init__(self) -> None:
        positive(self, lr0=self.lr0, gamma=self.gamma)
        not_negative(self, theta0=self.theta0, delta=self.delta)
        yes_or_no(self, reuse_gradient=self.reuse_gradient)

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
            smooth = torch.where((dy > 0) & (dg > 0), self.gamma * dy / (2 * dg), torch.inf)  # Delta-SGD alg. 1, line 9
            eta = torch.minimum(smooth, eta)
        state["eta"], state["theta"], state["y"] = eta, eta / last, W.clone()
        if self.reuse_gradient:
            state["g"] = G
        return -eta * G
