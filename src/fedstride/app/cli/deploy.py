"""fedstride deploy: write what a deployment with Flower needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstride.app.cli.common import errors_without_traceback

app = typer.Typer(no_args_is_help=True, help="Deploy with Flower: certificates, keys, start scripts, an app, a page.")
Folder = Annotated[Path, typer.Argument(help="The folder that `init` wrote.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write; must not exist, or be empty.")],
    nodes: Annotated[int, typer.Option(help="How many nodes take part.")],
    host: Annotated[str, typer.Option(help="How nodes reach the server: names or addresses, separated by commas.")],
    port: Annotated[int, typer.Option(help="The server's port.")] = 9092,
) -> None:
    """Write a new deployment; its README.md has every command."""
    with errors_without_traceback():
        from fedstride.app import deploy

        deploy.init(folder, nodes, host.split(","), port)
        typer.echo(f"written: {folder}\nread on: {folder / 'README.md'}")


@app.command()
def node(folder: Folder, number: Annotated[int, typer.Argument(help="Of the node, from 0.")]) -> None:
    """A new key for a node: to add a node, or to replace a lost key."""
    with errors_without_traceback():
        from fedstride.app import deploy

        typer.echo(f"hand over: {deploy.node(folder, number)}\nregister: {folder}/server/keys/node-{number}.pub")


@app.command()
def renew(folder: Folder) -> None:
    """A new certificate of the server, for one year; nodes need nothing new."""
    with errors_without_traceback():
        from fedstride.app import deploy

        until = deploy.renew(folder)
        typer.echo(f"written: {folder}/server/server.crt, valid until {until:%Y-%m-%d}; restart the SuperLink")
