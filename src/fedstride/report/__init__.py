"""The report: one HTML file about a run or a comparison, which needs no network."""

from fedstride.report.write import write

__all__ = ["write"]
