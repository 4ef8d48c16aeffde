"""Folders of runs in Python: the files and pages that the command line writes. Run.report() is implemented here."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedstride.core.errors import InvalidInput
from fedstride.core.files import replace_file
from fedstride.training.history import is_private
from fedstride.training.result import Run

OTHERS = {"config.toml": "`fedstride run`", "compare.json": "a comparison"}


def write_run(run: Run, folder: Path) -> Path:
    """Write everything about a run into a folder, and return the path of report.html."""
    from fedstride.app import diagnose, report

    for name, owner in OTHERS.items():
        if (folder / name).is_file():
            raise InvalidInput(f"report: {folder} is the folder of {owner}; choose another one.")
    if not run.history:
        raise InvalidInput("report: the run has no finished round; expected at least one.")
    save_run(run, folder)
    diagnose.write(folder)
    return report.write(folder)


def save_run(run: Run, folder: Path) -> None:
    """Write the files of a run: those of run.save(), the environment, and the clients if their data is on this machine."""
    from fedstride.app.about import about_clients, environment

    run.save(folder)
    private = is_private(run.history)
    facts = {**environment("written", private), **run.engine}
    replace_file(folder / "environment.json", json.dumps(facts, indent=2), private)
    about = about_clients(run)
    if about is not None:
        replace_file(folder / "clients.json", json.dumps(about))


def folder_name(algorithm: str, seed: int) -> str:
    """Return the folder of a run within that of a comparison."""
    return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '_', algorithm).strip('_')}-s{seed}"
