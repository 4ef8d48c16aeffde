"""What the commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from fedstride.errors import Diverged, FedstrideError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@contextmanager
def errors_without_traceback() -> Iterator[None]:
    """Exit code 1 for a run that diverged, 2 for arguments that cannot be used."""
    try:
        yield
    except FedstrideError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1 if isinstance(error, Diverged) else 2) from error
