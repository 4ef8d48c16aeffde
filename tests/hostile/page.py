"""The table of attacks, as a page."""

from __future__ import annotations

from typing import Any

TITLES = {
    "upload": "Uploads of one client of six",
    "remote": "Declarations of one node of six",
    "node": "Nodes of a Flower federation",
    "file": "Files of strangers",
}


def page(rows: list[dict[str, Any]]) -> str:
    held = sum(row["held"] for row in rows)
    lines = [
        "# Attacks",
        "",
        f"`make test-hostile` tries {len(rows)} attacks and renews this page; {held} of them were held. [SECURITY.md](../SECURITY.md) says what is",
        "promised to whom. For uploads, the accuracies are those of a run without and with the attack, under the default guard, in 16 rounds on",
        "digits; no plain mean holds against a client that flips signs or multiplies by less than the guard's limit, so these rows show the robust",
        "rule `TrimmedMean(0.2)`. The roll call is the server's question to every node that connects: who it is, and what data it has.",
    ]
    for kind, title in TITLES.items():
        own = [row for row in rows if row["kind"] == kind]
        lines += [
            "",
            f"## {title}",
            "",
            f"Expected: {own[0]['expected']}.",
            "",
            "| attack | seen | held |",
            "|---|---|---|",
        ]
        lines += [
            f"| {_cell(row['attack'])} | {_cell(row['seen'])} | {'yes' if row['held'] else '**no**'} |" for row in own
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
