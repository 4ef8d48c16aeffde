"""Colours for light and dark pages. Charts are written with the light colours; the page swaps them.

The series use Okabe and Ito's colour-blind safe palette, darkened (lightened) to a contrast of 3 : 1.
"""

from __future__ import annotations

from typing import Any

PAGE = {  # name: (light, dark)
    "paper": ("#ffffff", "#14171b"),
    "surface": ("#f5f6f8", "#1d2127"),
    "rule": ("#e2e5e9", "#2e343c"),
    "muted": ("#59626e", "#a4adb9"),
    "ink": ("#1a1e23", "#e9ebee"),
    "link": ("#0072b2", "#5cb8ee"),
    "good": ("#00805c", "#35c795"),
}
SERIES = [
    ("#0072b2", "#5cb8ee"),  # blue
    ("#d55e00", "#ff9552"),  # vermilion
    ("#00805c", "#35c795"),  # green
    ("#b0508f", "#e79bcb"),  # purple
    ("#8f6b00", "#e3bd45"),  # ochre
    ("#4a4f57", "#c3c9d1"),  # grey
]
SCALE = [("#d4e6f3", "#17364b"), ("#0073b3", "#4aa3d8"), ("#00324f", "#d6effe")]  # few ... many
BANDS = [
    ("rgba(0,114,178,0.14)", "rgba(92,184,238,0.16)"),
    ("rgba(0,114,178,0.28)", "rgba(92,184,238,0.30)"),
]  # outer, inner
DARK = dict([*PAGE.values(), *SERIES, *SCALE, *BANDS])
DASHES = ["solid", "dash", "dot", "dashdot"]  # used after all colours


def colour(i: int) -> str:
    return SERIES[i % len(SERIES)][0]


def dash(i: int) -> str:
    return DASHES[i // len(SERIES) % len(DASHES)]


def layout(height: int = 280, **more: Any) -> dict[str, Any]:
    """Return the layout that all charts share: no frame, faint horizontal lines, the page's font."""
    muted = PAGE["muted"][0]
    axis = {
        "color": muted,
        "gridcolor": PAGE["rule"][0],
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "fixedrange": True,
        "title": {"standoff": 10, "font": {"size": 12}},
    }
    base: dict[str, Any] = {
        "height": height,
        "margin": {"l": 44, "r": 12, "t": 8, "b": 40},
        "paper_bgcolor": PAGE["paper"][0],
        "plot_bgcolor": PAGE["paper"][0],
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": muted},
        "xaxis": {**axis, "showgrid": False, "nticks": 7, "ticklabelstandoff": 6},
        "yaxis": {**axis, "nticks": 6},
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": PAGE["surface"][0],
            "bordercolor": PAGE["rule"][0],
            "font": {"color": PAGE["ink"][0]},
        },
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "showlegend": False,
        "dragmode": False,
    }
    return merged(base, more)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {k: merged(base[k], v) for k, v in more.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **more, **both}
