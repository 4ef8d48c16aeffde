"""Builder of all HTML pages: one file each, with its own scripts and style, that needs nothing from the network.

The templates are beside the style and the script in page/; all of them extend base.html.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedstride.app.report import theme
from fedstride.app.report.chart import Chart

PRINTED = {"width": 660}  # pixels: the printed page's width
SCRIPTS = ("chart.js", "tools.js", "page.js")


def build(
    template: str,
    shown: Sequence[Chart] = (),
    *,
    colours: Mapping[str, tuple[str, str]] | None = None,
    data: Mapping[str, Any] | None = None,
    **words: Any,
) -> str:
    """Return a page.

    Args:
        template: a file of page/.
        shown: the charts; without any, the page has no scripts.
        colours: more colours for the style, as name: (light, dark).
        data: more data for page.js.
        **words: the template's variables.
    """
    scripts = [_file(name) for name in SCRIPTS] if shown else []
    tones = {name: theme.PAGE[name][0] for name in ("muted", "paper")}
    page = _environment().get_template(template)
    return page.render(
        words,
        charts=shown,
        colours={**theme.PAGE, **(colours or {})},
        data={
            "charts": {c.key: c.figure for c in shown},
            "dark": theme.DARK,
            "printed": PRINTED,
            **tones,
            **(data or {}),
        },
        style=_file("page.css"),
        scripts=scripts,
        allowed=[_digest(script) for script in scripts],
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedstride.app.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    return (files("fedstride.app.report") / "page" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return the hash of a script for the page's security policy, which blocks all other scripts and requests."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
