"""A kit for tests: SuperLink and SuperNodes on this machine, from a folder that `fedstride deploy init` wrote."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstride.app import deploy
from fedstride.research.bench.launch import end_all, environment, everyone, free_port

BIN = Path(sys.executable).parent
HEARTBEAT = """import flwr.common.constant as constant
constant.HEARTBEAT_DEFAULT_INTERVAL = {seconds}
"""


class Deployment:
    """`with Deployment(tmp_path) as it:` starts "superlink", "node-0", "node-1", ...; all of them end with the block.

    `config(number)` is what a node is started with. Flower has no option for heartbeats (30 s; a dead node is online for
    two of them, and its key refused that long); here they come every `heartbeat` seconds, of which 10 is the least.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        config: Callable[[int], str] = "partition-id={}".format,
        heartbeat: int = 10,
    ) -> None:
        self.folder, self.nodes, self.config = folder / "deployment", nodes, config
        self.port = free_port()
        self.server = self.folder / "server"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, list[Path]] = {}
        self._tag = f"FEDSTRIDE_TEST={uuid.uuid4().hex}"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(HEARTBEAT.format(seconds=heartbeat))
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("FLWR_")},
            **{"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
            **{"PYTHONPATH": os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])},
            **{"OMP_NUM_THREADS": "1", "COLUMNS": "200", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"},
            **{
                "FLWR_HOME": str(self.server / "flower"),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
            },
        }
        deploy.init(self.folder, nodes, ["127.0.0.1"], self.port)

    def __enter__(self) -> Deployment:
        try:
            self.start("superlink")
            for number in range(self.nodes):
                self.register(number)
            for number in range(self.nodes):
                self.launch_node(number)
            for number in range(self.nodes):
                self.start(f"node-{number}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this deployment, by its id."""
        end_all(self._tag)
        for process in self.processes.values():
            process.wait()

    # processes

    def start(self, name: str, timeout: float = 200) -> None:
        """Start it unless it runs, and wait until it is up; a node that is refused is started again."""
        end = time.monotonic() + timeout
        while True:
            if not self.alive(name):
                self.launch_superlink() if name == "superlink" else self.launch_node(int(name.removeprefix("node-")))
            while self.alive(name) and time.monotonic() < end:
                if self._up(name):
                    return
                time.sleep(0.1)
            if name == "superlink" or time.monotonic() > end:
                raise AssertionError(f"{name} did not start in {timeout} s:\n{self.output(name)}")

    def launch_superlink(self) -> None:
        self.launch("superlink", [str(self.server / "start.sh")])

    def launch_node(self, number: int) -> None:
        script = self.folder / "nodes" / f"node-{number}" / "start.sh"
        self.launch(f"node-{number}", [str(script), self.config(number)], PORT=str(free_port()))

    def launch(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process of this deployment without waiting for anything; `output(name)` is what it prints."""
        tag = f"{self._tag}-{name}-"
        environment = self.environment | environment | dict([tag.split("=")])
        logs = self.logs.setdefault(name, [])
        logs.append(self.folder / f"{name}.{len(logs)}.log")
        with logs[-1].open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.server, start_new_session=True
            )
        return self.processes[name]

    def alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def kill(self, name: str) -> None:
        """kill -9, with all that it started: as if its machine lost power."""
        end_all(f"{self._tag}-{name}-")
        self.processes[name].wait()

    def stop(self, name: str, timeout: float = 120) -> None:
        """SIGTERM, as systemd does it."""
        self.processes[name].terminate()
        self.processes[name].wait(timeout)
        end_all(f"{self._tag}-{name}-")

    def descendants(self, name: str) -> set[int]:
        """The processes that it started, and those that they started, even if it has ended."""
        tag, own = f"{self._tag}-{name}-".encode(), self.processes[name].pid
        return {pid for pid in everyone() if tag in environment(pid)} - {own}

    def output(self, name: str) -> str:
        """What the process printed since it was started last; `logs[name]` are the files of all its starts."""
        return self.logs[name][-1].read_text(errors="replace")

    def _up(self, name: str) -> bool:
        if name != "superlink":
            return "SuperNode ID:" in self.output(name)
        try:
            trusted = ssl.create_default_context(cafile=self.server / "ca.crt")
            with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=trusted, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # what an operator does

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The answer of a flwr command; an AssertionError if it says that it failed."""
        command = [str(BIN / "flwr"), *arguments, "--format", "json"]
        done = subprocess.run(
            command, env=self.environment, cwd=self.server, capture_output=True, text=True, timeout=120
        )
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
        assert answer.get("success"), done.stdout + done.stderr
        return answer

    def register(self, number: int) -> str:
        return str(self.flwr("supernode", "register", f"keys/node-{number}.pub", "--name", f"node-{number}")["node-id"])

    def online(self) -> int:
        return sum(node["status"] == "online" for node in self.flwr("supernode", "list")["nodes"])

    def run(self, app: Path | str = "app", **settings: float | str | bool) -> str:
        """Start a run with these settings of [tool.flwr.app.config] (`batch_size` for `batch-size`); its id."""
        given = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in settings.items())
        return str(self.flwr("run", str(app), *(["--run-config", given] if given else []))["run-id"])

    def status(self, run: str) -> str:
        """Such as "running", "finished:completed", "finished:failed: why"."""
        (found,) = self.flwr("ls", "--run-id", run)["runs"]
        details = found["status-details"]
        return found["status"] if details in ("", "N/A") else f"{found['status']}: {details}"

    def wait(self, run: str, timeout: float = 300) -> str:
        """The status that the run ends with."""
        end = time.monotonic() + timeout
        while not (status := self.status(run)).startswith("finished"):
            assert time.monotonic() < end, f"{status} after {timeout} s:\n{self.log(run)}"
            for serving, seconds in (
                (False, 3),
                (True, 60),
            ):  # a question costs seconds of a core, a look at processes nothing
                soon = time.monotonic() + seconds
                while self._serving() is serving and time.monotonic() < soon:
                    time.sleep(0.1)
        return status

    def _serving(self) -> bool:
        """Whether a ServerApp runs."""
        return any(b"flwr-serverapp" in command(pid) for pid in self.descendants("superlink"))

    def log(self, run: str) -> str:
        """What the server's side of a run printed."""
        command = [str(BIN / "flwr"), "log", run, "--show"]
        done = subprocess.run(
            command, env=self.environment, cwd=self.server, capture_output=True, text=True, timeout=120
        )
        return done.stdout + done.stderr


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended
        return b""


def until(true: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait for it, looking ten times a second."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(0.1)
