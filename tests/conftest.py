"""Hypothesis: few examples, always the same ones, no clock. SIGHUP as in a terminal. bfloat16, where the processor has it.

Files with slow tests come first, so that the workers of `make test-all` end together.
"""

import signal

import pytest
from hypothesis import settings

from fedstride.engine import processor

settings.register_profile("fedstride", deadline=None, derandomize=True, max_examples=30, database=None)
settings.load_profile("fedstride")
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find out about bfloat16 before any test computes: oneDNN takes its limit only at first use."""
    if any("bfloat16" in getattr(item, "fixturenames", ()) for item in session.items):
        _problem()


@pytest.fixture
def bfloat16() -> None:
    problem = _problem()
    if problem is not None:
        pytest.skip(problem)


def _problem() -> str | None:
    try:
        processor.bfloat16_limit()
    except processor.Unsupported as error:
        return str(error)
    return None
