"""The configurations of a comparison: what they share, and where they differ."""

from __future__ import annotations

import json
from typing import Any

from fedstride.app.report.read import Record


def differences(records: dict[str, Record]) -> dict[str, Any] | None:
    """Return the shared settings as text, and a table of the others; None without configurations."""
    flat = {name: _flat(run.config) for name, run in records.items() if run.config}
    if not flat:
        return None
    keys = list(dict.fromkeys(key for settings in flat.values() for key in settings))
    shared = [key for key in keys if len({settings.get(key) for settings in flat.values()}) == 1]
    rows = [[key, *(settings.get(key, "–") for settings in flat.values())] for key in keys if key not in shared]
    first = next(iter(flat.values()))
    return {"shared": "\n".join(f"{key} = {first[key]}" for key in shared), "head": ["Setting", *flat], "rows": rows}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        inner = isinstance(value, dict) and value
        found |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": json.dumps(value)}
    return found
