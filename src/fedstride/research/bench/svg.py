"""Pictures for documents: SVG on a transparent ground, whose colours follow the reader's light or dark scheme."""

from __future__ import annotations

import html
from collections.abc import Iterable

from fedstride.app.report import theme

COLOURS = {  # name: (light, dark); a class that fills, and with "line" one that strokes
    **{name: theme.PAGE[name] for name in ("ink", "muted", "rule")},
    **{f"s{i}": pair for i, pair in enumerate(theme.SERIES)},
}


def text(x: float, y: float, words: str, colour: str = "ink", anchor: str = "start", kind: str = "") -> str:
    """Return a text; kind: head, bold or small."""
    classes = f"{colour} {kind}".strip()
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def line(path: str, colour: str, more: str = "") -> str:
    return f'<path class="{colour} line" d="{path}"{more}/>'


def document(width: float, height: float, about: str, shapes: Iterable[str]) -> str:
    """Return the picture; about: its text for screen readers."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
    font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" font-size="13"'
    return f"{head} {font}><title>{html.escape(about)}</title>{_style()}{''.join(shapes)}</svg>\n"


def _style() -> str:
    def colours(side: int) -> str:
        return "".join(
            f".{name}{{fill:{pair[side]}}}.{name}.line{{fill:none;stroke:{pair[side]}}}"
            for name, pair in COLOURS.items()
        )

    fixed = ".head{font-size:19px;font-weight:650}.bold{font-weight:650}.small{font-size:12px}.line{stroke-width:1}"
    thick = ".range{stroke-width:6;stroke-linecap:round;opacity:.3}.ring{stroke-width:2}.zero{stroke-width:1.5}"
    return f"<style>{colours(0)}{fixed}{thick}@media (prefers-color-scheme:dark){{{colours(1)}}}</style>"
