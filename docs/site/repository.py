"""Links: pages that refer to files of the repository lead to pages of the site."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"""(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|#|/)([^)"\s#]+)""")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.S | re.M)
FORMULA = re.compile(
    r"<(?!/?(?:a|br|details|div|img|p|picture|source|sub|summary|sup)\b|!--)"
)  # not a tag, as in <g, u>
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".sh": "bash"}


def place(path: str) -> str:
    """Return where the site shows a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        page = path.removeprefix("docs/")
    elif path.startswith("examples") and not path.endswith(".md"):
        page = re.sub(r"\.py$", ".md", path)
    else:
        page = "repository/" + (path if path.endswith(".md") else f"{path}.md")
    return f"{page}/index.md" if (ROOT / path).is_dir() else page


def target(source: str, link: str) -> str:
    """Return the path of a link's target in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def rewrite(text: str, source: str) -> str:
    """Return a page of the repository with the links of the site. MkDocs takes `<` for HTML where GitHub does not.

    Args:
        text: Markdown.
        source: path of the file in the repository.
    """
    here = posixpath.dirname(place(source)) or "."

    def change(match: re.Match[str]) -> str:
        page = posixpath.relpath(place(target(source, match[2])), here)
        return match[1] + (page if match[1] == "](" else page.removesuffix(".md"))

    pieces = CODE.split(text)  # every second one is code
    return "".join(p if i % 2 else FORMULA.sub("&lt;", LINK.sub(change, p)) for i, p in enumerate(pieces))


def linked(source: str) -> Iterator[str]:
    """Yield the files and folders of the repository that a file links to."""
    for _, link in LINK.findall(CODE.sub("", (ROOT / source).read_text())):
        yield target(source, link)


def sources() -> list[str]:
    """Return the files that the site shows: the pages under docs, README.md, and the files that they link to."""
    found = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
    for source in found:  # grows on the way
        if source.endswith(".md"):
            found += [path for path in linked(source) if (ROOT / path).exists() and path not in found]
    return found


def pages() -> dict[str, str]:
    """Return the pages for files and folders outside docs, and for folders of records."""
    found = {}
    for source in sources():
        path = ROOT / source
        if path.is_dir() and source.startswith("docs/"):
            files = sorted(os.listdir(path))
            found[place(source)] = f"# Files in {path.name}\n\n" + "\n".join(f"- [{f}]({f})" for f in files) + "\n"
        elif path.suffix == ".md" and not source.startswith("docs/"):
            found[place(source)] = rewrite(path.read_text(), source)
        elif path.is_file() and not source.startswith(("docs/", "examples/")):
            language = LANGUAGES.get(path.suffix, "text")
            found[place(source)] = f"{UNSEARCHED}# `{source}`\n\n````{language}\n{path.read_text()}````\n"
    return found
