"""Run and comparison folders, from real runs of a tiny problem, and a reader of the pages made of them."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fedstride as fs
from fedstride.training.history import Row
from tests.problems import classification, learn

SIZES = [6, 9, 5, 8]
CLIENTS = {
    "sizes": SIZES,
    "labels": [[6, 0, 0], [3, 3, 3], [0, 5, 0], [0, 4, 4]],
    "classes": ["cat", "dog", "owl"],
    "accuracy": [0.5, 1.0, 0.2, 0.75],
    "loss": [0.9, 0.1, 1.5, 0.4],
}
CONFIG = '[algorithm]\nname = "fedsls"\n\n[data]\nsource = "toys"\n'
ENVIRONMENT = {
    "fedstride": "0.1.0",
    "cores": 2,
    "command": "fedstride run toys",
    "started": "2026-01-02T03:04:05+00:00",
}


def rows_of(algorithm: str | fs.Algorithm | None = None, **options: Any) -> list[Row]:
    """Of FedSLS unless told otherwise, with first trials so long that the line search has something to do."""
    chosen = algorithm or fs.recipes.fedsls(lr_max=100.0)
    test = classification((12,), seed=5)[0]
    return list(learn(chosen, **{"rounds": 4, "test": test, "cohort": 3, "local_steps": 2, **options}).history)


def run_folder(folder: Path, rows: list[Row], **files: Any) -> Path:
    """history.jsonl, and what else is given: text, or what becomes JSON; None leaves it out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {"config": "config.toml", "environment": "environment.json", "clients": "clients.json"}
    given = {"config": CONFIG, "environment": ENVIRONMENT, "clients": CLIENTS, **files}
    for key, content in given.items():
        if content is not None:
            (folder / named[key]).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def comparison_folder(folder: Path, runs: dict[str, list[list[Row]]], target: float | None = 0.5) -> Path:
    """One list of rows per algorithm and seed."""
    listed = []
    for k, (name, histories) in enumerate(runs.items()):
        for seed, rows in enumerate(histories):
            run_folder(folder / f"a{k}-s{seed}", rows)
            listed.append({"folder": f"a{k}-s{seed}", "algorithm": name, "seed": seed})
    (folder / "compare.json").write_text(json.dumps({"task": "toys", "target": target, "runs": listed}))
    return folder


class Page(HTMLParser):
    """What a browser sees: tags with their attributes and their own text, scripts and the data of the charts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.own: list[str] = []  # one text per tag
        self.open: list[int] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.count = Counter(tag for tag, _ in self.tags)
        self.scripts = self.text("script")
        self.data = json.loads(self.scripts[0], parse_constant=lambda name: 1 / 0)  # a browser knows no NaN

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.own.append("")
        if tag not in ("meta", "input"):
            self.open.append(len(self.tags) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.tags[self.open.pop()][0] == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.own[self.open[-1]] += data

    def attributes(self, tag: str, name: str) -> list[str]:
        return [value for found, attrs in self.tags if found == tag and (value := attrs.get(name)) is not None]

    def text(self, tag: str) -> list[str]:
        texts = [text for (found, _), text in zip(self.tags, self.own, strict=True) if found == tag]
        return texts if tag == "script" else [" ".join(text.split()) for text in texts]
