"""FedExP: a server step from the diversity of the clients' updates.

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023.
Deviations: under privacy, the known noise is subtracted from |Dbar|^2, and a mean update that does not stand out from the
noise is not extrapolated. Both follow from FedExP's formula; the first private extrapolation, DP-FedEXP, is that of Takakura,
Liew, Hasegawa. Accelerating differentially private federated learning via adaptive extrapolation. arXiv:2504.09850, 2025,
whose step sizes this rule does not claim to reproduce. Unlike the paper of FedExP, the authors' code multiplies eps by the number of
clients and lets it decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.core.errors import at_least_one, not_negative, yes_or_no
from fedstride.core.rows import State, Vec, sq
from fedstride.wire import Mean

SIGNIFICANT = 2  # standard deviations of |noise|^2 by which the mean update must exceed it


@dataclass(frozen=True)
class FedExP:
    """FedExP: x -= eta Dbar with eta = max{1, S / (2 (|Dbar|^2 + eps))}.

    Args:
        eps: keeps eta finite as the mean update vanishes; 0 turns it off.
        lr_max: maximum of eta, at least 1 (FedSLS thm. 5 to 7); None for no limit.
        exact: whether clients project exactly, so that the factor 2 is not needed (FedExP app. C.4.1).
        last_two: whether to return the mean of the last two iterates.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(server=fs.FedExP(lr_max=4.0)), rounds=5)
        >>> all(1 <= row["server_step"] <= 4 for row in run.history)
        True
    """

    eps: float = 1e-3
    lr_max: float | None = None
    exact: bool = False
    last_two: bool = True
    needs: ClassVar[tuple[str, ...]] = ("square",)
    slot: ClassVar[str] = "server"
    extrapolates: ClassVar[bool] = True
    capped_by: ClassVar[str] = "lr_max"
    damped_by: ClassVar[str] = "eps"

    def __post_init__(self) -> None:
        not_negative(self, eps=self.eps)
        at_least_one(self, lr_max=self.lr_max)
        yes_or_no(self, exact=self.exact, last_two=self.last_two)

    def init(self, x: Vec) -> State:
        return {"eta": x.new_ones(()), "previous": x}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        square = sq(mean.update) - mean.noise  # unbiased under privacy
        below = (1 if self.exact else 2) * (square + self.eps)
        known = (below > 0) & (square >= SIGNIFICANT * mean.noise * (2 / len(x)) ** 0.5)
        eta = torch.where(known, mean.square / below, 1.0).clamp(min=1, max=self.lr_max)  # FedExP eq. (9)
        state["eta"], state["previous"] = eta, x
        return x - eta * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return (x + state["previous"]) / 2 if self.last_two else x  # the last iterate oscillates (FedExP sec. 5)
