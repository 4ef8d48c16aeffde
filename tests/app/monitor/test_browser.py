"""The dashboard in a real browser: it shows the figures of a run, light and dark, and reads labels as text only."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch
from PIL import Image

import fedstride as fs
from tests.app.monitor.test_figures import ROW
from tests.app.report.test_browser import BROWSER, DARK, QUIET

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]
FLAGS = [flag for flag in QUIET if not flag.startswith("--proxy")]  # no requests but to this machine: see the CSP


@pytest.fixture
def monitor():
    made = fs.loggers.Prometheus(port=0)
    yield made
    made.close()


def opened(monitor, profile, *flags: str) -> str:
    """The page as the browser leaves it; any word in the console is a failure."""
    url = f"http://127.0.0.1:{monitor.port}/"
    command = [str(BROWSER), *FLAGS, "--no-proxy-server", f"--user-data-dir={profile}", *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return re.sub(r"<script>.*</script>", "", done.stdout, flags=re.S)


def rounds(monitor, *rows: dict) -> None:
    for i, row in enumerate(rows):
        phases = {"clients": 1.5, "server": 0.5}
        monitor(fs.Event(i + 1, torch.zeros(1), {**ROW, "round": i + 1, **row}, seconds=phases))


def test_the_figures_of_a_run_are_shown(monitor, tmp_path):
    row = {"train_loss": 0.51234, "test_accuracy": 0.875, "participants": 3, "bytes_up": 2_500_000, "lost": 2}
    rounds(monitor, {}, {**row, "refused": {"late": 2}})
    seen = opened(monitor, tmp_path / "profile")
    for title, value in (
        ("Round", "2"),
        ("Training loss", "0.5123"),
        ("Test accuracy", "87.5 %"),
        ("Participants", "3"),
    ):
        assert f"<dt>{title}</dt><dd>{value}</dd>" in seen
    for name, value in (("late", "2"), ("up", "2.5 MB"), ("clients", "1.5")):
        assert f"<td>{name}</td><td>{value}</td>" in seen
    assert f"version {fs.__version__}; the last round ended" in seen and 'class="bad"' not in seen


def test_labels_are_text(monitor, tmp_path):
    evil = '<img src=x onerror=alert(1)>"\\'
    rounds(monitor, {evil: 7.0, "refused": {evil: 1}})
    seen = opened(monitor, tmp_path / "profile")
    assert "<img" not in seen and seen.count('&lt;img src=x onerror=alert(1)&gt;"\\</td>') == 2


class Growing(fs.loggers.Prometheus):
    """Finishes a round whenever it is asked."""

    asked = 0

    @property
    def text(self) -> str:
        self.asked += 1
        return f"fedstride_round {self.asked}\nfedstride_train_loss {1 / self.asked}\n"

    @text.setter
    def text(self, value: str) -> None:
        pass


def test_curves_grow_while_the_page_is_open(tmp_path):
    growing = Growing(port=0)
    seen = opened(growing, tmp_path / "profile", "--virtual-time-budget=30000")
    growing.close()
    (points,) = re.findall(r'<polyline points="([^"]*)"', seen)
    assert len(points.split()) >= 3
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights == sorted(heights)  # the loss falls, and the y axis points down


def test_dark_and_light_have_their_own_colours(monitor, tmp_path):
    shots = {}
    for name, flags in (("light", ()), ("dark", (DARK,))):
        path = tmp_path / f"{name}.png"
        command = [flag for flag in FLAGS if flag != "--dump-dom"]
        url = f"http://127.0.0.1:{monitor.port}/"
        more = ["--no-proxy-server", f"--user-data-dir={tmp_path / name}", f"--screenshot={path}", *flags, url]
        subprocess.run([str(BROWSER), *command, *more], capture_output=True, timeout=120, check=True)
        shots[name] = Image.open(path).convert("RGB").getpixel((2, 2))
    assert shots == {"light": (255, 255, 255), "dark": (0x12, 0x14, 0x16)}
