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
BAR = 20  # characters of the bar
LEFT = 18  # characters of the time left and of the spaces between columns


def line(row: Row, width: int | None = None) -> str:
    """Format the metrics of one round as a line of text; what does not fit into the width is left out, steps first."""
    shown = ""
    for part in _parts(row):
        longer = f"{shown}  {part}" if shown else part
        if width is not None and len(longer) > width:
            break
        shown = longer
    return shown


def scores_text(row: Row) -> str:
    """Format the losses, the accuracy and the user's metrics of one round as a line of text."""
    return ", ".join(_scores(row))


def _scores(row: Row) -> list[str]:
    parts = []
    if row["test_accuracy"] is not None:
        parts.append(f"test accuracy {100 * row['test_accuracy']:.1f} %")
    if row["test_loss"] is not None:
        parts.append(f"test loss {row['test_loss']:.4g}")
    parts += [] if row["train_loss"] is None else [f"training loss {row['train_loss']:.4g}"]
    own = {name: value for name, value in row.items() if name not in COLUMNS and isinstance(value, int | float)}
    return [*parts, *(f"{name.replace('_', ' ')} {value:.4g}" for name, value in own.items())]


def _parts(row: Row) -> list[str]:
    """Return the metrics of a round as texts, the most important ones first."""
    parts = _scores(row)
    if row["lost"]:
        parts.append(f"lost {row['lost']}")
    if row["rollbacks"]:
        parts.append("server step rolled back")
    if row["epsilon"] is not None:
        parts.append(f"epsilon {row['epsilon']:.3g}")
    parts += [] if row["train_loss"] is None else [f"client step {row['client_step']:.3g}"]
    parts += [f"server step {row['server_step']:.3g}"]
    if row["trials"]:
        parts.append(f"trials {row['trials']:.1f}")
    return parts


@contextmanager
def shown(title: str, rounds: int, mode: str, console: Console) -> Iterator[Show]:
    """Yield a callback that shows each round. The mode is live (plain lines without a terminal), json or quiet."""
    if mode == "live" and (console.is_terminal or console.is_jupyter):
        with _bar(title, rounds, console) as show:
            yield show
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
def _bar(title: str, rounds: int, console: Console) -> Iterator[Show]:
    """Yield a callback that shows a bar with the time left, and the metrics below it; both vanish at the end."""
    from rich.console import Group
    from rich.live import Live
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    room = max(10, console.width - BAR - len(f"{rounds}/{rounds}") - LEFT)
    name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=room))
    columns = (name, BarColumn(BAR), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    progress = Progress(*columns, console=console)
    bar = progress.add_task(escape(title), total=rounds)
    metrics = Text("", no_wrap=True)
    started = False

    def show(event: Any) -> None:
        nonlocal started
        if started:
            progress.update(bar, completed=event.round)
        else:
            progress.reset(bar, completed=event.round)  # a resumed run has not done these rounds just now
            started = True
        metrics.plain = line(event.metrics, console.width) if event.round else ""

    with Live(Group(progress, metrics), console=console, transient=True):
        yield show


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
