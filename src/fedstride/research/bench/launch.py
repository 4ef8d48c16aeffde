"""Launch multi-process engines for benchmarks: torchrun, a Flower simulation, a Flower deployment.

All of them use the loopback interface and free ports. `job.json` in the folder of a process describes its job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstride.research.bench.engines import LOOPBACK, EngineFailed

if TYPE_CHECKING:  # Flower's nodes import this file for every message
    from fedstride.research.bench.speed import Say

JOB, ENDED, APP = "job.json", "ended", "engines_app"
PATIENCE = 180.0  # seconds until a server must have started
LONGEST = 7200.0  # seconds until a job must have ended
LOOK = 30.0  # seconds between status queries of a deployed run; each costs a second of a core
QUIET = {
    **{"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"},  # the first restricts Ray to loopback
    **{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
}
PYPROJECT = f"""[project]
name = "{APP.replace("_", "-")}"
version = "1.0.0"
description = "Measures engines."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "{APP}:server"
clientapp = "{APP}:client"

[tool.flwr.app.config]
"""
PROGRAM = '''"""A Flower app that trains with fedstride, and a minimal one whose clients return the arrays that they receive."""

import torch  # as in every training app; fedstride is imported only where it is used, not for the minimal app
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    from fedstride.research.bench.federated import serve

    serve({folder!r}, grid)


@client.train("echo")
def echo(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    return Message(RecordDict({{"arrays": ArrayRecord(arrays)}}), reply_to=message)


def work(message, context):
    from fedstride.research.bench.federated import client

    return client(message, context)


for register in (client.query("about"), client.train("gradients"), client.train("updates")):
    register(work)
'''


def missing(*packages: str) -> str:
    """Return a note if a required package is not installed, else an empty string."""
    if all(importlib.util.find_spec(name) for name in packages):
        return ""
    return "not installed (pip install 'fedstride[flower]'" + (" 'flwr[simulation]')" if "ray" in packages else ")")


class Launched:
    """Processes by name, to be used as a context manager that ends them and all their descendants."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, f"FEDSTRIDE_BENCH={uuid.uuid4().hex}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.runs: dict[str, tuple[str, float]] = {}  # Flower deployments: run id, time of the last query

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self.tag)
        for process in self.processes.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def place(self, name: str, job: Mapping[str, Any]) -> Path:
        """Create the folder of an engine, with its job."""
        place = self.folder / name
        place.mkdir(parents=True)
        (place / JOB).write_text(json.dumps(job))
        return place

    def python(self, name: str, module: str, job: Mapping[str, Any]) -> None:
        self._start(name, [sys.executable, "-m", module, str(self.place(name, job))], LOOPBACK)

    def torchrun(self, name: str, module: str, job: Mapping[str, Any], processes: int) -> None:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
        command = [*launch, f"--nproc-per-node={processes}", "-m", module, str(self.place(name, job))]
        self._start(name, command, LOOPBACK)

    def simulation(self, name: str, job: Mapping[str, Any], nodes: int) -> None:
        place = self.place(name, job)
        self._app(place)
        variables = self._flower(place)
        if len(str(place)) < 40:  # the paths of Ray's sockets must be short
            variables["RAY_TMPDIR"] = str(place)
        self._start(name, [sys.executable, "-m", "fedstride.research.bench.federated", str(nodes)], variables)

    def deployment(self, name: str, job: Mapping[str, Any], nodes: int, lasting: bool = True) -> None:
        """Start a SuperLink, SuperNodes (Flower's own unless lasting) and a run; without TLS, on loopback."""
        place = self.place(name, job)
        self._app(place)
        variables, port, programs = self._flower(place), free_port(), Path(sys.executable).parent
        address, home = f"127.0.0.1:{port}", place / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        server = [str(programs / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        self._start(name, [*server, "--disable-runtime-dependency-installation"], variables)
        end = time.monotonic() + PATIENCE
        while not _answers(f"http://{address}/health"):
            self.check(name)
            if time.monotonic() > end:
                raise EngineFailed(f"{name}: the SuperLink did not start in {PATIENCE:g} s{self._said(name)}")
            time.sleep(0.1)
        ours, theirs = [sys.executable, "-P", "-m", "fedstride.app.supernode"], [str(programs / "flower-supernode")]
        node = [*(ours if lasting else theirs), "--insecure", "--superlink", address, "--host", "127.0.0.1"]
        for i in range(nodes):
            own = ["--port", str(free_port()), "--node-config", f"partition-id={i}"]
            self._start(f"{name}-node-{i}", [*node, *own], variables, place)
        self.runs[name] = self._ask(place, "run", str(place))["run-id"], time.monotonic()

    def wait(self, name: str, say: Say = lambda text: None, expected: Sequence[Path] = (), what: str = "") -> None:
        """Wait until an engine has finished its job, and report how many of the expected files exist."""
        end, said = time.monotonic() + LONGEST, -1
        while True:
            over, there = self.over(name), sum(path.exists() for path in expected)
            if there != said:
                said = there
                say(f"{name}: {there} of {len(expected)} {what}")
            if over:
                return
            if time.monotonic() > end:
                raise EngineFailed(f"{name} did not end within {LONGEST:g} s{self._said(name)}")
            time.sleep(0.2)

    def over(self, name: str) -> bool:
        """Whether an engine has finished its job; raises EngineFailed if it failed."""
        place = self.folder / name
        if (place / ENDED).exists():
            why = (place / ENDED).read_text().strip()
            if why:
                raise EngineFailed(f"{name}: {why.splitlines()[-1]}")
            return True
        if name not in self.runs:
            return self.check(name) == 0
        for process in self.processes:
            if process.startswith(name) and self.check(process) == 0:
                raise EngineFailed(f"{process} has ended{self._said(process)}")
        run, looked = self.runs[name]
        if time.monotonic() > looked + LOOK:
            self.runs[name] = run, time.monotonic()
            (found,) = self._ask(place, "ls", "--run-id", run)["runs"]
            if found["status"].startswith("finished") and not (place / ENDED).exists():
                raise EngineFailed(f"{name}: Flower says {found['status']}: {found['status-details']}")
        return False

    def check(self, name: str) -> int | None:
        """Return the exit code of a process, None while it runs; raises EngineFailed if it is not 0."""
        code = self.processes[name].poll()
        if code:
            raise EngineFailed(f"{name} ended with code {code}{self._said(name)}")
        return code

    def _start(self, name: str, command: list[str], variables: Mapping[str, str], place: Path | None = None) -> None:
        key, _, value = self.tag.partition("=")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "TORCHELASTIC_"))}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env={**env, **variables, key: value},
                cwd=place or self.folder / name,
                stdout=log,
                stderr=log,
                start_new_session=True,  # only the benchmark receives Ctrl-C, and ends them
            )

    def _app(self, place: Path) -> None:
        (place / "pyproject.toml").write_text(PYPROJECT)
        (place / f"{APP}.py").write_text(PROGRAM.format(folder=str(place)))

    def _flower(self, place: Path) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
        return {**LOOPBACK, **QUIET, "FLWR_HOME": str(place / "home"), "PYTHONPATH": paths, "COLUMNS": "200"} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        }

    def _ask(self, place: Path, *arguments: str) -> dict[str, Any]:
        """Return the answer of a flwr command, whose exit code is not meaningful."""
        command = [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"]
        env = {**os.environ, **self._flower(place)}
        done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=PATIENCE)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
            if answer["success"]:
                return answer
        except (ValueError, KeyError):
            pass
        raise EngineFailed(f"flwr {arguments[0]} failed: {(done.stdout + done.stderr).strip()[-300:]}")

    def _said(self, name: str) -> str:
        """Return the first error that a process printed, else its last line."""
        lines = [text.strip()[:300] for text in (self.folder / f"{name}.log").read_text(errors="replace").splitlines()]
        told = [text for text in lines if "Error: " in text][:1] or [text for text in lines if text][-1:]
        return "".join(f": {text}" for text in told)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def end_all(tag: str) -> None:
    """Kill every process with this tag in its environment, because Flower and Ray use their own process groups."""
    while found := [pid for pid in everyone() if tag.encode() in environment(pid)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def everyone() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended, or belongs to another user
        return b""
