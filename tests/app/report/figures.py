"""The part of plotly's format that page/chart.js draws."""

from __future__ import annotations

import json
from typing import Any

EVERY = {
    "type",
    "name",
    "x",
    "y",
    "meta",
    "legendgroup",
    "showlegend",
    "visible",
    "hoverinfo",
    "hovertemplate",
    "customdata",
}
TRACES = {
    "scatter": EVERY | {"mode", "line", "marker", "opacity", "fill", "fillcolor"},
    "bar": EVERY | {"marker", "orientation", "base", "error_y", "yaxis"},
    "heatmap": EVERY
    | {"z", "zmin", "zmax", "text", "texttemplate", "colorscale", "colorbar", "xgap", "ygap", "hoverongaps"},
    "contour": EVERY | {"z", "colorscale", "contours", "line", "showscale"},
}


def check(figure: dict[str, Any]) -> None:
    """Refuse what the pages do not draw."""
    json.dumps(figure, allow_nan=False)
    assert figure.keys() == {"data", "layout"}
    for trace in figure["data"]:
        assert trace.keys() <= TRACES[trace["type"]], trace.keys() - TRACES[trace["type"]]
        assert "x" in trace or "meta" in trace, "without x, it is a curve over the rounds"
        if "x" in trace and "z" not in trace:
            assert len(trace["x"]) == len(trace["y"])
    for shape in figure["layout"].get("shapes", ()):
        assert shape["type"] in ("line", "rect") and shape["xref"] == "paper"
