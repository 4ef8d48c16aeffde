"""Which cases of a parametrised test `make test` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any, name: str | None = None) -> Any:
    """One case for parametrize that only `make test-all` runs."""
    return pytest.param(*values, id=name, marks=pytest.mark.slow)
