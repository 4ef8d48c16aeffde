"""Logs as JSON lines, for the processes of a deployment: FEDSTRIDE_LOGS=json."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime

VARIABLE = "FEDSTRIDE_LOGS"
LOGGERS = ("flwr", "fedstride", "py.warnings")


class JsonLine(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the traceback, and facts given as extra={"facts": ...}."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage().strip(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**entry, **getattr(record, "facts", {})}, default=str)


def json_logs() -> None:
    """Write all logs and warnings of this process as JSON lines to stderr, if the environment asks for it."""
    if os.environ.get(VARIABLE) != "json":
        return
    logging.captureWarnings(True)
    for name in LOGGERS:
        logger, handler = logging.getLogger(name), logging.StreamHandler()
        handler.setFormatter(JsonLine())
        handler.setLevel(logging.INFO)
        # Flower's own handler writes text in colours; others, such as those of tests, stay.
        kept = [old for old in logger.handlers if type(old).__name__ not in ("ConsoleHandler", "StreamHandler")]
        logger.handlers = [*kept, handler]
        logger.propagate = False
    logging.getLogger("fedstride").setLevel(logging.INFO)
