"""Try every attack, print a table, and write it: make test-hostile."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path

from tests.hostile import files, nodes, remote, uploads
from tests.hostile.page import page

KINDS = {"node": nodes.ATTACKS, "remote": remote.ATTACKS, "file": files.ATTACKS, "upload": uploads.ATTACKS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the record")
    parser.add_argument("--page", type=Path, help="file for the table")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows = []
    for kind, attacks in KINDS.items():
        for attack in attacks:
            try:
                seen = attack.run()
                held, text = seen.held, seen.text
            except Exception as error:
                held, text = False, f"{type(error).__name__}: {error}"[:200]
            rows.append({"kind": kind, "attack": attack.name, "expected": attack.expected, "seen": text, "held": held})
            print(f"{'held' if held else 'FAILED':6} {kind:6} {attack.name}: {text}", flush=True)
    failed = sum(not row["held"] for row in rows)
    print(f"{len(rows)} attacks, {failed} succeeded")
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if asked.page is not None:
        asked.page.write_text(page(rows), encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
