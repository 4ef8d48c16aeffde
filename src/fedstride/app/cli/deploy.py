"""fedstride deploy: write the files of a Flower deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstride.app.cli.common import errors_without_traceback

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Deploy with Flower: certificates, keys, start scripts, app and README.",
)
Folder = Annotated[Path, typer.Argument(help="Folder written by `init`.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write; must be empty or not exist.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")],
    host: Annotated[str, typer.Option(help="Names or addresses of the server, separated by commas.")],
    port: Annotated[int, typer.Option(help="Port of the server.")] = 9092,
) -> None:
    """Write a new deployment; its README.md lists every command."""
    with errors_without_traceback():
        from fedstride.app import deploy

        deploy.init(folder, nodes, host.split(","), port)
        typer.echo(f"written: {folder}\nnext steps: {folder / 'README.md'}")


@app.command()
def node(folder: Folder, number: Annotated[int, typer.Argument(help="Number of the node, from 0.")]) -> None:
    """Create a key for a new node, or replace a lost key."""
    with errors_without_traceback():
        from fedstride.app import deploy

        typer.echo(f"give to the node: {deploy.node(folder, number)}")
        typer.echo(f"register on the server: {folder}/server/keys/node-{number}.pub")


@app.command()
def renew(folder: Folder) -> None:
    """Renew the server's certificate for one year; nodes need no new files."""
    with errors_without_traceback():
        from fedstride.app import deploy

        until = deploy.renew(folder)
        typer.echo(f"written: {folder}/server/server.crt, valid until {until:%Y-%m-%d}; restart the SuperLink")
