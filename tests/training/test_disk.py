"""Full disks, read-only folders, two runs in one folder: a clear error, and no data lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app.cli import app
from fedstride.core.files import replace_file
from fedstride.training.checkpoint import files, locked
from tests.problems import learn, same_bits

ROOT = Path(__file__).parents[2]


def child(code: str, *args: object) -> str:
    """Return the output of a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FULL = """
import resource, signal, sys
import fedstride as fs
from tests.problems import learn
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    learn("scaffold", rounds=9, checkpoint=sys.argv[1])
except fs.Unsaved as error:
    print(error)
    print(len(error.run.history), float(error.run.x.sum()))
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_what_was_saved(tmp_path):
    """A limit on the file size makes the system refuse in the middle of a write."""
    learn("scaffold", rounds=3, checkpoint=tmp_path / "probe")
    room = files(tmp_path / "probe")[0].stat().st_size
    said, figures = child(FULL, tmp_path / "run", room + 10).splitlines()
    assert "checkpoint-000004.safetensors: cannot be written (File too large). Files saved before" in said
    rounds, total = figures.split()
    assert (int(rounds), float(total)) == (4, float(learn("scaffold", rounds=4).x.sum()))
    assert [p.name for p in (tmp_path / "run").iterdir() if p not in files(tmp_path / "run")] == []
    assert same_bits(learn("scaffold", rounds=9, checkpoint=tmp_path / "run"), learn("scaffold", rounds=9))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, "old")

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(fs.Unsaved, match=r"file: cannot be written \(No space left on device\)"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_while_writing_client_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstride.engine.store.LIMIT", 0)

    def fail(file, *args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    learn("scaffold", rounds=2, checkpoint=tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "fstat", fail)  # asked before a slot is written
        with pytest.raises(fs.Unsaved, match=r"memory\.bin: cannot be written \(No space left on device\)") as caught:
            learn("scaffold", rounds=5, checkpoint=tmp_path)
    assert len(caught.value.run.history) == 2
    assert same_bits(learn("scaffold", rounds=5, checkpoint=tmp_path), learn("scaffold", rounds=5))


READ_ONLY = """
import os, sys
import fedstride as fs
from tests.problems import learn
learn(rounds=1)  # all that is imported late is imported now
if os.getuid() == 0:
    os.setuid(65534)  # the superuser may write everywhere
for folder in sys.argv[1:]:
    try:
        learn(rounds=2, checkpoint=folder)
    except fs.Unsaved as error:
        print(error)
"""


@pytest.mark.slow
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    for above in tmp_path.parents[: len(tmp_path.parents) - 1]:
        if above.stat().st_uid == os.getuid() and str(above).startswith("/tmp/"):
            above.chmod(0o755)
    itself, inside = child(READ_ONLY, tmp_path, tmp_path / "new").splitlines()
    assert "is not writable" in itself and "cannot be created (Permission denied)" in inside
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_locked_by_one_run(tmp_path):
    found: list[BaseException] = []

    def other() -> None:
        try:
            learn(rounds=9, checkpoint=tmp_path)
        except BaseException as error:
            found.append(error)

    def start(event: fs.Event) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    run = learn(rounds=2, checkpoint=tmp_path, callbacks=[start])
    assert len(found) == 3
    assert all(isinstance(e, fs.InvalidInput) and "another run is writing to this folder" in str(e) for e in found)
    assert same_bits(run, learn(rounds=2))
    assert len(learn(rounds=9, checkpoint=tmp_path).history) == 9


HOLD = """
import sys, time
from pathlib import Path
from fedstride.training.checkpoint import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_lock_is_released_with_its_process(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = CliRunner().invoke(app, ["run", "--rounds", "1", "--out", str(tmp_path)])
        assert done.exit_code == 2
        assert "another run is writing to this folder" in done.output
        assert list(tmp_path.iterdir()) == []
        holder.kill()
        holder.wait()
    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_write_are_removed(tmp_path):
    (tmp_path / "checkpoint-000001.safetensors.new").write_bytes(b"half")
    learn(rounds=1, checkpoint=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000001.safetensors"]


def test_runs_that_start_together_get_separate_folders(tmp_path, monkeypatch):
    from fedstride.app.cli.run import _new_folder

    monkeypatch.chdir(tmp_path)
    names = set()
    for _ in range(4):
        folder = _new_folder("digits-auto")
        folder.mkdir(parents=True)
        names.add(folder.name)
    assert len(names) == 4


def test_no_file_can_run_code():
    """No part of the package reads or writes pickle."""
    forbidden = ("import pickle", "torch.load(", "torch.save(", "allow_pickle=True", "import dill", "import joblib")
    sources = (ROOT / "src").rglob("*.py")
    assert not [(path.name, word) for path in sources for word in forbidden if word in path.read_text()]
