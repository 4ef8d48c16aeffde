"""The page in a real browser: charts are drawn, nothing is asked of the network, the console stays silent."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedstride.app.report import theme, write
from tests.app.report.folders import CLIENTS, Page, comparison_folder, rows_of, run_folder

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0"),
    *("--proxy-server=127.0.0.1:1", "--virtual-time-budget=5000", "--dump-dom"),  # nobody listens on port 1
)
DARK = "--blink-settings=preferredColorScheme=0"


def opened(path: Path, profile: Path, *flags: str) -> str:
    """The page as the browser leaves it; any word in the console is a failure."""
    command = [str(BROWSER), *QUIET, f"--user-data-dir={profile}", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console
    body = done.stdout
    return body[: body.index('<script type="application/json"')] + body[body.rindex("</script>") :]


@pytest.fixture(scope="module")
def rows():
    return rows_of()


def test_the_charts_of_a_run_are_drawn(tmp_path, rows):
    path = write(run_folder(tmp_path / "run", rows))
    seen = opened(path, tmp_path / "profile")
    for key in Page(path).data["charts"]:
        drawn = seen[seen.index(f'id="chart-{key}"') :]
        assert "<svg" in drawn[: drawn.index("</figure>")], key
    assert seen.count('class="js-line"') >= 6
    assert seen.count(">rounds</text>") == 5
    assert theme.colour(0) in seen


def test_a_dark_page_has_dark_charts(tmp_path, rows):
    seen = opened(write(run_folder(tmp_path / "run", rows)), tmp_path / "profile", DARK)
    light, dark = (f'stroke="{colour}"' for colour in theme.SERIES[0])
    assert dark in seen and light not in seen


def test_a_hostile_comparison_is_drawn_and_harmless(tmp_path, rows):
    evil = '</script><script>alert(1)</script><img src=x onerror=alert(2)><a href="https://example.org">a</a>'
    path = write(comparison_folder(tmp_path / "some", {evil: [rows, rows[:3]], "constructor": [rows]}))
    seen = opened(path, tmp_path / "profile", DARK)
    assert seen.count('class="js-line"') == 6 * 4  # six charts: the server step never changes
    assert "<a " not in seen and "<img" not in seen and "<script>" not in seen
    assert "&lt;img src=x onerror=alert(2)&gt;" in seen  # shown as it is


def asked(path: Path, folder: Path, program: str) -> list[str]:
    """What a program finds in the page, shown on a phone; it reports words with say(...)."""
    probe = folder / "probe.html"
    probe.write_text(
        f'<iframe src="{path.as_uri()}" style="width: 380px; height: 3000px"></iframe><p></p><script>'
        'const say = (...words) => { document.querySelector("p").textContent += words.join(" ") + " "; };'
        "onload = () => setTimeout(() => { const page = frames[0].document, all = (s) => [...page.querySelectorAll(s)];"
        f'{program} }}, 1000)</script><script type="application/json">{{}}</script>'
    )
    seen = opened(probe, folder / "profile", "--allow-file-access-from-files", "--hide-scrollbars")
    return seen.split("<p>")[1].split("</p>")[0].split()


def test_a_phone_shows_it_without_scrolling_sideways(tmp_path, rows):
    clients = {**CLIENTS, "classes": ["a very long name of a class " * 3, "b", "c"]}
    path = write(run_folder(tmp_path / ("long" * 20), rows, clients=clients))
    program = """say(page.documentElement.scrollWidth, page.documentElement.clientWidth);
        say(Math.max(...all(".chart svg").map((svg) => svg.getBoundingClientRect().right)));"""
    whole, window, charts = map(float, asked(path, tmp_path, program))
    assert whole == window == 380 and 300 < charts <= 380


def test_one_switch_drives_all_curves_and_the_legend_hides_an_algorithm(tmp_path, rows):
    path = write(comparison_folder(tmp_path / "some", {"one": [rows, rows], "two": [rows]}))
    program = """const look = () => {
            say(new Set(all(".xtitle").map((t) => t.textContent.split(" ")[0])).size, all(".xtitle")[0].textContent.split(" ")[0]);
            say(all("path.js-line").length); };
        look(); page.querySelector("[value=bytes]").click();
        setTimeout(() => { look(); page.querySelector("[data-group]").click(); setTimeout(() => {
            look(); say(page.querySelector("[data-group]").ariaPressed); }, 500); }, 500);"""
    lines = 6 * 4
    assert asked(path, tmp_path, program) == [
        *("1", "rounds", str(lines)),
        *("1", "bytes", str(lines)),
        *("1", "bytes", str(lines - 6 * 3), "false"),
    ]


def test_pointing_a_logarithmic_scale_and_the_files(tmp_path, rows):
    path = write(run_folder(tmp_path / "run", rows))
    program = """const figure = page.querySelector("#chart-loss").closest("figure"), view = page.defaultView;
        const saved = []; view.HTMLAnchorElement.prototype.click = function () { saved.push(this); };
        const ticks = () => [...figure.querySelectorAll("svg > text")].map((t) => t.textContent).join("|").replaceAll(" ", "");
        const before = ticks(), svg = figure.querySelector("svg"), corner = svg.getBoundingClientRect();
        svg.dispatchEvent(new view.PointerEvent("pointermove", { clientX: corner.right - 20, clientY: corner.top + 90 }));
        say(figure.querySelector(".tip").textContent.replaceAll(" ", ""));
        figure.querySelector("[data-do=log]").click();
        say(before !== ticks(), figure.querySelector("[data-do=log]").ariaPressed);
        figure.querySelector(".entry").dispatchEvent(new view.Event("click"));
        say(figure.querySelectorAll(".js-line").length);
        for (const kind of ["csv", "png"]) figure.querySelector(`[data-do=${kind}]`).click();
        setTimeout(() => { for (const link of saved) say(link.download, link.href.slice(0, 14)); say(decodeURIComponent(saved[0].href).split("\\n").length); }, 1500);"""
    tip, changed, pressed, lines, *files = asked(path, tmp_path, program)
    assert tip.startswith("rounds:4training:") and "test:" in tip
    assert (changed, pressed, lines) == ("true", "true", "1")
    assert files == ["loss.csv", "data:text/csv;", "loss.png", "data:image/png", "10"]
