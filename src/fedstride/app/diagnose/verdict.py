"""diagnosis(run): all judges in turn, and their findings in the order in which to act on them."""

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

# Among findings of the same severity, the earlier is the likelier reason.
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
    """How the run went, and why: the likeliest reason first."""

    outcome: Finding
    findings: list[Finding]  # the outcome is among them

    def json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.name, "findings": [asdict(f) for f in self.findings]}


def findings(run: Run | str | Path) -> list[Finding]:
    """What there is to say of a run, or of a run folder; causes first."""
    if isinstance(run, Run):
        return diagnosis(of_run(run)).findings
    if not isinstance(run, str | Path):
        raise InvalidInput(f"findings: run={run!r} is not usable; expected an fs.Run or the folder of a run.")
    return diagnosis(of_folder(Path(run))).findings


def diagnosis(e: Evidence) -> Diagnosis:
    found: list[Finding] = []
    for judge in JUDGES:
        said = judge(e)
        found += said if isinstance(said, list) else [said] if said else []
    outcome = progress.outcome(e)
    if not any(f.severity == "cause" for f in found):
        if e.bad:
            outcome = replace(outcome, says=f"{outcome.says} No cause shows in the history.")
    elif e.unlearned:
        outcome = replace(outcome, severity="watch")  # the causes say why
    outcome, *found = (_without(f, e.algorithm.name if e.algorithm is not None else "") for f in (outcome, *found))
    return Diagnosis(outcome, sorted([*found, outcome], key=lambda f: SEVERITIES.index(f.severity)))


def _without(finding: Finding, name: str) -> Finding:
    """No advice to take the algorithm that this is."""
    own = re.compile(rf"--algorithm {re.escape(name)}\b")
    return replace(finding, advice=tuple(a for a in finding.advice if not (name and own.search(a))))


def every(folder: str | Path) -> Diagnosis | dict[str, Diagnosis]:
    """Of a run folder, its diagnosis; of a comparison, those of its runs by their folders' names."""
    folder = Path(folder)
    if not (folder / "compare.json").is_file():
        return diagnosis(of_folder(folder))
    return {name: diagnosis(e) for name, e in of_comparison(folder).items()}
