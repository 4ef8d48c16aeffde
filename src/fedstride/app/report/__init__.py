"""The report: one HTML file about a run or a comparison, which needs no network."""

from fedstride.app.report.write import write

__all__ = ["write"]
