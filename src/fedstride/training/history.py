"""The history of a run: one row per round, with costs in bytes, evaluations and seconds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedstride.core.errors import nearest

if TYPE_CHECKING:
    import pandas as pd  # imported on demand: it takes half a second, on a node for every message

Row = dict[str, Any]
FIRST, LAST = 3, 3  # rounds that repr() shows
SHOWN = ("round", "train_loss", "test_loss", "test_accuracy")  # columns that repr() shows, beside the user's own, ...
STEPS = ("client_step", "server_step", "seconds")  # ... and these
BLOCK = 100  # number of rows that are compressed together
MOST = 2**20  # largest size of such a block in bytes

COLUMNS = {
    "round": "number of finished rounds",
    "train_loss": "p-weighted mean of the cohort's first local losses",
    "test_loss": "loss of the returned model on the test set",
    "test_accuracy": "share of correct predictions on the test set",
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
    "lost": "clients whose upload was unusable",
    "refused": "number of unusable messages, by reason",
    "attempts": "attempts at the round until enough clients answered",
    "rollbacks": "1 if the server step was rolled back and replaced by a plain mean",
    "epsilon": "privacy spent so far, None without privacy",
}
OF_CLIENTS = ("test_worst_decile", "test_spread")  # columns of runs with one test set for each client
MEDIAN_LOSS = "median_train_loss"  # column of runs that stop by it: median of the cohort's first local losses
NOT_NUMBERS = ("client_steps", "refused")  # columns of lists and dicts


class History(Sequence[Row]):
    """The history of a run: a sequence of rows, one dictionary per round; COLUMNS describes the keys.

    Rows are stored as compressed JSON lines, so that thousands of rounds take little memory and small checkpoints.

    Args:
        rows: the initial rows.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2)
        >>> run.history[-1]["round"]
        2
        >>> run.history["participants"]
        [4, 4]
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.blocks: list[bytes] = []  # compressed, BLOCK lines each
        self.lines: list[str] = []
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row."""
        self.lines.append(json.dumps(row))
        if len(self.lines) == BLOCK:
            self.blocks.append(self._compressed())
            self.lines = []

    def plus(self, row: Row) -> History:
        """Return a new history with one more row. Compressed rows are shared, not copied."""
        longer = History()
        longer.blocks, longer.lines = list(self.blocks), list(self.lines)
        longer.append(row)
        return longer

    def amended(self, row: Row) -> History:
        """Return this history with another last row."""
        shorter = History()
        shorter.blocks, shorter.lines = list(self.blocks), list(self.lines)
        if not shorter.lines:
            shorter.lines = zlib.decompress(shorter.blocks.pop()).decode().splitlines()
        shorter.lines.pop()
        shorter.append(row)
        return shorter

    def __len__(self) -> int:
        return BLOCK * len(self.blocks) + len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        return map(json.loads, self.text().splitlines())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            rows = list(self)
            if rows and not any(key in row for row in rows):
                raise KeyError(f"{key!r} is not a column; {nearest(key, list(rows[-1]))}")
            return [row.get(key) for row in rows]  # callbacks may add metrics in some rounds only
        lines = self.lines if isinstance(key, int) and -len(self.lines) <= key < 0 else self.text().splitlines()
        return [json.loads(line) for line in lines[key]] if isinstance(key, slice) else json.loads(lines[key])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return table_text(list(self))

    def text(self) -> str:
        """Return the history as JSON lines."""
        return "".join([*(zlib.decompress(b).decode() for b in self.blocks), *(line + "\n" for line in self.lines)])

    def packed(self) -> bytes:
        """Return the history as compressed bytes, for unpack()."""
        return b"".join([*self.blocks, self._compressed()])

    def frame(self) -> pd.DataFrame:
        """Return the history as a pandas DataFrame, one row per round."""
        import pandas as pd

        rows = list(self)
        return pd.DataFrame(rows, columns=[*COLUMNS, *own_columns(rows)])

    def _compressed(self) -> bytes:
        return zlib.compress("".join(line + "\n" for line in self.lines).encode())


def is_private(rows: Iterable[Row]) -> bool:
    """Whether a run with these rows had differential privacy."""
    return any(row.get("epsilon") is not None for row in rows)


def own_columns(rows: Iterable[Row]) -> list[str]:
    """Return the names of metrics that are not columns of every history, in order: those of the user and of test sets."""
    return list(dict.fromkeys(name for row in rows for name in row if name not in COLUMNS))


def table_text(rows: Sequence[Row]) -> str:
    """Describe a history by its first and last rounds."""
    head = f"History of {len(rows)} round{'' if len(rows) == 1 else 's'}"
    numbers = [n for n in own_columns(rows) if any(isinstance(row.get(n), int | float) for row in rows)]
    columns = [n for n in (*SHOWN, *numbers, *STEPS) if any(row.get(n) is not None for row in rows)]
    if not columns:
        return head
    short = len(rows) <= FIRST + LAST + 1
    shown = list(rows) if short else [*rows[:FIRST], {}, *rows[-LAST:]]
    cells = [columns, *([_cell(row.get(n)) if row else "..." for n in columns] for row in shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in cells]
    return "\n  ".join([head, *lines])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def unpack(data: bytes) -> Iterator[Row]:
    """Yield the rows of History.packed().

    Raises:
        ValueError: if the data is damaged, or if a block would take too much memory.
    """
    while data:
        block = zlib.decompressobj()
        try:
            text = block.decompress(data, MOST)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not block.eof:
            raise ValueError("a block is truncated or too large")
        yield from map(json.loads, text.decode().splitlines())
        data = block.unused_data
