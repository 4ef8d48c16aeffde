"""Flower lists a message before all of its parts are there, and looks for missing parts after 1 s, 2 s, 4 s, ..., 10 s."""

from __future__ import annotations

import importlib
from typing import Any

FIRST = 0.03  # seconds until the first look for missing parts; then twice as long each time


def retry_soon() -> None:
    """Make the first waiting times of this process shorter; do nothing if this version of Flower works differently."""
    try:
        pull: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils").pull_objects
        if "initial_backoff" in pull.__kwdefaults__:
            pull.__kwdefaults__["initial_backoff"] = FIRST
    except (ImportError, AttributeError, TypeError):
        return
