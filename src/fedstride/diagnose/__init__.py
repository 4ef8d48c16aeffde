"""Why a run is slow or stuck, and what to try: findings from its history, in words and in one HTML page."""

from fedstride.diagnose.findings import Diagnosis, Finding, diagnosis, findings
from fedstride.diagnose.page import write

__all__ = ["Diagnosis", "Finding", "diagnosis", "findings", "write"]
