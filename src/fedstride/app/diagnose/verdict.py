"""Diagnosis: collect all findings and sort them by severity and likelihood."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedstride.app.diagnose import learned, people, progress, rules, server, steps
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import SEVERITIES, Finding
from fedstride.app.diagnose.read import of_comparison, of_folder, of_run
from fedstride.core.errors import InvalidInput
from fedstride.training.result import Run

# Among findings of the same severity, earlier ones are more likely causes.
JUDGES: tuple[Callable[[Evidence], Finding | list[Finding] | None], ...] = (
    learned.scales,
    people.participation,
    server.server_step,
    server.taken_back,
    rules.line_search,
    server.compression,
    steps.step_length,
    people.heterogeneity,
    steps.noise,
    learned.beyond_constant,
    progress.overfitting,
    people.left_behind,
    progress.unfinished,
    progress.unseen,
)


@dataclass(frozen=True)
class Diagnosis:
    """The outcome of a run, and its findings with the most likely cause first."""

    outcome: Finding
    findings: list[Finding]  # the outcome is among them

    def json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.name, "findings": [asdict(f) for f in self.findings]}


def findings(run: Run | str | Path) -> list[Finding]:
    """Return the findings about a run or a run folder, causes first.

    Args:
        run: an fs.Run, or the folder of a run.

    Returns:
        The findings, sorted by severity and then by likelihood.

    Raises:
        InvalidInput: if `run` is neither, or if the folder does not contain a run.

    Example:
        >>> from fedstride.app.diagnose import findings
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2)
        >>> [finding.name for finding in findings(run) if finding.severity == "cause"]
        []
    """
    if isinstance(run, Run):
        return diagnosis(of_run(run)).findings
    if not isinstance(run, str | Path):
        raise InvalidInput(f"findings: run={run!r} is invalid: expected an fs.Run or the folder of a run.")
    return diagnosis(of_folder(Path(run))).findings


def diagnosis(e: Evidence) -> Diagnosis:
    found: list[Finding] = []
    for judge in JUDGES:
        said = judge(e)
        found += said if isinstance(said, list) else [said] if said else []
    outcome = progress.outcome(e)
    if not any(f.severity == "cause" for f in found):
        if e.bad:
            outcome = replace(outcome, says=f"{outcome.says} The history shows no cause.")
    elif e.unlearned:
        outcome = replace(outcome, severity="watch")  # other findings are the causes
    outcome, *found = (_without(f, e.algorithm.name if e.algorithm is not None else "") for f in (outcome, *found))
    # Overfitting comes first: other findings take a rising test loss for training that does not work.
    order = sorted([*found, outcome], key=lambda f: (SEVERITIES.index(f.severity), f.name != "overfitting"))
    return Diagnosis(outcome, order)


def _without(finding: Finding, name: str) -> Finding:
    """Remove the advice to use the algorithm that the run already uses."""
    own = re.compile(rf"--algorithm {re.escape(name)}\b")
    return replace(finding, advice=tuple(a for a in finding.advice if not (name and own.search(a))))


def every(folder: str | Path) -> Diagnosis | dict[str, Diagnosis]:
    """Return the diagnosis of a run folder, or those of all runs of a comparison by folder name."""
    folder = Path(folder)
    if not (folder / "compare.json").is_file():
        return diagnosis(of_folder(folder))
    return {name: diagnosis(e) for name, e in of_comparison(folder).items()}
