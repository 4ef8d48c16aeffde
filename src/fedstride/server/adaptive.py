"""FedAdagrad, FedAdam and FedYogi: adaptive steps per coordinate on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
Deviations: bias_correction=True gives torch's Adam, as used for Delta-SGD (Delta-SGD B.4: betas (0.9, 0.999), tau 1e-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.core.errors import betas, decay, positive, yes_or_no
from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


def _init(x: Vec, lr: float, v0: float) -> State:
    return {"eta": x.new_tensor(lr), "m": torch.zeros_like(x), "v": torch.full_like(x, v0), "t": x.new_zeros(())}


@dataclass(frozen=True)
class AdagradServer:
    """FedAdagrad: m = beta m + (1 - beta) Dbar; v += Dbar^2; x -= lr m / (sqrt(v) + tau).

    Args:
        lr: step size.
        beta: momentum in [0, 1); 0 turns it off.
        tau: added to sqrt(v); v starts at tau^2.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.AdagradServer(lr=0.5)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

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
    """FedAdam: m = b1 m + (1 - b1) Dbar; v = b2 v + (1 - b2) Dbar^2; x -= lr m / (sqrt(v) + tau).

    Args:
        lr: step size.
        betas: b1 and b2, in [0, 1).
        tau: added to sqrt(v); v starts at tau^2.
        bias_correction: whether to start v at 0, and to divide m and v by 1 - b1^t and 1 - b2^t, as torch does.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.AdamServer(lr=0.1)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3
    bias_correction: bool = False
    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    has_momentum: ClassVar[bool] = True
    scaled_by: ClassVar[str] = "lr"

    def __post_init__(self) -> None:
        positive(self, lr=self.lr, tau=self.tau)
        betas(self, self.betas)
        yes_or_no(self, bias_correction=self.bias_correction)

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
    """FedYogi: FedAdam with v -= (1 - b2) Dbar^2 sign(v - Dbar^2).

    Args:
        lr: step size.
        betas: b1 and b2, in [0, 1).
        tau: added to sqrt(v); v starts at tau^2.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.YogiServer(lr=0.1)), rounds=20)
        >>> run.history[-1]["train_loss"] < run.history[0]["train_loss"]
        True
    """

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
