"""Ending a run early: by a metric that stopped improving, by a callback, or by Ctrl-C."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

from fedstride.core.errors import InvalidInput
from fedstride.training.history import Row


class _Stop:
    """The type of fs.STOP."""

    def __repr__(self) -> str:
        return "fs.STOP"


SMALLER_IS_BETTER = ("loss", "error", "mse", "mae", "entropy", "perplexity", "spread", "epsilon")  # words in names
_returns: ContextVar[bool] = ContextVar("interrupts_return", default=True)


def interrupts_return() -> bool:
    """Whether fs.train() returns the run so far on Ctrl-C; programs of many runs want the exception instead."""
    return _returns.get()


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt from fs.train(), for programs that do more than one run."""
    token = _returns.set(False)
    try:
        yield
    finally:
        _returns.reset(token)


STOP: Final = _Stop()  # a callback returns it to end the run after this round


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a metric has not improved for some rounds, and keep the best or the last model.

    Args:
        metric: a column of the history: "test_loss", "test_accuracy", "train_loss", or the name of one of your metrics; or
            "median_train_loss", the median of the clients' training losses, which one false loss cannot move far. On Flower,
            "train_loss" means this median.
        patience: number of evaluations without improvement after which the run ends; None = never, only keep the best.
        keep: "best" returns the model of the best round; "last" that of the last round.
        mode: "min" if smaller is better, "max" if larger is. None: "min" for names that contain "loss", "error", "mse", "mae",
            "entropy", "perplexity" or "spread", else "max".
        least: a smaller change does not count as an improvement.

    Raises:
        InvalidInput: an argument is out of range.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=20, test=(inputs, targets),
        ...                stop=fs.EarlyStopping("test_loss", patience=3))
    """

    metric: str = "test_loss"
    patience: int | None = 10
    keep: Literal["best", "last"] = "best"
    mode: Literal["min", "max"] | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            raise InvalidInput(f"EarlyStopping: metric={self.metric!r} is invalid: expected the name of a column.")
        whole = isinstance(self.patience, int) and not isinstance(self.patience, bool)
        if self.patience is not None and not (whole and self.patience >= 1):
            raise InvalidInput(f"EarlyStopping: patience={self.patience!r} is invalid: expected a whole number >= 1.")
        if self.keep not in ("best", "last"):
            raise InvalidInput(f'EarlyStopping: keep={self.keep!r} is invalid: expected "best" or "last".')
        if self.mode not in (None, "min", "max"):
            raise InvalidInput(f'EarlyStopping: mode={self.mode!r} is invalid: expected "min", "max" or None.')
        if not (isinstance(self.least, int | float) and 0 <= self.least < math.inf):
            raise InvalidInput(f"EarlyStopping: least={self.least!r} is invalid: expected a number >= 0.")

    def score(self, row: Row) -> float | None:
        """Return the metric of a round, larger for better ones; None if the round was not evaluated, or it is NaN."""
        value = row.get(self.metric)
        if value is None or math.isnan(value):
            return None
        losses = self.metric == "test_worst_decile" and row.get("test_accuracy") is None  # of a task without accuracy
        return float(value if larger_is_better("test_loss" if losses else self.metric, self.mode) else -value)

    def improves(self, row: Row, best: float | None) -> bool:
        """Whether a round is better than the best one so far."""
        score = self.score(row)
        return score is not None and (best is None or score > best + self.least)


def larger_is_better(metric: str, mode: str | None = None) -> bool:
    """Whether larger values of a metric are better, as far as its name says."""
    return mode == "max" if mode else not any(word in metric for word in SMALLER_IS_BETTER)
