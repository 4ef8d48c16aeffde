"""Output of experiments: a JSON record, a self-contained HTML page, and a Markdown table of records."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fedstride
from fedstride.app.about import environment
from fedstride.app.report import theme
from fedstride.app.report.builder import build
from fedstride.app.report.chart import Chart
from fedstride.app.report.write import duration
from fedstride.core.errors import InvalidInput
from fedstride.core.files import replace_file
from fedstride.research.papers.experiment import (
    AGREES,
    DIFFERS,
    IN_KIND,
    NO_INFORMATION,
    NOT_RUN,
    NUMBERS,
    UNDECIDED,
    Experiment,
    Lab,
    Outcome,
    Picture,
    current,
)
from fedstride.research.papers.overview import Record, overview, waiting

COLOURS = {  # verdict: (light, dark)
    AGREES: theme.SERIES[2],
    IN_KIND: theme.SERIES[0],
    DIFFERS: theme.SERIES[1],
    UNDECIDED: theme.PAGE["ink"],
    NO_INFORMATION: theme.PAGE["muted"],
    NOT_RUN: theme.PAGE["muted"],
}


def record(experiment: Experiment, lab: Lab, outcome: Outcome) -> Record:
    about = environment()
    found = {
        "name": experiment.name,
        "title": experiment.title,
        "scale": lab.scale,
        "seeds": lab.seeds,
        "augmented": lab.augment,
        "command": lab.command(experiment.name),
        "commit": commit(Path(fedstride.__file__).parent),
        "machine": {key: about[key] for key in ("platform", "cores", "python", "torch", "fedstride")},
        "hours": float(f"{lab.hours:.3g}"),
        "claims": [asdict(claim) for claim in outcome.claims],
        "figures": outcome.figures,
        "settings": outcome.settings,
    }
    return finite(found)  # type: ignore[no-any-return]


def write(found: Record, pictures: Sequence[Picture], folder: Path) -> tuple[Path, Path]:
    """Write NAME-SCALE.json and NAME-SCALE.html, and return their paths."""
    base = folder / f"{found['name']}-{found['scale']}"
    texts = {".json": json.dumps(found, indent=2, ensure_ascii=False) + "\n", ".html": page(found, pictures)}
    paths = tuple(base.with_name(base.name + ending) for ending in texts)
    for path, text in zip(paths, texts.values(), strict=True):
        replace_file(path, text)
    return paths  # type: ignore[return-value]


def read(folder: Path) -> list[Record]:
    """Return the records of a folder, sorted by name."""
    try:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    except ValueError as error:
        raise InvalidInput(f"--out {folder}: contains a .json that is not an experiment's record ({error}).") from error
    if not found or not all(isinstance(r, dict) and "claims" in r for r in found):
        raise InvalidInput(f"--out {folder}: expected records written by `fedstride reproduce NAME --out {folder}`.")
    return [r | {"name": current(r["name"])} for r in found]


def markdown(records: Sequence[Record]) -> str:
    """Return four tables: the experiments, the runs to be done, the claims by verdict, and all claims."""
    return "\n\n".join(
        _table(rows) for rows in (overview(records), waiting(records), _counts(records), _claims(records))
    )


def _counts(records: Sequence[Record]) -> list[list[str]]:
    rows = [["paper", "scale", *COLOURS]]
    groups: dict[tuple[str, str], list[str]] = {}
    for r in records:
        paper = next((name for name in NUMBERS.values() if r["name"].startswith(f"{name}-")), r["name"])
        groups.setdefault((paper, r["scale"]), []).extend(c["verdict"] for c in r["claims"])
    return rows + [[*at, *(str(found.count(verdict) or "") for verdict in COLOURS)] for at, found in groups.items()]


def _claims(records: Sequence[Record]) -> list[list[str]]:
    rows = [["experiment", "scale", "claim", "paper", "ours", "verdict", "seeds", "commit", "hours"]]
    for r in records:
        rest = [str(r["seeds"]), (r["commit"] or "-")[:7] + ("+" if _dirty(r) else ""), f"{r['hours']:.2g}"]
        rows += [
            [r["name"], r["scale"], c["what"], c["paper"], c["ours"], _strong(c["verdict"]), *rest] for c in r["claims"]
        ]
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _dirty(found: Record) -> bool:
    return str(found["commit"]).endswith("-dirty")


def _strong(verdict: str) -> str:
    return f"**{verdict}**" if verdict == DIFFERS else verdict


def commit(source: Path) -> str | None:
    """Return the commit of the repository that tracks this source, with -dirty if changed; None if installed."""
    tracked = ["ls-files", "--error-unmatch", "__init__.py"]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for arguments in (tracked, describe):
            done = subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, because JSON cannot represent them."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(found: Record, pictures: Sequence[Picture]) -> str:
    """Return the page as one HTML file; its colours follow the reader's light or dark mode."""
    last = len(pictures) - 1
    charts = [
        Chart(str(i), p.title, p.note, f"{p.title}. {p.note}", drawn(p), wide=i == last and i % 2 == 0)
        for i, p in enumerate(pictures)
    ]
    return build(
        "reproduction.html",
        charts,
        colours={name.replace(" ", "-"): pair for name, pair in COLOURS.items()},
        title=found["title"],
        name=found["name"],
        r=found,
        took=duration(3600 * found["hours"]),
        figures=json.dumps(found["figures"], indent=1, ensure_ascii=False),
    )


def drawn(picture: Picture) -> dict[str, Any]:
    """Return the figure in the style of the page, with a legend if it has several names."""
    traces, own = picture.figure["data"], picture.figure.get("layout", {})
    several = len({t.get("name") for t in traces if t.get("showlegend", True)} - {None}) > 1
    usual = theme.layout(360, showlegend=several, margin={"t": 12 + 22 * (1 + len(traces) // 5) if several else 8})
    return finite({"data": traces, "layout": theme.merged(usual, own)})  # type: ignore[no-any-return]
