"""FedSplit on the server: the mean of the z_i, which equals x - 2 Dbar if all clients take part.

Pathak, Wainwright. FedSplit: an algorithmic framework for fast federated optimization. NeurIPS 2020 (FedLin eq. 153).
Deviations: none. The client half is client/objective/fedsplit.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.core.rows import State, Vec
from fedstride.wire import Mean


@dataclass(frozen=True)
class FedSplit:
    """FedSplit: x+ = mean z_i = x - 2 Dbar.

    Use it with fs.FedSplitProx; fs.recipes.fedsplit() combines both. All clients must take part in every round.

    Example:
        >>> algorithm = fs.Algorithm(objective=fs.FedSplitProx(s=0.5), server=fs.FedSplit())
    """

    needs: ClassVar[tuple[str, ...]] = ()
    slot: ClassVar[str] = "server"
    exact_mean: ClassVar[bool] = True
    half_of: ClassVar[str] = "FedSplit"

    def init(self, x: Vec) -> State:
        return {"eta": x.new_tensor(2.0)}

    def broadcast(self, state: State) -> State:
        return {}

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        return x - 2 * mean.update

    def output(self, x: Vec, state: State) -> Vec:
        return x
