"""The command line reference, read off the program."""

from __future__ import annotations

import click
import typer

from docs.site.markdown import cell, table
from fedstride.app.cli import app

FOLDER = "commands"


def parameter(context: click.Context, item: click.Parameter) -> tuple[str, str]:
    """Return the names of a parameter and its description, with its default."""
    record = item.get_help_record(context)
    if record is None:  # click describes options only
        record = (item.make_metavar(context), getattr(item, "help", None) or "")
    return f"`{cell(record[0])}`", record[1]


def inside(command: click.Command, context: click.Context) -> dict[str, click.Command]:
    """Return the commands of a group, by name; none of a single command."""
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    found = {name: command.get_command(context, name) for name in names}
    return {name: inner for name, inner in found.items() if inner and not inner.hidden}


def describe(command: click.Command, parent: click.Context | None, name: str, level: int = 1) -> str:
    """Return a command's section: usage, description, arguments and options, and those of its commands."""
    context = command.context_class(command, parent=parent, info_name=name)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = f"{'#' * level} `{context.command_path}`\n\n{(command.help or '').strip()}\n\n```text\n{usage}\n```\n\n"
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and not getattr(item, "hidden", 0)]
    text += table(["argument", "description"], [parameter(context, item) for item in arguments]) + "\n"
    text += table(["option", "description"], [parameter(context, item) for item in options]) + "\n"
    return text + "".join(describe(inner, context, n, level + 1) for n, inner in inside(command, context).items())


def pages() -> dict[str, str]:
    """Return one page per command, and an overview."""
    program = typer.main.get_command(app)
    parent = program.context_class(program, info_name="fedstride")
    shown = inside(program, parent)
    overview = table(
        ["command", "description"],
        [(f"[`fedstride {name}`]({name}.md)", command.help or "") for name, command in shown.items()],
    )
    index = f"# Command line\n\n{overview}\n`fedstride COMMAND --help` prints the same in the terminal.\n"
    found = {f"{FOLDER}/index.md": index}
    return found | {f"{FOLDER}/{name}.md": describe(command, parent, name) for name, command in shown.items()}
