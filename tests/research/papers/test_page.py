"""What an experiment leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedstride import InvalidInput
from fedstride.app.report import theme
from fedstride.research.papers import Claim, Experiment, Lab, Outcome, page
from fedstride.research.papers.experiment import AGREES, DIFFERS, NOT_RUN, curves

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"
CLAIMS = [
    Claim("order", "a < b", "a < b", AGREES),
    Claim("</script><b>|w|", "1", "2", DIFFERS),
    Claim("CIFAR-100", "54.65", "", NOT_RUN),
]


@pytest.fixture
def written(tmp_path):
    """The paths of a record and a page with an infinity and a NaN in them."""
    picture = curves("F", "note", {"a": ([0, 1], [1.0, float("inf")]), "b": ([0, 1], [1.0, 2.0])})
    outcome = Outcome(CLAIMS, [picture], {"F": [float("nan"), 1.0]}, {"rounds": 50})
    found = page.record(Experiment("fedsls-x", "A title", None), Lab("small", 2, tmp_path), outcome)
    return page.write(found, outcome.pictures, tmp_path)


def test_a_record_is_strict_json_and_tells_how_it_was_made(written):
    def refuse(constant):
        raise AssertionError(constant)

    found = json.loads(written[0].read_text(), parse_constant=refuse)
    assert (found["name"], found["scale"], found["seeds"], found["hours"]) == ("fedsls-x", "small", 2, 0)
    assert found["command"] == "fedstride reproduce fedsls-x --scale small --seeds 2"
    assert found["figures"] == {"F": [None, 1.0]} and found["settings"] == {"rounds": 50}
    assert [claim["verdict"] for claim in found["claims"]] == [AGREES, DIFFERS, NOT_RUN]
    assert {"cores", "torch"} < set(found["machine"]) and "commit" in found


def test_a_page_needs_no_network_and_shows_all_verdicts(written):
    text = written[1].read_text()
    shown = text[: text.index('<script type="application/json"')]
    assert [shown.count(f">{verdict}</td>") for verdict in (AGREES, DIFFERS, NOT_RUN)] == [1, 1, 1]
    assert "&lt;/script&gt;&lt;b&gt;|w|" in shown and "<b>" not in shown
    assert not re.search(r'(src|href)="', shown)
    assert theme.PAGE["paper"][1] in shown, "the colours of a dark page"
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert [trace["y"] for trace in data["charts"]["0"]["data"]] == [[1.0, None], [1.0, 2.0]]
    assert data["charts"]["0"]["layout"]["showlegend"]


def test_markdown_counts_the_verdicts_and_holds_every_claim(written):
    _, _, counts, table = (text.splitlines() for text in page.markdown(page.read(written[0].parent)).split("\n\n"))
    assert counts[0] == "| paper | scale | agrees | in kind | differs | undecided | no information | not run |"
    assert counts[2:] == ["| fedsls | small | 1 |  | 1 |  |  | 1 |"]
    assert len(table) == 2 + len(CLAIMS)
    assert "\\|w\\|" in table[3] and "**differs**" in table[3] and "**" not in table[2] + table[4]
    assert all(line.startswith("| fedsls-x | small |") for line in table[2:])


def test_the_documentation_shows_the_tables_of_its_records():
    text = (DOCS / "reproduced.md").read_text(encoding="utf-8")
    for table in page.markdown(page.read(DOCS / "reproduced")).split("\n\n"):
        assert table in text, "renew it with `fedstride reproduce --markdown --out docs/reproduced`"


def test_a_record_saved_under_the_number_of_its_paper_is_shown_by_name(written):
    old = json.loads(written[0].read_text()) | {"name": "003-fig1"}
    written[0].write_text(json.dumps(old))
    assert [found["name"] for found in page.read(written[0].parent)] == ["fedexp-fig1"]


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", None])
def test_a_folder_without_records_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "some.json").write_text(text)
    with pytest.raises(InvalidInput, match="--out"):
        page.read(tmp_path)


def test_a_source_that_no_repository_tracks_has_no_commit(tmp_path):
    assert page.commit(tmp_path) is None
