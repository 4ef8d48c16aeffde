"""A server that is killed, again and again, reaches the bits of one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedstride.training import checkpoint
from tests.deployment import until
from tests.flower import alone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RULES = ("FedExP", "FedAdam", "Auto", "Scaffold", "FedLin")


def begin(folder: Path, *rules: str, pause: float) -> subprocess.Popen[bytes]:
    where = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": where, "FEDSTRIDE_PAUSE": str(pause)}
    command = [sys.executable, "-m", "tests.flower.alone", str(folder), *rules]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)


def test_a_server_that_is_killed_in_every_rule_continues_to_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    assert begin(whole, *RULES, pause=0).wait(900) == 0, (whole / "log").read_text()[-3000:]
    for death, rule in enumerate(RULES):
        process = begin(killed, *RULES, pause=0.5)
        try:
            until(lambda rule=rule, last=2 + death: done(killed / rule) >= last, 900, f"some rounds of {rule}")
        finally:
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        assert 2 + death <= done(killed / rule) < alone.ROUNDS
    assert begin(killed, *RULES, pause=0).wait(900) == 0, (killed / "log").read_text()[-3000:]
    for rule in RULES:
        one, other = (np.load(folder / f"{rule}.npz") for folder in (whole, killed))
        assert all(np.array_equal(one[name], other[name]) for name in one), rule


def done(folder: Path) -> int:
    """Rounds that the newest checkpoint has."""
    return max((int(checkpoint.FILE.fullmatch(path.name)[1]) for path in checkpoint.files(folder)), default=0)
