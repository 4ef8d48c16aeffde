"""What happened, round by round, in three currencies: bytes, evaluations, seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
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


class History(Sequence[Row]):
    """Rows as dictionaries; history["train_loss"] is a column; frame() a pandas frame.

    It is kept as JSON lines, which take a third of the memory: a run may have many thousand rounds.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.lines = [json.dumps(row) for row in rows]

    def append(self, row: Row) -> None:
        self.lines.append(json.dumps(row))

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        return map(json.loads, self.lines)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [row[key] for row in self]
        return [json.loads(line) for line in self.lines[key]] if isinstance(key, slice) else json.loads(self.lines[key])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"History({list(self)})"

    def text(self) -> str:
        """As JSON lines."""
        return "".join(line + "\n" for line in self.lines)

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(list(self), columns=list(COLUMNS))
