"""FedAdagrad, FedAdam and FedYogi: adaptive steps per coordinate at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
Deviations: bias_correction=True gives torch's Adam, which 001 B.4 uses (with betas (0.9, 0.999), tau 1e-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.core.errors import betas, decay, positive
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


def _init(x: Vec, lr: float, v0: float) -> State:
    return {"eta": x.new_tensor(lr), "m": torch.zeros_like(x), "v": torch.full_like(x, v0), "t": x.new_zeros(())}


@dataclass(frozen=True)
class AdagradServer:
    """m = b1 m + (1 - b1) Dbar; v += Dbar^2; x -= lr m / (sqrt(v) + tau)."""

    lr: float = 0.1
    beta: float = 0.0
    tau: float = 1e-3
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, tau=self.tau)
        decay(self, beta=self.beta)

    @property
    def has_momentum(self) -> bool:
        return self.beta > 0

    def init(self, x: Vec) -> State:
        return _init(x, self.lr, self.tau**2)

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        state["m"] = self.beta * state["m"] + (1 - self.beta) * mean.update
        state["v"] = state["v"] + mean.update**2
        return x - self.lr * state["m"] / (state["v"].sqrt() + self.tau)

    def output(self, x: Vec, state: State) -> Vec:
        return x


@dataclass(frozen=True)
class AdamServer:
    """m = b1 m + (1 - b1) Dbar; v = b2 v + (1 - b2) Dbar^2; x -= lr m / (sqrt(v) + tau)."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3
    bias_correction: bool = False  # True: v_0 = 0, and m and v divided by 1 - beta^t
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    has_momentum: ClassVar[bool] = True
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, tau=self.tau)
        betas(self, self.betas)

    def init(self, x: Vec) -> State:
        return _init(x, self.lr, 0.0 if self.bias_correction else self.tau**2)

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        b1, b2 = self.betas
        m: Tensor = b1 * state["m"] + (1 - b1) * mean.update
        v: Tensor = b2 * state["v"] + (1 - b2) * mean.update**2
        t: Tensor = state["t"] + 1
        state.update(m=m, v=v, t=t)
        if self.bias_correction:
            m, v = m / (1 - b1**t), v / (1 - b2**t)
        return x - self.lr * m / (v.sqrt() + self.tau)

    def output(self, x: Vec, state: State) -> Vec:
        return x


@dataclass(frozen=True)
class YogiServer:
    """As Adam, with v -= (1 - b2) Dbar^2 sign(v - Dbar^2)."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    has_momentum: ClassVar[bool] = True
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, tau=self.tau)
        betas(self, self.betas)

    def init(self, x: Vec) -> State:
        return _init(x, self.lr, self.tau**2)

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        b1, b2 = self.betas
        square = mean.update**2
        state["m"] = b1 * state["m"] + (1 - b1) * mean.update
        state["v"] = state["v"] - (1 - b2) * square * torch.sign(state["v"] - square)
        return x - self.lr * state["m"] / (state["v"].sqrt() + self.tau)

    def output(self, x: Vec, state: State) -> Vec:
        return x
