"""Files from strangers: an error of fedstride, whatever they contain."""

from __future__ import annotations

import pytest

from tests.hostile.files import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_hostile_file_is_refused(attack):
    seen = attack.run()
    assert seen.held, seen.text
