"""Pictures are drawn again from their records."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fedstride as fs
from fedstride.research.bench import show
from fedstride.research.bench.redraw import redraw

DOCS = Path(__file__).parents[3] / "docs"


def test_the_published_picture_is_that_of_the_published_record(tmp_path):
    (tmp_path / "painless.json").write_text((DOCS / "painless.json").read_text())
    assert redraw(tmp_path / "painless.json").read_text() == (DOCS / "painless.svg").read_text()


def test_the_picture_of_the_speed_is_within_its_frame():
    timed = {name: {"ratio": ratio} for name, ratio in (("by hand", 1.0), ("fedstride", 40.0), ("a & b", 0.01))}
    machine = {"cpu": "a < b", "cores": 2, "torch": "2", "threads": 1}
    found = {"machine": machine, "repeats": 1, "workloads": {"softmax": {"engines": timed, "matmul_flops": 1e9}}}
    root = ElementTree.fromstring(show.svg(found))
    width = float(root.get("viewBox").split()[2])
    bars = [(float(r.get("x")), float(r.get("width"))) for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert all(x >= 0 and x + wide <= width for x, wide in bars) and len(bars) == 4
    assert "prefers-color-scheme:dark" in show.svg(found)


def test_other_records_are_refused(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(fs.InvalidInput, match="is not a record of"):
        redraw(tmp_path / "other.json")
