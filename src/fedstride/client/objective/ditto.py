"""Ditto: beside the shared model, each client trains a model of its own that is held near the shared one.

Li, Hu, Beirami, Smith. Ditto: fair and robust federated learning through personalization. ICML 2021 (alg. 1).
Deviations: both models take as many local steps, by the same step rule and on the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstride.client.objective.terms import Terms
from fedstride.core.errors import not_negative
from fedstride.core.rows import Rows, State, Vec


@dataclass(frozen=True)
class Ditto:
    """Ditto: the shared model is trained on f_i, the client's own model v_i on f_i(v) + lam/2 |v - x|^2.

    v_i stays with its client; it is run.personal[i] after training.

    Args:
        lam: strength of the tie to the shared model; 0 trains v_i on the client's data alone.

    Raises:
        InvalidInput: if lam is negative.

    Example:
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, fs.Algorithm(objective=fs.Ditto(lam=0.5)), rounds=2)
        >>> run.personal[0].weight.shape
        torch.Size([1, 3])
    """

    lam: float = 0.1
    slot: ClassVar[str] = "objective"
    trains_own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        not_negative(self, lam=self.lam)

    def memory(self, x: Vec) -> State:
        return {"own": x.clone()}  # v_i starts at the model that the client gets first

    def terms(self, x: Vec, memory: State) -> Terms:
        return Terms()

    def own_terms(self, x: Vec, memory: State) -> Terms:
        return Terms(start=memory["own"], curvature=self.lam, center=x)

    def finish(self, x: Vec, W: Rows, memory: State) -> State:
        return {}
