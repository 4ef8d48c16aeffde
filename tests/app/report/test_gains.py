"""The chart and the table of what clients gain from the federation."""

from __future__ import annotations

import json

import pytest

from fedstride import InvalidInput
from fedstride.app.report import gains, write
from tests.app.report.folders import rows_of, run_folder

ROWS = [
    {"client": "a<b", "samples": 3, "alone": 0.5, "shared": 0.6, "personalised": 0.75, "gain": 0.25},
    {"client": "c", "samples": 9, "alone": 0.9, "shared": 0.7, "personalised": 0.8, "gain": -0.1},
    {"client": "d", "samples": 9, "alone": 0.2, "shared": 0.7, "personalised": 0.8, "gain": 0.6},
]
FOUND = {"metric": "accuracy", "rows": ROWS}


def test_without_data_there_is_nothing():
    assert gains.charts_of({}) == [] and gains.table_of({}) is None


def test_clients_are_sorted_by_what_they_gain():
    (chart,) = gains.charts_of(FOUND)
    assert [trace["name"] for trace in chart.figure["data"]] == ["alone", "shared model", "personalised"]
    assert chart.figure["data"][0]["y"] == [0.2, 0.5, 0.9]
    assert chart.figure["data"][0]["customdata"] == ["d", "a<b", "c"]
    table = gains.table_of(FOUND)
    assert [row[0] for row in table["rows"]] == ["d", "a<b", "c"]
    assert table["rows"][0][1:] == ["20.0 %", "70.0 %", "80.0 %", "60.0 %"]
    assert table["note"].startswith("2 of 3 clients gain")


def test_a_page_has_them_and_refuses_a_damaged_file(tmp_path):
    folder = run_folder(tmp_path, rows_of())
    (folder / "personal.json").write_text(json.dumps(FOUND))
    page = write(folder).read_text()
    assert "2 of 3 clients gain from the federation" in page and "a&lt;b" in page
    (folder / "personal.json").write_text('{"metric": "accuracy", "rows": [{"client": 1}]}')
    with pytest.raises(InvalidInput, match=r"personal\.json"):
        write(folder)
