"""Armijo's line search on the clients: the largest step of a geometric grid that decreases the batch loss enough.

FedSLS: federated stochastic line search, alg. 2 and 3. After Vaswani et al. Painless stochastic gradient.
NeurIPS 2019.
Deviations: the step never exceeds lr_max; after 100 trials the step is 1e-6; a model with |g| < 1e-8 does not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedstride.client.context import Context
from fedstride.core.errors import InvalidInput, at_least_one, fraction, nearest, positive
from fedstride.core.rows import Col, Rows, State, Vec, sq
from fedstride.oracle import Oracle, along

RESETS = ("keep", "max", "grow")
TRIALS = 100  # maximum trials of one search
FALLBACK = 1e-6  # step after an unsuccessful search
TINY = 1e-8  # gradient norms below this are treated as zero


@dataclass(frozen=True)
class Armijo:
    """Armijo's line search: while f_B(y - eta g) > f_B(y) - c eta |g|^2: eta *= backtrack; then y -= eta g.

    Args:
        lr_max: maximum step size, where a client's first search of a round starts.
        c: required decrease as a fraction of eta |g|^2, in (0, 1).
        backtrack: factor of eta after a failed trial, in (0, 1).
        reset: start of later searches: the last step ("keep"), lr_max ("max"), or growth^(b/n) times the last step
            ("grow").
        growth: growth of the start per epoch for reset="grow", at least 1; b/n is the batch as a fraction of the data.

    Raises:
        InvalidInput: if an argument is out of range or `reset` is unknown.

    Example:
        >>> algorithm = fs.Algorithm(step=fs.Armijo(lr_max=10.0))
        >>> run = fs.train(nn.Linear(3, 1), "mse", clients, algorithm, rounds=5)
        >>> 0 < run.history[-1]["client_step"] <= 10
        True
    """

    lr_max: float = 1.0
    c: float = 0.1
    backtrack: float = 0.9
    reset: str = "grow"
    growth: float = 2.0
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    rotation_invariant: ClassVar[bool] = True
    capped_by: ClassVar[str] = "lr_max"

    def __post_init__(self) -> None:
        positive(self, lr_max=self.lr_max)
        fraction(self, c=self.c, backtrack=self.backtrack)
        if self.reset not in RESETS:
            raise InvalidInput(f"Armijo: reset={self.reset!r} is unknown; {nearest(str(self.reset), RESETS)}")
        at_least_one(self, growth=self.growth)

    def init(self, x: Vec, context: Context) -> State:
        zero = torch.zeros_like(context.size)
        growth = context.growth(self.growth) if self.reset == "grow" else torch.ones_like(zero)
        start = torch.full_like(zero, self.lr_max)
        return {"eta": zero, "start": start, "growth": growth, "trials": zero.clone(), "failed": zero.clone()}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        eta = state["start"].clone()
        square = sq(G)
        trials, found = torch.zeros_like(eta), square.sqrt() < TINY
        still = ~found
        open_rows = [i for i, searches in enumerate(still[:, 0].tolist()) if searches]
        loss_at = along(oracle, W, G) if open_rows else None
        for _ in range(TRIALS):
            if loss_at is None or not open_rows:
                break
            some = open_rows if len(open_rows) < len(W) else slice(None)
            value = loss_at(eta[some], open_rows)
            trials[some] += 1
            enough = value <= L[some] - self.c * eta[some] * square[some]  # FedSLS eq. (3)
            found[some] = enough
            eta[some] = torch.where(enough, eta[some], self.backtrack * eta[some])
            open_rows = [i for i, ok in zip(open_rows, enough[:, 0].tolist(), strict=True) if not ok]
        failed = still & ~found
        state["eta"] = torch.where(failed, FALLBACK, torch.where(still, eta, 0.0))
        state["trials"], state["failed"] = state["trials"] + trials, state["failed"] + failed
        state["start"] = torch.where(still, self._restart(state["eta"], state["growth"]), state["start"])
        return -state["eta"] * G

    def _restart(self, eta: Col, growth: Col) -> Col:
        return torch.full_like(eta, self.lr_max) if self.reset == "max" else (growth * eta).clamp(max=self.lr_max)
