"""Logs as JSON lines: one object per record, whatever is in it, and only if the environment asks for it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from fedstride.app.json_logs import JsonLine

PROGRAM = """
import logging, sys, warnings
try:
    import flwr
except ImportError:
    pass
from fedstride.app.json_logs import json_logs
json_logs()
log = logging.getLogger("flwr.fedstride")
log.info("round %d\\nof \\"%s\\"", 1, "x", extra={"facts": {"metrics": {"loss": 0.5}}})
warnings.warn("careful")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("flwr.fedstride", logging.WARNING, "file.py", 1, message, arguments, None)
    made.__dict__.update(more)
    return made


@pytest.mark.parametrize("text", ["plain", "two\nlines", '"quoted"', "\x1b[31mred", "100 %"])
def test_one_line_per_record(text):
    line = JsonLine().format(record("%s", text))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert (found["message"], found["level"], found["logger"]) == (text, "warning", "flwr.fedstride")


def test_facts_are_keys():
    found = json.loads(JsonLine().format(record("lost", facts={"round": 3, "lost": {2: "late"}})))
    assert (found["round"], found["lost"]) == (3, {"2": "late"})


def ran(**environment: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.slow
def test_a_process_writes_json_if_it_is_asked_to():
    first, warning, error = map(json.loads, ran(**os.environ, FEDSTRIDE_LOGS="json"))
    assert first["message"] == 'round 1\nof "x"' and first["metrics"] == {"loss": 0.5}
    assert "careful" in warning["message"] and warning["logger"] == "py.warnings"
    assert "ZeroDivisionError" in error["traceback"] and error["level"] == "error"
    assert not [line for line in ran(**os.environ) if line.startswith("{")]
