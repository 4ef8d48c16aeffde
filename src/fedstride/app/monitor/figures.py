"""The figures of a run in Prometheus's text format.

Counters count from the start of the process, as Prometheus expects; fedstride_round includes the rounds of a checkpoint.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from numbers import Real

import fedstride
from fedstride.training.history import COLUMNS, Row
from fedstride.training.rounds import Event

Labels = tuple[tuple[str, str], ...]
GAUGES = {
    "train_loss": "Training loss of the last round.",
    "test_loss": "Loss on the test set, last evaluation.",
    "test_accuracy": "Share of correct predictions on the test set, last evaluation.",
    "server_step": "Step of the server in the last round.",
    "client_step": "Mean step of the clients in the last round.",
    "participants": "Clients that answered in the last round.",
}

EXACT = {  # totals that would tell who took part in a private run
    "lost_clients": "Clients whose upload was not used.",
    "refused_messages": "Messages that were not used, by reason.",
    "repeated_attempts": "Attempts at a round after the first.",
    "bytes": "Bytes sent by clients (up) and to clients (down).",
}


class Figures:
    """The figures of one process, updated after every round."""

    def __init__(self) -> None:
        self.round, self.last = 0, time.time()
        self.epsilon: float | None = None
        self.gauges: dict[str, float] = {}
        self.own: dict[str, float] = {}  # metrics of the user
        self.totals = defaultdict[tuple[str, Labels], float](float)

    def add(self, event: Event) -> None:
        """Add a round; round 0 is the start of a run."""
        self.round, self.last = event.round, time.time()
        row: Row = event.metrics
        for phase, seconds in event.seconds.items():
            self.totals["seconds", (("phase", phase),)] = seconds
        if event.round == 0:
            return
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, Real)}
        self.gauges |= {name: value for name, value in numbers.items() if name in GAUGES}
        self.own |= {name: value for name, value in numbers.items() if name not in COLUMNS}
        self.epsilon = row.get("epsilon")
        self.totals["rounds", ()] += 1
        self.totals["lost_clients", ()] += row["lost"]
        self.totals["repeated_attempts", ()] += row["attempts"] - 1
        for reason, count in row["refused"].items():
            self.totals["refused_messages", (("reason", reason),)] += count
        for direction in ("up", "down"):
            self.totals["bytes", (("direction", direction),)] += row[f"bytes_{direction}"]

    def text(self) -> str:
        """Return all figures. Those that tell who took part are left out under differential privacy."""
        private = self.epsilon is not None
        counted = {
            "rounds": "Rounds that this process has finished.",
            "seconds": "Seconds by phase.",
            **({} if private else EXACT),
        }
        lines = [
            *_family("info", "gauge", "Version of fedstride.", {(("version", fedstride.__version__),): 1}),
            *_family("round", "gauge", "Finished rounds, including those of a checkpoint.", {(): self.round}),
            *_family("last_round_timestamp_seconds", "gauge", "Time of the last finished round.", {(): self.last}),
        ]
        for name, meaning in GAUGES.items():
            if name in self.gauges and not (private and name == "participants"):
                lines += _family(name, "gauge", meaning, {(): self.gauges[name]})
        for name, meaning in counted.items():
            found = {labels: value for (known, labels), value in self.totals.items() if known == name}
            lines += _family(f"{name}_total", "counter", meaning, found)
        if self.epsilon is not None:
            lines += _family("privacy_epsilon", "gauge", "Privacy spent so far.", {(): self.epsilon})
        if self.own:
            named: dict[Labels, float] = {(("name", name),): value for name, value in self.own.items()}
            lines += _family("metric", "gauge", "Metrics of the user, last round.", named)
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, meaning: str, values: Mapping[Labels, float]) -> Iterable[str]:
    if not values:
        return
    name = f"fedstride_{name}"
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for labels, value in sorted(values.items()):
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels)
        yield f"{name}{f'{{{inside}}}' if inside else ''} {number(value)}"


def escaped(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """Write a number as Prometheus reads it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
