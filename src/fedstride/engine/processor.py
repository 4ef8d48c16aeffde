"""Test whether bfloat16 works on this processor, in a child process, because a failure kills the process.

Some virtual machines announce instructions (AMX) that they do not allow. oneDNN then selects kernels that end with
"Illegal instruction"; limited to a lower instruction set (ONEDNN_MAX_CPU_ISA) it selects others. The child process runs
this file as a program.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
from functools import cache

LIMIT = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads this variable once, at its first use in a process
LOWER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2", "SSE41")  # tried in this order
PATIENCE = 120.0  # seconds; importing torch from a slow disk takes long
log = logging.getLogger("fedstride")


class Unsupported(Exception):
    """bfloat16 does not work on this machine; the message explains why and what to do."""


def bfloat16_limit() -> str | None:
    """Make sure that bfloat16 works on the CPU in this process.

    Returns:
        None if it works without a limit, else the instruction set that oneDNN is limited to from now on.

    Raises:
        Unsupported: if it works with no instruction set, or if oneDNN was used before its limit could be set.
    """
    limit, problem = outcome()
    if problem:
        raise Unsupported(problem)
    return limit


@cache
def outcome() -> tuple[str | None, str]:
    """Return the limit, and why bfloat16 does not work ("" if it does); tried once per process."""
    first = _child(None)
    if first is None:
        return None, ""
    for limit in LOWER:
        if _child(limit) is None:
            os.environ[LIMIT] = limit  # child processes inherit it
            if _fork() is not None:
                return None, (
                    f"bfloat16 {first} on this processor unless {LIMIT}={limit} is set, and this process has used "
                    f"oneDNN already. Set it before Python starts: {LIMIT}={limit} python ..."
                )
            log.warning("bfloat16 %s on this processor; oneDNN is now limited to %s, which works", first, limit)
            return limit, ""
    return None, f"bfloat16 {first} on this processor, also with {LIMIT} set to {', '.join(LOWER)}."


def _child(limit: str | None) -> str | None:
    """Return None if bfloat16 works in a new process, else how that process ended."""
    environment = os.environ if limit is None else {**os.environ, LIMIT: limit}
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"hangs (for {PATIENCE:g} s)"
    return _ending(done.returncode, done.stderr.strip().rpartition("\n")[2])


def _fork() -> str | None:
    """Return None if bfloat16 works in a copy of this process, with oneDNN's settings so far, else how that ended."""
    if not hasattr(os, "fork"):
        return "cannot be tried"
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the child may crash: print no traceback
        try:
            exercise()
            os._exit(0)
        except BaseException:
            os._exit(1)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return _ending(os.waitstatus_to_exitcode(status), "")
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


def _ending(code: int, message: str) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"kills a process ({signal.strsignal(-code) or f'signal {-code}'})"
    return f"fails ({message or f'exit code {code}'})"


def exercise() -> None:
    """Run the kernels that models use, forward and backward."""
    import torch
    from torch import nn

    torch.set_num_threads(1)  # a forked copy has no other threads
    with torch.autocast("cpu", torch.bfloat16):
        for module, shape in (
            (nn.Linear(4, 3), (8, 4)),
            (nn.Linear(128, 64), (64, 128)),
            (nn.Conv2d(3, 16, 3), (4, 3, 12, 12)),
            (nn.LSTM(16, 32), (5, 4, 16)),
        ):
            output = module(torch.ones(shape))
            torch.autograd.backward((output[0] if isinstance(output, tuple) else output).float().sum())
        rows = torch.ones(3, 16, 32, requires_grad=True)
        torch.autograd.backward(torch.bmm(rows, rows.transpose(1, 2)).float().sum())


if __name__ == "__main__":
    exercise()
