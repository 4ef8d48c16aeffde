"""What notices a mutant: the first test that fails, and the first law that is broken, in the process that calls it."""

from __future__ import annotations

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
    if code > 2 or (code == 2 and first.failed is None):
        raise RuntimeError(f"pytest could not run {selection!r}: exit code {code}")
    return first.failed


def broken_law(selection: str) -> str | None:
    """Return the first measurement that breaks its bound; an error of any kind counts as one."""
    from fedstride.research.verify import law

    for only in selection.split("; ") if selection else []:
        text, _, rules = only.rstrip("]").partition("[")
        assert law.select(text), f"no law is called {text!r}"
        for source, check in law.select(text):
            try:
                found = list(_measured(law, source, check, rules))
            except Exception as error:
                return f"{source}: {type(error).__name__}"
            if found:
                return found[0]
    return None


def _measured(law, source, check, rules):  # type: ignore[no-untyped-def]
    """Yield the first broken measurement; `rules` limits a law over a table of rules to some of them."""

    def some():  # type: ignore[no-untyped-def]
        table = sys.modules[check.__module__].RULES
        return check({name: rule for name, rule in table.items() if rules in name})

    some.__name__ = check.__name__
    for found in law.run(source, some if rules else check):
        if not found.kept:
            yield f"{found.source}: {found.law}"
            return


def outcome(copy: Path, tests: str, laws: str) -> dict[str, str | None]:
    """Return what noticed: the test and the law, None for neither."""
    sys.path.insert(0, str(copy))
    import fedstride

    assert Path(fedstride.__file__).is_relative_to(copy), f"{fedstride.__file__} instead of {copy}"
    return {"law": broken_law(laws), "test": failing_test(tests)}
