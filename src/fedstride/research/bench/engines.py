"""The engines that are compared. Each runs in its own process and answers requests, so that repeats can alternate."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, cast

from fedstride.core.errors import FedstrideError

PROGRAMS = Path(__file__).parent / "peers"
PATIENCE = 300.0  # seconds to wait for one answer
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # of the processes that torchrun starts


class EngineFailed(FedstrideError):
    """An engine ended unexpectedly, or did not answer."""


@dataclass(frozen=True)
class Program:
    """A program that is compared."""

    name: str
    command: tuple[str, ...]  # the folder of the workload is appended
    variables: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float64"  # type in which its results are checked
    bound: float = 1e-9  # largest relative difference allowed
    peer: bool = False

    @property
    def missing(self) -> bool:
        return not Path(self.command[0]).exists()


def _peer(name: str, launcher: tuple[str, ...] = (), **more: Any) -> Program:
    python = str(Path(".peers").absolute() / name / "bin" / "python")
    return Program(name, (python, *launcher, str(PROGRAMS / f"run_{name}.py")), peer=True, **more)


BY_HAND = Program("by hand", (sys.executable, str(PROGRAMS / "by_hand.py")))
ONE_PER_CORE = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(os.cpu_count()))
FEDSTRIDE = Program("fedstride", (sys.executable, str(PROGRAMS / "run_fedstride.py")))
TORCHRUN = Program(
    "torchrun",
    (sys.executable, *ONE_PER_CORE, str(PROGRAMS / "run_fedstride.py")),
    variables=LOOPBACK,
)


def engines() -> dict[str, Program]:
    """Return the engines by name; `make bench-peers` installs the peers under the current folder."""
    # pfl's updates are float32, in which two correct ways to train a CNN differ by 1e-2 of the distance trained.
    known = (
        BY_HAND,
        FEDSTRIDE,
        TORCHRUN,
        _peer("pfl", ONE_PER_CORE, variables={"OMP_NUM_THREADS": "1"}, dtype="float32", bound=3e-2),
        _peer("flower", variables={"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}),
        _peer("fedjax", variables={"JAX_PLATFORMS": "cpu"}),
    )
    return {e.name: e for e in known}


class RunningProgram:
    """A running engine on a folder, to be used as a context manager that ends its processes."""

    def __init__(self, engine: Program, folder: Path) -> None:
        self.engine, self.log = engine, folder / f"{engine.name}.log"
        env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        paths = [str(PROGRAMS)] if engine.peer else [str(PROGRAMS), *sys.path]
        env |= {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "FLWR_HOME": str(folder / "flwr"),
            **engine.variables,
        }
        if len(str(folder)) < 40:  # the paths of Ray's sockets must be short
            env["RAY_TMPDIR"] = str(folder)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*engine.command, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=folder,
                text=True,
                start_new_session=True,  # only the benchmark receives Ctrl-C, and ends its workers
            )

    def __enter__(self) -> RunningProgram:
        return self

    def __exit__(self, *_: object) -> None:
        family = _family(self.process.pid)
        with suppress(OSError):
            cast(IO[str], self.process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        for pid, born in family.items():
            if _stat(pid)[19] == born:  # the process id may have been reused
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
        self.process.kill()
        self.process.wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        asked, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=asked, flush=True)
        ready, _, _ = select.select([answers], [], [], PATIENCE)
        line = answers.readline() if ready else ""
        if not line:
            why = "has ended" if ready else f"did not answer within {PATIENCE:.0f} s"
            lines = [text.strip()[:200] for text in self.log.read_text(errors="replace").splitlines()]
            errors = [text for text in lines if "Error: " in text][:1] or [text for text in lines if text][-1:]
            raise EngineFailed(": ".join([f"{self.engine.name} {why}", *errors]))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def peak(self) -> int | None:
        """Return the sum of the peak memory of its processes in bytes; None if the system does not report it."""
        peaks = [_peak(pid) for pid in _family(self.process.pid)]
        return sum(peaks) or None

    def cpu_seconds(self) -> dict[int, float]:
        """Return the CPU seconds of each process."""
        used = {pid: _stat(pid)[11:13] for pid in _family(self.process.pid)}
        return {pid: (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") for pid, (user, system) in used.items()}


def cpu_seconds() -> float | None:
    """Return the CPU seconds of all processes, including stolen time; None if the system does not report it."""
    with suppress(OSError):
        user, nice, system, _, _, *interrupts_and_stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: 1 is the parent, 11 and 12 the CPU time, 19 the start time."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["0"] * 20


def _family(root: int) -> dict[int, str]:
    """Return the start time of a process and of all its descendants, by process id."""
    everyone = {int(p.name): _stat(int(p.name)) for p in Path("/proc").glob("[0-9]*")}
    found = {root: everyone.get(root, _stat(root))[19]}
    while more := {pid: s[19] for pid, s in everyone.items() if int(s[1]) in found and pid not in found}:
        found |= more
    return found


def _peak(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return 0
