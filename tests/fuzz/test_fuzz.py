"""A few inputs of each kind, always the same; FEDSTRIDE_FUZZ=N, or python -m tests.fuzz --inputs N, tries N at random."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.law import judge
from tests.fuzz.targets import TARGETS, share_of

pytestmark = pytest.mark.slow

MANY = int(os.environ.get("FEDSTRIDE_FUZZ", 0))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_input_gives_a_result_or_a_clear_error(target):
    @settings(max_examples=share_of(target, MANY or 200), derandomize=not MANY, suppress_health_check=list(HealthCheck))
    @given(target.inputs)
    def law(value):
        judge(target, value)

    law()
