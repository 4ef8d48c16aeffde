from __future__ import annotations

import json
from pathlib import Path

from tests.hostile import __main__ as table
from tests.hostile.page import page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_that_of_the_record_and_has_every_attack():
    rows = json.loads((DOCS / "hostile.json").read_text())
    assert (DOCS / "attacks.md").read_text() == page(rows)
    assert [row["attack"] for row in rows] == [attack.name for kind in table.KINDS.values() for attack in kind]
    assert all(row["held"] for row in rows)
