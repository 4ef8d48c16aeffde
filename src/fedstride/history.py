"""What happened, round by round, in three currencies: bytes, evaluations, seconds."""

from __future__ import annotations

from typing import Any

import pandas as pd

Row = dict[str, Any]

COLUMNS = {
    "round": "number of finished rounds",
    "train_loss": "p-weighted mean of the cohort's first local losses",
    "test_loss": "loss of the returned model on the test set",
    "test_accuracy": "share of right predictions on the test set",
    "server_step": "step of the server along the mean update",
    "client_step": "p-weighted mean of the clients' mean step",
    "client_steps": "smallest, lower quartile, median, upper quartile and largest of the clients' mean steps",
    "trials": "line-search trials per local step",
    "failed": "line searches without success",
    "update": "|Dbar|: length of the mean update",
    "turn": "cosine between this round's move of the model and the one before",
    "drift": "sqrt(S - |Dbar|^2): how far the clients' updates are from their mean",
    "compression": "error of the compressed messages, relative to their length",
    "bytes_up": "from clients to server",
    "bytes_down": "from server to clients",
    "gradients": "samples whose gradient was evaluated",
    "forwards": "samples evaluated forward only (line-search trials)",
    "seconds": "wall-clock time of the round, evaluation included",
    "participants": "clients that answered",
    "lost": "clients of whom nothing could be used",
    "refused": "what was left out, by reason",
    "attempts": "how often the round was tried until enough clients answered",
    "rollbacks": "1 if the server's step was taken back, for a plain mean",
    "epsilon": "privacy spent so far, None without privacy",
}


class History(list[Row]):
    """Rows as dictionaries; history["train_loss"] is a column; frame() a pandas frame."""

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(list(self), columns=list(COLUMNS))
