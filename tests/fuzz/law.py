"""The law, and what stands for a user: an input, and what is done with it."""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from fedstride.core.errors import FedstrideError

SECONDS, BYTES = 60, 4 * 2**30  # for one input: far more than any needs, far less than a stranger can ask for


@dataclass(frozen=True)
class Target:
    """What is fed, and to whom; `weight` is its share of the inputs."""

    name: str
    inputs: SearchStrategy[Any]
    use: Callable[[Any], object]
    weight: int = 1


class Endless(BaseException):
    """Not an Exception: code that forgives any exception must not forgive this one."""


def judge(target: Target, value: Any) -> str:
    """ "result" or "error"; whatever else comes out is the library's mistake."""
    try:
        with _bounded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.use(value)
    except FedstrideError as error:
        assert len(str(error).split()) >= 3, f"no clear message: {error!r}"
        return "error"
    except Endless:
        raise AssertionError(f"{target.name}: no answer after {SECONDS} s") from None
    return "result"


@contextmanager
def _bounded() -> Iterator[None]:
    """A hang becomes an error, and so does memory without bounds."""

    def stop(*_: object) -> None:
        raise Endless

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
