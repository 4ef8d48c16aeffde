"""A process whose parent died ends by itself, and so gives up its locks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

CHILD = """
import sys, time
from pathlib import Path
from fedstride.engine.torchrun.process_group import end_with_parent
from fedstride.training.checkpoint import locked
with locked(Path(sys.argv[1])):
    end_with_parent(0.1)
    (Path(sys.argv[1]) / "ready").touch()
    time.sleep(120)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(120)
"""


@pytest.mark.slow
def test_an_orphan_gives_up_the_lock_of_its_folder(tmp_path):
    from fedstride.training.checkpoint import locked

    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(tmp_path)])
    end = time.monotonic() + 60
    while not (tmp_path / "ready").exists() and time.monotonic() < end:
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    while time.monotonic() < end:
        try:
            with locked(tmp_path):
                return
        except ValueError:
            time.sleep(0.2)
    pytest.fail("the orphan keeps its lock")
