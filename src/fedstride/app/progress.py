"""Progress display of a run: a bar with the metrics of the round on a terminal, else plain lines."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedstride.training.history import Row
from fedstride.training.train import Event


class Stopped(Exception):
    """Raised after Ctrl-C, once the round has been finished and saved."""


def line(row: Row) -> str:
    """Format the metrics of one round as a line of text."""
    private = row["train_loss"] is None
    parts = [] if private else [f"loss {row['train_loss']:.4f}"]
    if row["test_accuracy"] is not None:
        parts.append(f"accuracy {100 * row['test_accuracy']:.1f} %")
    parts += [] if private else [f"client step {row['client_step']:.3g}"]
    parts += [f"server step {row['server_step']:.3g}"]
    if row["trials"]:
        parts.append(f"trials {row['trials']:.1f}")
    if row["lost"]:
        parts.append(f"lost {row['lost']}")
    if row["rollbacks"]:
        parts.append("server step rolled back")
    if row["epsilon"] is not None:
        parts.append(f"epsilon {row['epsilon']:.3g}")
    return "  ".join(parts)


@contextmanager
def shown(title: str, rounds: int, mode: str, console: Console) -> Iterator[Any]:
    """Yield a callback that shows each round. The mode is live (plain lines without a terminal), json or quiet."""
    if mode == "live" and console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(title, total=rounds, now="")
            yield lambda e: progress.update(bar, completed=e.round, now=line(e.metrics) if e.round else "")
        return

    def say(event: Event) -> None:
        if event.round == 0:
            return
        if mode == "json":
            print(json.dumps(event.metrics), flush=True)
        elif mode != "quiet" and (event.round in (1, rounds) or event.round % max(1, rounds // 10) == 0):
            print(f"{title}  round {event.round}/{rounds}  {line(event.metrics)}", flush=True)

    yield say


@contextmanager
def stop_after_round() -> Iterator[Any]:
    """Yield a callback that ends the run after the current round on Ctrl-C; a second Ctrl-C ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def check(event: Event) -> None:
        if asked and event.round > 0:
            raise Stopped

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
