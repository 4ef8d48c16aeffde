"""Protocol of the benchmark's engines: the workload is read from a folder; requests are one JSON object per line.

{"do": "hello"} is answered by {} once the engine has started, {"do": "rounds", "n": 3} by {"seconds": [...]}, {"do": "model",
"file": PATH} by {} once the file is written, and {"do": "end"} by a description of the engine. Needs only numpy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the workload and its arrays: X and y [clients, samples, ...], order [rounds, clients, steps, batch], x (model)."""
    work = json.loads((Path(folder) / "work.json").read_text())
    with np.load(Path(folder) / "data.npz", allow_pickle=False) as file:
        return work, dict(file)


class Stopwatch:
    """A callback before the first and after every round that measures time and waits for the next request."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # redirect the output of libraries, which is not an answer
        self._asked, self._start = 0, 0.0
        self._seconds: list[float] = []

    def __call__(self, model: Callable[[], Any]) -> None:
        """Handle requests; `model` returns the current model as one vector, in the order of the parameters."""
        if self._asked:
            self._seconds.append(time.perf_counter() - self._start)
            if len(self._seconds) == self._asked:
                self.reply(seconds=self._seconds)
                self._asked = 0
        while not self._asked:
            request = json.loads(sys.stdin.readline() or "{}")
            if request.get("do") == "rounds":
                self._asked, self._seconds = request["n"], []
            elif request.get("do") == "model":
                np.save(request["file"], np.asarray(model(), dtype=np.float64), allow_pickle=False)
                self.reply()
            elif request.get("do") == "hello":
                self.reply()
            elif request.get("do") == "end":  # comes after the last round
                return
            else:  # the benchmark has ended
                raise SystemExit
        self._start = time.perf_counter()

    def reply(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)
