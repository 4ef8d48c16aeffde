"""The builder: every page allows its own scripts alone, and needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import pytest

from fedstride.app.report import theme
from fedstride.app.report.builder import build
from fedstride.app.report.chart import Chart
from fedstride.research.bench import show
from tests.app.report.folders import Page

EVIL = "</script><b>&"
CHART = Chart(
    "loss", EVIL, "", EVIL, {"data": [{"type": "scatter", "name": EVIL, "y": [1, 2]}], "layout": {"height": 280}}
)
WORDS = {"title": EVIL, "about": EVIL}


def test_the_policy_allows_the_scripts_of_the_page_and_no_others(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(build("speed.html", [CHART], **WORDS), encoding="utf-8")
    page = Page(path)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    rules = dict(rule.split(None, 1) for rule in page.attributes("meta", "content")[0].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests] and len(digests) == 3
    assert page.count["b"] == 0 and page.text("h1") == page.text("h2") == [EVIL], "no text becomes markup"


def test_a_page_without_charts_has_no_scripts_and_allows_none():
    text = build("speed.html", **WORDS)
    assert "default-src 'none'" in text and "<script" not in text and "script-src" not in text


def test_more_colours_have_a_light_and_a_dark_tone():
    text = build("speed.html", colours={"agrees": ("#123456", "#abcdef")}, **WORDS)
    for name, (light, dark) in (theme.PAGE | {"agrees": ("#123456", "#abcdef")}).items():
        assert f"--{name}: {light};" in text and f"--{name}: {dark};" in text


@pytest.mark.parametrize("template", sorted(p.name for p in (files("fedstride.app.report") / "page").iterdir()))
def test_templates_extend_the_base(template):
    text = (files("fedstride.app.report") / "page" / template).read_text(encoding="utf-8")
    assert ("<!doctype html>" in text) == (template == "base.html")


def test_the_page_of_the_speed_has_bars_and_curves():
    timed = {"ratio": 2.0, "seconds": [1.0], "status": "ok"}
    report = {
        "machine": {"cpu": "a < b", "cores": 2, "torch": "2", "threads": 1},
        "repeats": 1,
        "workloads": {"softmax": {"engines": {"by hand": timed, "fedstride": timed}, "matmul_flops": 1e9}},
        "growth": {"clients in all": [{"n": 10, "seconds": 0.1, "peak_bytes": None}]},
    }
    text = show.page(report)
    assert "a &lt; b, 2 cores" in text and "<h2>Growth with clients in all</h2>" in text
    assert all(f'id="chart-{key}"' in text for key in ("speed", "clients-in-all"))
