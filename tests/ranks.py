"""The ranks of a distributed run as forks of one process: python -m tests.ranks PROCESSES MODULE [ARGUMENT ...].

torchrun sets the same variables, but imports torch for itself and once for every rank.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import subprocess
import sys

from fedstride.research.bench.launch import free_port


def ranks(processes: int, module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a module as every rank; the exit code is that of the first rank that fails."""
    command = [sys.executable, "-m", "tests.ranks", str(processes), module, *map(str, arguments)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def start(rank: int, module: str) -> int:
    """Fork a rank and return its process id."""
    if child := os.fork():
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    runpy.run_module(module, run_name="__main__")
    sys.exit(0)


def main(processes: str, module: str, *arguments: str) -> int:
    for name in (module, "fedstride.training.train"):  # and with them torch, before the forks
        importlib.import_module(name)
    sys.argv = [module, *arguments]
    os.environ |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "TORCHELASTIC_RUN_ID": "none"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = {start(rank, module) for rank in range(int(processes))}
    while running:
        child, status = os.wait()
        running.remove(child)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
