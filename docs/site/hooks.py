"""MkDocs' hooks: generated pages enter the site and its navigation, and links to the repository lead to pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import algorithms, commands, examples, reference, repository

GENERATED: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> None:
    """Generate the pages, and complete the navigation."""
    for part in (repository, examples, algorithms, reference, commands):
        GENERATED.update(part.pages())
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    others = [path.name for path in sorted(Path(config.docs_dir).glob("*.md")) if path.name not in named]
    config.nav = [expand(item, others) for item in config.nav or []]


def expand(item: Any, others: list[str]) -> Any:
    """Return an item of the navigation with the pages of a folder such as `algorithms/`, and the others for `*`."""
    if isinstance(item, dict):
        return {title: expand(inner, others) for title, inner in item.items()}
    if isinstance(item, list):
        return [page for inner in item for page in (others if inner == "*" else [expand(inner, others)])]
    return [page for page in GENERATED if page.startswith(item)] if item.endswith("/") else item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in GENERATED.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of the pages under docs; the search prefers pages of algorithms, names and commands."""
    path = page.file.src_uri
    if path == "index.md":
        page.meta["hide"] = ["navigation"]
    if path.startswith((algorithms.FOLDER, reference.FOLDER, commands.FOLDER)):
        page.meta["search"] = {"boost": 2}
    return markdown if path in GENERATED else repository.rewrite(markdown, f"docs/{path}")
