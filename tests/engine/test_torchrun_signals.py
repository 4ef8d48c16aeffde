"""Signals to torchrun: the leader saves the finished rounds, and no follower dies before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedstride as fs
from fedstride.engine.torchrun.process_group import Signals
from fedstride.training.checkpoint import files
from tests.kills import LAUNCH, LOOPBACK

SCRIPT = """
import sys, time
from pathlib import Path
import os
import fedstride as fs
from tests.problems import learn

folder = Path(sys.argv[1])
def slowly(event):
    (folder / "round").write_text(str(event.round))
    time.sleep(0.2)
run = learn("scaffold", rounds=10_000, engine="torchrun", callbacks=[slowly],
            checkpoint=fs.Checkpoints(folder / "run", every=10_000))
(folder / f"rank{os.environ['RANK']}").write_text(f"{len(run.history)}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_torchrun_saves_the_run(number, tmp_path):
    given = [
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=2",
        "--no-python",
        sys.executable,
        "-c",
        SCRIPT,
    ]
    process = subprocess.Popen(
        [*LAUNCH, *given, str(tmp_path)], env={**os.environ, **LOOPBACK}, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "round").exists() or int((tmp_path / "round").read_text() or 0) < 3:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        process.wait(timeout=60)
    finally:
        process.kill()
    rounds = [int((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]
    assert rounds[0] == rounds[1] >= 3
    assert files(tmp_path / "run")[0].stem.endswith(str(rounds[0]))


def test_handlers_are_restored_and_those_of_the_program_left_alone():
    mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        before = signal.getsignal(signal.SIGHUP)
        signals = Signals()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signals.check()
        signals.restore()
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_other_threads_have_no_signals():
    found = []
    thread = threading.Thread(target=lambda: found.append(Signals().before))
    thread.start()
    thread.join()
    assert found == [{}]


WAITS = """
import signal, sys
from pathlib import Path
from tests.problems import learn
signal.alarm(300)
Path(sys.argv[1], "ready").touch()
learn("fedavg", engine="torchrun", checkpoint=Path(sys.argv[1], "run"))
"""
STARTS = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(300)"


@pytest.mark.slow
def test_an_orphan_that_waits_for_its_peers_gives_up_the_lock(tmp_path):
    """Rank 1 never comes, and torchrun is killed meanwhile."""
    from fedstride.research.bench.launch import free_port
    from fedstride.training.checkpoint import locked

    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS, WAITS, str(tmp_path)], env={**os.environ, **LOOPBACK, **ranks, **where}
    )
    folder: Path = tmp_path / "run"

    def is_locked() -> bool:
        try:
            with locked(folder):
                return False
        except fs.InvalidInput:
            return True

    end = time.monotonic() + 120
    while not ((tmp_path / "ready").exists() and folder.exists() and is_locked()):
        assert time.monotonic() < end
        time.sleep(0.2)
    time.sleep(2)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 60
    while is_locked():
        assert time.monotonic() < end, "the orphan keeps its lock"
        time.sleep(0.5)
