"""Reports: one self-contained HTML file about a run or a comparison."""

from fedstride.app.report.write import write

__all__ = ["write"]
