"""A terminal of a given width, in which a program runs: what it shows, as a person sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence

import pyte

LINES = 40


def screens(command: Sequence[str], columns: int, **env: str) -> tuple[int, list[list[str]]]:
    """Run a command in a terminal; return its exit code and every screen that it showed, as lines."""
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**clean, "TERM": "xterm-256color", **env}
    )
    os.close(child)
    screen = pyte.Screen(columns, LINES)
    stream = pyte.ByteStream(screen)
    seen: list[list[str]] = []
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        stream.feed(data)
        shown = [line.rstrip() for line in screen.display]
        if not seen or shown != seen[-1]:
            seen.append(shown)
    os.close(main)
    return process.wait(), seen
