"""The pages of examples/: each program with the output that it printed. `python -m docs.site.examples` runs them again."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.site.markdown import table
from docs.site.repository import ROOT

FOLDER = "examples"
OUTPUT = Path(__file__).parent / "output"
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))


def page(program: Path) -> str:
    """Return the page of an example: its docstring, its code and its stored output."""
    code = program.read_text()
    tree = ast.parse(code)
    title, _, text = (ast.get_docstring(tree) or "").partition(":")
    body = "".join(code.splitlines(keepends=True)[tree.body[0].end_lineno :]).strip()
    output = (OUTPUT / f"{program.stem}.txt").read_text().strip()
    return (
        f"# {title}\n\n{text.strip()[:1].upper()}{text.strip()[1:]}\n\n"
        f'```python title="examples/{program.name}"\n{body}\n```\n\nIt prints:\n\n```text\n{output}\n```\n\n'
        "The last digits depend on the processor.\n"
    )


def pages() -> dict[str, str]:
    """Return the pages of all examples, and a list of them."""
    found = {f"{FOLDER}/{program.stem}.md": page(program) for program in PROGRAMS}
    rows = [(f"[{p.stem}.py]({p.stem}.md)", found[f"{FOLDER}/{p.stem}.md"].split("\n\n")[1]) for p in PROGRAMS]
    rows.append(
        ("[flower-app](../repository/examples/flower-app/README.md)", "Your model and your data, across machines.")
    )
    return {f"{FOLDER}/index.md": f"# Examples\n\n{table(['program', 'shows'], rows)}"} | found


def refresh() -> None:
    """Run all examples and store their output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for program in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            run = [sys.executable, str(program)]
            done = subprocess.run(run, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        (OUTPUT / f"{program.stem}.txt").write_text(done.stdout)


if __name__ == "__main__":
    refresh()
