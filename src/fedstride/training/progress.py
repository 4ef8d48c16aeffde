"""Progress display of a run: a bar with the metrics of the round on a terminal or in a notebook, else plain lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedstride.training.history import COLUMNS, Row

if TYPE_CHECKING:
    from rich.console import Console  # slow to import

Show = Callable[[Any], object]  # takes an Event


def line(row: Row) -> str:
    """Format the metrics of one round as a line of text."""
    private = row["train_loss"] is None
    parts = [] if private else [f"loss {row['train_loss']:.4f}"]
    if row["test_accuracy"] is not None:
        parts.append(f"accuracy {100 * row['test_accuracy']:.1f} %")
    own = {name: value for name, value in row.items() if name not in COLUMNS and isinstance(value, int | float)}
    parts += [f"{name.removeprefix('test_').replace('_', ' ')} {value:.4g}" for name, value in own.items()]
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
def shown(title: str, rounds: int, mode: str, console: Console) -> Iterator[Show]:
    """Yield a callback that shows each round. The mode is live (plain lines without a terminal), json or quiet."""
    if mode == "live" and (console.is_terminal or console.is_jupyter):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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

    def say(event: Any) -> None:
        if event.round == 0:
            return
        if mode == "json":
            print(json.dumps(event.metrics), flush=True)
        elif mode != "quiet" and (event.round in (1, rounds) or event.round % max(1, rounds // 10) == 0):
            print(f"{title}  round {event.round}/{rounds}  {line(event.metrics)}", flush=True)

    yield say


@contextmanager
def shown_in_python(progress: bool | None, title: str, rounds: int, chosen: str) -> Iterator[list[Show]]:
    """Yield the callbacks that show the progress of fs.train(): one on a terminal or in a notebook, else none."""
    interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
    if progress is False or (progress is None and not interactive):
        yield []
        return
    from rich.console import Console

    console = Console(stderr="ipykernel" not in sys.modules)
    console.print(chosen, highlight=False)
    with shown(title, rounds, "live", console) as show:
        yield [show]
