"""Why a run is slow or stuck, and what to try: findings from its history, in words and in one HTML page."""

from fedstride.app.diagnose.finding import Finding
from fedstride.app.diagnose.page import write
from fedstride.app.diagnose.verdict import Diagnosis, diagnosis, every, findings

__all__ = ["Diagnosis", "Finding", "diagnosis", "every", "findings", "write"]
