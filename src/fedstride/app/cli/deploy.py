"""fedstride deploy: write the files of a Flower deployment, and look after its nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstride.app.cli.common import Json, errors_without_traceback, wide_console
from fedstride.core.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Deploy with Flower: certificates, keys, start scripts, app and README; add, remove and watch nodes.",
)
Folder = Annotated[Path, typer.Argument(help="Folder written by `init`.")]
Server = Annotated[
    Path, typer.Argument(help="Folder written by `init`, or its folder `server`, on the server's machine.")
]
Number = Annotated[int, typer.Argument(help="Number of the node.")]


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
def register(folder: Server = Path()) -> None:
    """Make the SuperLink agree with server/keys: register new keys, and end the access of nodes whose key is gone."""
    with errors_without_traceback():
        from fedstride.app.deploy import members

        typer.echo("\n".join(members.register(folder) or ["nothing to do: all keys are registered"]))


@app.command()
def status(folder: Server = Path(), as_json: Json = False) -> None:
    """Show the nodes by name, when they were last seen, their versions and sample counts, and the running round."""
    with errors_without_traceback():
        from rich.markup import escape
        from rich.table import Table

        from fedstride.app.deploy import members

        found = members.status(folder)
        if as_json:
            typer.echo(json.dumps(found))
            return
        head, *rows = members.table(found)
        shown = Table(*head, box=None, pad_edge=False)
        for row in rows:
            shown.add_row(*map(escape, row))  # nodes choose their names
        typer.echo("\n".join(members.run_lines(found)))
        wide_console().print(shown, highlight=False)


@app.command()
def add(folder: Folder) -> None:
    """Create a key for a new node, with the first free number."""
    with errors_without_traceback():
        from fedstride.app.deploy import members

        number, place = members.add(folder)
        typer.echo(f"give to node {number}: {place}")
        _registered(folder)


@app.command()
def remove(folder: Folder, number: Number) -> None:
    """Delete the key of a node, which ends its access."""
    with errors_without_traceback():
        from fedstride.app.deploy import members

        members.remove(folder, number)
        typer.echo(f"node {number} was removed")
        if gaps := members.gaps(folder):
            typer.echo(
                f"runs wait for a node with the number {gaps[0]}: create one with `fedstride deploy add {folder}`"
            )
        _registered(folder)


@app.command()
def renew(
    folder: Folder,
    node: Annotated[int | None, typer.Option(help="Give this node a new key, instead; the old one is revoked.")] = None,
) -> None:
    """Renew the server's certificate for one year; nodes need no new files."""
    with errors_without_traceback():
        from fedstride.app import deploy
        from fedstride.app.deploy import members

        if node is None:
            until = deploy.renew(folder)
            typer.echo(f"written: {folder}/server/server.crt, valid until {until:%Y-%m-%d}; restart the SuperLink")
            return
        if node not in (known := members.numbers(folder / "server")):
            raise InvalidInput(
                f"--node {node} is not a member; expected one of {', '.join(map(str, known)) or 'none'}."
            )
        typer.echo(f"give to node {node}: {deploy.node(folder, node)}")
        _registered(folder)


def _registered(folder: Path) -> None:
    """Register the keys if the SuperLink runs on this machine; otherwise say how."""
    from fedstride.app.deploy import members

    try:
        typer.echo("\n".join(members.register(folder)))
    except InvalidInput:
        typer.echo(
            "then copy server/keys and server/app/pyproject.toml to the server, and run there: fedstride deploy register"
        )
