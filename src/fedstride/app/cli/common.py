"""Helpers shared by the commands."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from fedstride.core.errors import FedstrideError, FedstrideWarning, GivenUp, Unsaved, printable
from fedstride.training.stop import interrupts_raise

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@contextmanager
def errors_without_traceback() -> Iterator[None]:
    """Print errors and warnings as single lines. The exit code is 1 for a failed run and 2 for invalid arguments."""

    def say(kind: str, message: object, style: str) -> None:
        text = printable(f"{kind}: {message}")  # it may quote a file of somebody else
        Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    said: set[str] = set()

    def warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FedstrideWarning):
            if str(message) not in said:  # each run of a comparison reads the data
                say("Warning", message, "yellow")
            said.add(str(message))
        else:
            usual(message, category, *where, **more)

    usual, warnings.showwarning = warnings.showwarning, warn
    try:
        with interrupts_raise():
            yield
    except FedstrideError as error:
        say("Error", error, "red")
        for note in getattr(error, "__notes__", ()):
            typer.echo(note, err=True)
        raise typer.Exit(1 if isinstance(error, GivenUp | Unsaved) else 2) from error
    except OSError as error:  # for example an unreadable folder or a file name that is too long
        say("Error", error, "red")
        raise typer.Exit(2) from error
    finally:
        warnings.showwarning = usual


def speak(text: str) -> None:
    """Print sentences, wrapped at words on a terminal; lines with paths and commands stay in one piece, to be copied."""
    console = Console(highlight=False)
    for line in text.splitlines():
        console.print(line, markup=False, soft_wrap=not console.is_terminal or line.startswith(("report:", "Next:")))


def wide_console() -> Console:
    """Return a console that prints wide tables if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


@contextmanager
def kept_on_interrupt(command: str) -> Iterator[None]:
    """Terminate the workers on Ctrl-C or SIGTERM, and print how to continue."""

    def stop(*_: object) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt as error:
        message = f"Interrupted. Completed results are kept; continue with: {command}"
        Console(stderr=True).print(message, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
