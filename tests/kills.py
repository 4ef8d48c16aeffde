"""Sudden deaths: of torchrun's processes, of a SuperLink in the middle of a run, of a SuperNode in the middle of a round.

python -m tests.kills --processes 20 --superlinks 20 --nodes 20
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedstride as fs
from fedstride.core.files import read_tensors
from fedstride.training import checkpoint
from fedstride.training.checkpoint import newest
from fedstride.training.history import Row
from tests import record
from tests.deployment import Deployment, until
from tests.engine.many import here, long
from tests.record import Figures

LAUNCH = [sys.executable, "-m", "torch.distributed.run"]
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
ROUNDS = 50  # of torchrun per death; more than there are in a life
LIVES, TORCHRUN = (
    20,
    ("scaffold", "auto", "fedlin", "fedexp", "private"),
)  # deaths in a run, and what is trained in turn


def torchrun(processes: int, *command: object, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    given = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    whole = [*LAUNCH, *given, *map(str, command)]
    return subprocess.run(whole, env={**os.environ, **LOOPBACK}, capture_output=True, text=True, timeout=3000)


def written(folder: Path, processes: int) -> list[dict[str, dict[str, str]]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


def processes(folder: Path, deaths: int, algorithm: str = "scaffold") -> float:
    """Processes die, one at a time, at random moments; torchrun starts all of them again. The difference: 0."""
    rounds = ROUNDS * (deaths + 1)
    chosen = (f"--algorithm={algorithm}", f"--rounds={rounds}", f"--kills={deaths}")
    done = torchrun(2, "-m", "tests.engine.many", folder, *chosen, restarts=deaths + 1)
    assert done.returncode == 0, done.stderr
    assert len((folder / "deaths").read_text().splitlines()) == deaths
    assert written(folder, 2) == [here(long(algorithm, rounds))] * 2
    return 0.0


def federation(folder: Path, superlinks: int, nodes: int) -> float:
    """So many deaths of the SuperLink, then of nodes; the relative difference to a run without a network after the first."""
    settings = {"clients": 3, "epochs": 1, "batch_size": 64, "seed": 5, "hidden": 16}
    with Deployment(folder, nodes=3) as it:
        task, out = it.server / "app" / "hospital" / "task.py", it.server / "runs" / "it"
        text = task.read_text().replace("torch.float32", "torch.float64")
        task.write_text(text.replace("nn.Linear(width, 2))", "nn.Linear(width, 2)).double()"))

        def history() -> list[Row]:
            return newest(out, lambda path: checkpoint.history(path, read_tensors(path)[0])) or []

        def begin(rounds: int) -> str:
            return it.run(algorithm="scaffold(lr=0.05)", rounds=rounds, out="runs/it", **settings)

        last = 4 * superlinks + 4  # a round may take half a second: none of the runs ends before its death
        for death in range(superlinks):
            seen = len(history())
            begin(last)
            until(lambda seen=seen: len(history()) >= seen + 2, 300, f"two rounds after {death} deaths")
            assert len(history()) < last
            it.kill("superlink")  # in the middle of the next
            print(f"SuperLink: death {death + 1}", flush=True)
            it.start("superlink")
        assert it.wait(begin(last), 3000) == "finished:completed"
        found, expected = fs.load(out), _alone(task.parent.parent, settings, last)
        assert [row["lost"] for row in found.history] == [0] * last
        difference = float((found.x - expected.x).norm() / expected.x.norm())
        assert difference <= 1e-10, difference
        begin(100_000)
        for death in range(nodes):
            seen = len(history())
            until(lambda seen=seen: len(history()) > seen, 300, "a round")
            name = f"node-{death % 3}"
            it.kill(name)  # in the middle of the next
            until(lambda: history()[-1]["lost"] == 1, 300, f"a round without {name}")
            it.start(name)
            until(lambda: history()[-1]["lost"] == 0, 300, f"a round with {name} again")
            print(f"{name}: death {death + 1}", flush=True)
        rows = history()
    assert rows[:last] == list(found.history)
    assert {reason for row in rows for reason in row["refused"]} <= {"offline", "crashed", "no answer"}
    assert rows[-1]["test_accuracy"] > 0.9
    return difference


def _alone(app: Path, settings: dict[str, int], rounds: int) -> fs.Run:
    """The same run, of the same app, without any network."""
    sys.path.insert(0, str(app))
    try:
        task = importlib.import_module("hospital.task")
    finally:
        sys.path.remove(str(app))
        for name in ("hospital", "hospital.task"):
            sys.modules.pop(name, None)
    torch.manual_seed(settings["seed"])
    return fs.train(
        task.make_model(settings),
        "cross_entropy",
        [task.load_data(settings, {"partition-id": i}) for i in range(3)],
        fs.recipes.scaffold(lr=0.05),
        rounds=rounds,
        test=task.load_test(settings),
        normalise=True,
        **{name: settings[name] for name in ("epochs", "batch_size", "seed")},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=0, help=f"deaths of torchrun's, {LIVES} in each run")
    parser.add_argument("--superlinks", type=int, default=0, help="deaths of a server in the middle of a run")
    parser.add_argument("--nodes", type=int, default=0, help="deaths of nodes in the middle of a round")
    parser.add_argument("--json", type=Path, help="add the figures to this file, as 'kills'")
    parser.add_argument("--more", action="store_true", help="add them to those in the file")
    asked = parser.parse_args()
    found = record.read(asked.json, "kills") if asked.more else {}
    for number in range(-(-asked.processes // LIVES)):
        deaths, algorithm = min(LIVES, asked.processes - LIVES * number), TORCHRUN[number % len(TORCHRUN)]
        with TemporaryDirectory() as folder:
            act = partial(processes, Path(folder), deaths, algorithm)
            found = _kept(asked, found, act, processes=deaths)
        print(f"torchrun, {algorithm}: {deaths} deaths, no bit different", flush=True)
    if asked.superlinks or asked.nodes:
        both = {"superlinks": asked.superlinks, "nodes": asked.nodes}
        with TemporaryDirectory() as folder:
            found = _kept(asked, found, partial(federation, Path(folder), **both), **both)
        print(f"Flower: {both}, difference {found['difference']:.2g}", flush=True)


def _kept(asked: argparse.Namespace, before: Figures, act: Callable[[], float], **deaths: int) -> Figures:
    """What was known, and what came of the act: an error if a bit differs that must not."""
    start = time.monotonic()
    difference = max(before.pop("difference", 0.0), act())
    figures = {**record.about(), "seconds": round(time.monotonic() - start), **deaths, "bits_different": 0}
    found = {**record.added(before, figures), "difference": difference}
    if asked.json:
        record.write(asked.json, "kills", found)
    return found


if __name__ == "__main__":
    main()
