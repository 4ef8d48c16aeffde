"""Run tests and laws on the fedstride that PYTHONPATH names: python -m tests.mutants.child SOURCE TESTS LAWS.

The last line that it prints is a JSON object: the first test that fails, and the first law that is broken, null for none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class First:
    """A plugin of pytest that keeps the name of the first test that fails."""

    failed: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def failing_test(selection: str) -> str | None:
    first = First()
    code = pytest.main([*selection.split(), "-x", "-q", "-p", "no:cacheprovider", "--no-header"], plugins=[first])
    if code not in (0, 1, 2) or (code == 2 and first.failed is None):
        raise SystemExit(f"pytest could not run {selection!r}: exit code {code}")
    return first.failed


def broken_law(selection: str) -> str | None:
    from fedstride.research.verify import law, measurements

    for only in filter(None, map(str.strip, selection.split(";"))):
        assert law.select(only), f"no law is called {only!r}"
        for found in measurements(only):
            if not found.kept:
                return f"{found.source}: {found.law}"
    return None


if __name__ == "__main__":
    import fedstride

    source, tests, laws = sys.argv[1:]
    assert Path(fedstride.__file__).is_relative_to(source), f"{fedstride.__file__} instead of {source}"
    try:
        law = broken_law(laws)
    except Exception as error:  # an error of any kind is noticed
        law = f"{type(error).__name__}: {error}".split("\n")[0]
    print("\n" + json.dumps({"test": failing_test(tests), "law": law}))
