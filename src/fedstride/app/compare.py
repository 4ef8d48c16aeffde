"""fs.compare(): several algorithms on the same clients and seeds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.app.results import folder_name, save_run
from fedstride.app.summary import WIDE, Histories, frame_of, tables_of
from fedstride.core.errors import GivenUp, InvalidInput, tell
from fedstride.core.files import replace_file
from fedstride.core.losses import Loss
from fedstride.data.federation import federation
from fedstride.engine import engine as engine_of
from fedstride.training import validate
from fedstride.training.result import Run
from fedstride.training.train import train

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

OWN = ("algorithm", "seed", "checkpoint")  # arguments of fs.train() that differ between the runs


@dataclass(frozen=True, repr=False)
class Compared:
    """The result of fs.compare(). It prints as a table with means over the seeds.

    Args:
        runs: the runs of each algorithm, one per seed. Those that diverged end before their last round.
        target: the target test accuracy, if any.
        report: path of report.html, if there is a folder.
    """

    runs: Mapping[str, Sequence[Run]]
    target: float | None = None
    report: Path | None = None

    def frame(self) -> pd.DataFrame:
        """Return the figures of the table as a pandas frame."""
        return frame_of(self._histories, self.target)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield from tables_of(self._histories, self.target, options.max_width)

    def __repr__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=WIDE).print(self)
        lines = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
        return "\n".join([*lines, *([] if self.report is None else [f"report: {self.report}"])])

    @property
    def _histories(self) -> Histories:
        return {name: [list(run.history) for run in runs] for name, runs in self.runs.items()}


def compare(
    algorithms: Mapping[str, str | Algorithm] | Iterable[str],
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 3,
    target: float | None = None,
    folder: str | Path | None = None,
    **arguments: Any,
) -> Compared:
    """Compare algorithms on the same model, clients and seeds.

    Args:
        algorithms: algorithms as in fs.train(), by a name of your choice; or a list of texts, such as "fedavg(lr=0.1)".
        model: as in fs.train(); every run starts from its parameters.
        loss: as in fs.train().
        clients: as in fs.train().
        rounds: as in fs.train().
        seeds: number of seeds per algorithm, or the seeds.
        target: a test accuracy; the table shows the rounds that are needed to reach it.
        folder: where to write the runs and a report, as `fedstride compare` does. None = nothing is written.
        **arguments: further arguments of fs.train(), such as test, batch_size and metrics.

    Returns:
        A Compared: its repr is the table, .frame() the same as a pandas frame, .runs the runs. After Ctrl-C, it has the
        runs that were finished.

    Raises:
        InvalidInput: an argument is invalid.

    Example:
        >>> found = fs.compare(["auto", "fedavg(lr=0.1)"], nn.Linear(4, 3), "cross_entropy", clients, rounds=5, seeds=1)
        >>> list(found.runs)
        ['auto', 'fedavg(lr=0.1)']
    """
    chosen, numbers = _algorithms(algorithms), _seeds(seeds)
    _check(target, arguments)
    leads = engine_of(arguments.get("engine", "auto")).leads  # other processes write nothing
    place = None if folder is None or not leads else _folder(Path(folder), chosen, numbers)
    federated = clients if arguments.get("collate") is not None else federation(clients)  # checked once
    runs: dict[str, list[Run]] = {}
    for name, seed in ((name, seed) for name in chosen for seed in numbers):
        try:
            run = train(model, loss, federated, chosen[name], rounds=rounds, seed=seed, **arguments)
        except GivenUp as error:
            tell(f"{name}, seed {seed}: {error}")
            run = error.run
        if run.ended == "interrupted":
            break
        runs.setdefault(name, []).append(run)
        if place is not None:
            save_run(run, place / folder_name(name, seed))
    report = _report(place, runs, numbers, target) if place is not None else None
    return Compared(runs, target, report)


def _report(folder: Path, runs: dict[str, list[Run]], seeds: list[int], target: float | None) -> Path | None:
    """Write the index and the report of a comparison; None if no run has a finished round."""
    from fedstride.app import diagnose
    from fedstride.app.report import write

    listed = [
        {"folder": folder_name(name, seed), "algorithm": name, "seed": seed}
        for name, every in runs.items()
        for seed, _ in zip(seeds, every, strict=False)
    ]
    people = max((run.settings["data"]["clients"] for every in runs.values() for run in every), default=0)
    task = f"{people:,} clients"
    replace_file(folder / "compare.json", json.dumps({"task": task, "target": target, "runs": listed}, indent=2))
    if not any(run.history for every in runs.values() for run in every):
        return None
    for name, every in runs.items():
        for seed, run in zip(seeds, every, strict=False):
            if run.history:
                diagnose.write(folder / folder_name(name, seed))
                write(folder / folder_name(name, seed))
    return write(folder)


def _algorithms(given: Any) -> dict[str, Algorithm]:
    """Return the algorithms by name; all are checked before any of them runs."""
    if isinstance(given, str | Algorithm) or not isinstance(given, Mapping | Iterable):
        raise InvalidInput(
            f"algorithms={given!r} is invalid: expected a dict of algorithms by name, or a list of texts."
        )
    named = dict(given) if isinstance(given, Mapping) else {str(one): one for one in given}
    if not named:
        raise InvalidInput("algorithms: got none; expected at least one.")
    return {str(name): validate.algorithm_of(one) for name, one in named.items()}


def _seeds(given: Any) -> list[int]:
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        return [validate.whole(f"seeds[{i}]", seed, least=0) for i, seed in enumerate(given)]
    return list(range(validate.whole("seeds", given)))


def _check(target: Any, arguments: Mapping[str, Any]) -> None:
    for name in OWN:
        if name in arguments:
            raise InvalidInput(f"compare: {name}= differs between the runs; leave it out. Seeds are given by seeds=.")
    if target is None:
        return
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target <= 1:
        raise InvalidInput(f"target={target!r} is invalid: expected a test accuracy in (0, 1].")
    if arguments.get("test") is None:
        raise InvalidInput(f"target={target!r} without test=; accuracy is measured on the test set. Give one.")


def _folder(folder: Path, names: Iterable[str], seeds: Sequence[int]) -> Path:
    """Refuse a folder of something else, and names that would share a folder."""
    if any((folder / name).is_file() for name in ("config.toml", "history.jsonl")):
        raise InvalidInput(f"compare: {folder} is the folder of a run; choose another one.")
    places = [folder_name(name, seed) for name in names for seed in seeds]
    if len(set(places)) < len(places):
        raise InvalidInput(
            "compare: some names differ only in punctuation, or seeds repeat; their folders would be the same."
        )
    return folder
