"""Diagnosis of slow or stuck runs: findings from the history with advice, as text and as an HTML page."""

from fedstride.app.diagnose.finding import Finding
from fedstride.app.diagnose.page import write
from fedstride.app.diagnose.verdict import Diagnosis, diagnosis, every, findings

__all__ = ["Diagnosis", "Finding", "diagnosis", "every", "findings", "write"]
