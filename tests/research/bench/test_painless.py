"""The price of tuning: runs, what is tried, what counts as the best, and how it is shown."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fedstride import InvalidInput
from fedstride.app import sweep
from fedstride.app.cli import app
from fedstride.research.bench import painless, show_painless
from fedstride.research.bench.painless import FREE, GRIDS, SCALES, VARIANTS, cell, grid, measure, shown, trained
from fedstride.research.bench.task_table import TASKS
from fedstride.research.bench.tasks import ACCURACY, FIT, GROUPS

pytestmark = pytest.mark.slow

WORK = {"gradients": 1000, "forwards": 10, "bytes_up": 300, "bytes_down": 200}
SVG = "{http://www.w3.org/2000/svg}"


# Runs


@pytest.mark.parametrize("scale", ["", *SCALES])
def test_a_run(scale):
    arguments = {**cell("hastie", {"name": "auto"}, 0, scale).arguments, "rounds": 2}
    run = trained(**arguments)
    assert run["diverged"] is None and 0 < run["accuracy"] <= 1 and math.isfinite(run["loss"])
    assert run["history"]["round"] == [1, 2] and run["history"]["loss"][-1] == run["loss"]
    assert run["constant"] == pytest.approx(math.log(2), abs=0.01), "whatever the scale"
    assert run["totals"]["gradients"] > 0 and run["scaled"] == bool(scale)
    json.dumps(run, allow_nan=False)


def test_a_run_that_diverges():
    run = trained("hastie", 5, {"name": "fedavg", "lr": 1e38}, 0)
    assert run["diverged"] is not None
    json.dumps(run, allow_nan=False)


def test_the_readout_is_averaged_but_for_variants(monkeypatch):
    monkeypatch.setitem(VARIANTS, "same", lambda: painless.RECIPES["auto"]())
    auto, same, last = (trained("hastie", 4, {"name": n}, 0) for n in ("auto", "same", "last iterate"))
    assert auto["history"] == same["history"] and auto["loss"] != last["loss"]


def test_names_of_runs_tell_them_apart():
    choices = [choice for name in (*GRIDS, *FREE, *VARIANTS) for choice in (grid(name) or [{"name": name}])]
    cells = [cell(task, choice, seed) for task in ("digits", "digits-cnn") for choice in choices for seed in (0, 1)]
    cells += [cell("digits", {"name": "auto"}, 0, scale) for scale in SCALES]
    assert len({c.name for c in cells}) == len(cells)
    assert shown({"name": "fedexp", "lr": 0.1, "eps": 1e-3}) == "fedexp(lr=0.1,eps=0.001)"


def test_a_changed_auto_is_run_again_and_the_others_are_not(monkeypatch):
    def arguments():
        return [cell("digits", {"name": n}).arguments for n in ("auto", "last iterate", "fedsls")]

    before = arguments()
    assert arguments() == before
    auto = painless.RECIPES["auto"]()
    monkeypatch.setitem(painless.RECIPES, "auto", lambda: replace(auto, readout="server"))
    after = arguments()
    assert after[0] != before[0] and after[2] == before[2]


# What is tried, with made-up results


def run_of(arguments, accuracy=80.0, diverged=None, loss=None):
    a = arguments
    return {
        **{"task": a["task"], "seed": a["seed"], "scaled": "inputs" in a or "loss" in a, "diverged": diverged},
        **{"accuracy": accuracy / 100, "loss": 2 - accuracy / 50 if loss is None else loss, "constant": 2.0},
        **{"history": {}, "totals": WORK, "seconds": 1.0},
    }


def usual(a):
    """FedAvg is best near 0.1, and diverges above 1; `auto` is three points better, and loses one where it is scaled."""
    scaled = "inputs" in a or "loss" in a
    if a["choice"]["name"] == "auto":
        return run_of(a, 83 - scaled)
    lr = a["choice"].get("lr", 0.1)
    return run_of(a, 80 - 10 * abs(lr - 0.1), diverged=7 if lr > 1 else None)


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """measure() with made-up results, and the cells that it asked for."""

    def go(result=usual, tasks=("digits",), call=measure, **options):
        asked = []

        def complete(cells, folder, tell=None, workers=None):
            asked.extend(cells)
            return {c.name: result(c.arguments) for c in cells}

        monkeypatch.setattr(painless, "complete", complete)
        return call(list(tasks), tmp_path, **options), asked

    return go


def rows(report, task="digits"):
    return {row["method"]: row for row in report["results"][task]}


def test_the_grids():
    sizes = {name: len(grid(name)) for name in (*GRIDS, *FREE)}
    tuned = {"fedavg": 9, "fedavgm": 7, "fedexp": 7, "fedadam": 6, "scaffold": 5, "client_adam": 6}
    assert sizes == {**tuned, **dict.fromkeys(FREE, 1)}
    lr = [choice["lr"] for choice in grid("fedavg")]
    assert (lr[0], lr[-1]) == (pytest.approx(1e-3), pytest.approx(10))
    assert all(painless.make(choice) for name in (*GRIDS, *FREE) for choice in grid(name))


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_is_run(pretend, seeds):
    report, asked = pretend(tasks=("digits", "hastie"), seeds=seeds)
    each = sum(len(grid(name)) for name in (*GRIDS, *FREE)) + 2
    assert len(asked) == len({c.name for c in asked}) == (2 * each + len(SCALES)) * seeds, "digits is scaled too"
    assert report["seeds"] == seeds and report["settings"]["fedavg"] == 11


def test_fedavg_and_auto_are_always_there(pretend):
    report, _ = pretend(methods=["fedexp", "fedsls"], seeds=1)
    assert report["settings"] == {"fedavg": 11, "fedexp": 7, "auto": 1, "fedsls": 1}
    assert show_painless.rivals(report) == ["fedavg", "fedexp"], "the best of three needs all of them"
    assert not [c for c in report["claims"] if "best" in c["what"]]
    show_painless.page(report)


def test_the_best_setting_and_its_price(pretend):
    found = rows(pretend(seeds=2)[0])
    tuned, auto = found["fedavg"], found["auto"]
    assert tuned["setting"] == "fedavg(lr=0.1)" and tuned["scores"] == [pytest.approx(80)] * 2 and not tuned["edge"]
    assert (tuned["runs"], tuned["diverged"], tuned["seconds"]) == (22, 4, 22)
    assert (tuned["gradients"], tuned["forwards"], tuned["bytes"]) == (22_000, 220, 11_000)
    assert tuned["own_gradients"] == auto["own_gradients"] == auto["gradients"] == 2000
    assert found["client_adam"]["edge"], "its best rate is the largest of the grid"


def test_two_rates_more_are_tried_next_to_the_best(pretend):
    report, asked = pretend(lambda a: run_of(a, 80 - 10 * abs(a["choice"].get("lr", 0.1) - 10**-0.75)), seeds=1)
    assert rows(report)["fedavg"]["setting"] == "fedavg(lr=0.177828)"
    assert len([c for c in asked if "fedavg(" in c.name]) == 11


def test_one_setting_for_all_seeds(pretend):
    """0.1 is best with the first seed, 1 with the second; 0.316 is best for both."""

    def result(a):
        near = {0: {0.1: 90, 0.316: 85, 1.0: 10}, 1: {0.1: 10, 0.316: 85, 1.0: 90}}[a["seed"]]
        return run_of(a, near.get(float(f"{a['choice'].get('lr', 9):.3g}"), 5))

    tuned = rows(pretend(result, seeds=2)[0])["fedavg"]
    assert tuned["setting"] == "fedavg(lr=0.316228)" and tuned["score"] == pytest.approx(85)


def test_a_run_that_diverges_counts_nothing(pretend):
    report, _ = pretend(lambda a: run_of(a, 99, diverged=30) if a["choice"]["name"] == "fedsls" else usual(a), seeds=1)
    found = rows(report)["fedsls"]
    assert (found["score"], found["loss"], found["diverged"]) == (0, None, 1)
    json.dumps(report, allow_nan=False)
    show_painless.svg(report)


def test_a_fit_is_the_way_from_the_constant_to_the_lowest_loss(pretend):
    assert TASKS["regression"].score == FIT and TASKS["digits"].score == ACCURACY

    def result(a):
        name, scaled = a["choice"]["name"], "inputs" in a
        by = {"auto": 0.5, "fedsls": 1.0, "fedsps": 2.5, "fedngn": 0.0}
        return run_of(a, loss=0.3 - 5 * scaled if scaled else by.get(name, 0.75) + a["seed"])

    found = rows(pretend(result, ["regression"], seeds=2)[0], "regression")
    assert found["auto"]["scores"] == [pytest.approx(75), pytest.approx(50)]
    assert found["fedsls"]["scores"] == [pytest.approx(50), pytest.approx(0)]
    assert found["fedsps"]["scores"] == [0, 0], "worse than the constant prediction"
    assert found["fedngn"]["scores"] == [100, 100], "the lowest of a seed; scaled runs do not count"


# What is shown


def test_tables(pretend):
    report, _ = pretend(tasks=("digits", "hastie", "lstm"), seeds=3)
    head, digits, *_ = show_painless.by_task(report)
    assert digits[:4] == ["digits", "accuracy", "0.1", "80.0"] and digits[-1] == "11.0"
    assert digits[head.index("ahead of FedAvg")] == "+3.0 ± 0.0"
    assert len(head) == len(digits)
    table = {row[0]: row for row in show_painless.by_method(report)}
    assert list(table)[1:] == [*GRIDS, *FREE]
    assert table["fedavg"][1:5] == ["11", "0", "18 of 99", "+0.0"]
    assert table["auto"][4:7] == ["+3.0"] * 3 and table["auto"][-4] == "1.0"
    assert len(show_painless.by_group(report)) == 1 + 4 * 4, "three groups and all, against four rivals"
    assert show_painless.scaled(report)[1] == ["digits", *["+1.0 ± 0.0"] * 4]
    text = show_painless.markdown(report)
    assert text.startswith("3 tasks, 3 seed(s), averaged read-out; settings tried: fedavg 11,")
    assert "which favours them" in text and "| " + " | ".join(digits) + " |" in text


def test_tasks_are_ordered_by_group_and_points(pretend):
    def result(a):
        best = {"mnist-mlp": 95, "digits": 85, "hastie": 99}.get(a["task"], 70)
        return run_of(a, best if a["choice"]["name"] == "auto" else 80)

    report, _ = pretend(result, ("lstm", "hastie", "digits", "mnist-mlp"), seeds=1)
    assert show_painless.ordered(report) == ["mnist-mlp", "digits", "hastie", "lstm"]


@pytest.mark.parametrize("auto", [81.0, 20.0, 130.0])
def test_the_picture(pretend, auto):
    """Nothing is drawn off the scale, and what lies beyond is written as a number."""

    def result(a):
        noise = 3 * a["seed"] * (a["task"] == "hastie")
        return run_of(a, auto - noise if a["choice"]["name"] == "auto" else 75)

    text = show_painless.svg(pretend(result, ("digits", "hastie"), seeds=3)[0])
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.get("viewBox").split())
    left, right = show_painless.LEFT, show_painless.LEFT + show_painless.WIDTH
    circles = root.findall(f"{SVG}circle")
    marks = [c for c in circles if float(c.get("cy")) >= show_painless.TOP]
    assert all(left <= float(c.get("cx")) <= right and 0 <= float(c.get("cy")) <= height for c in marks)
    words = [t.text for t in root.findall(f"{SVG}text")]
    assert all(0 <= float(t.get("x")) <= width for t in root.findall(f"{SVG}text"))
    assert {
        TASKS["digits"].what,
        TASKS["hastie"].what,
        GROUPS["looked"].capitalize(),
        GROUPS["unseen"].capitalize(),
        "11.0",
    } <= set(words)
    off = {81.0: [], 20.0: ["−55", "−58"], 130.0: ["+55", "+52"]}[auto]
    assert all(words.count(v) == 2 for v in off) and len(circles) == (2 if off else 6), "legend and two marks a task"
    assert "prefers-color-scheme:dark" in text and "<rect" not in text, "the page shows through"


def test_the_page_escapes_what_it_shows(pretend):
    report, _ = pretend(seeds=1)
    report["tasks"]["digits"]["what"] = "a < b & c"
    page = show_painless.page(report)
    assert page.startswith("<!doctype html>") and "a &lt; b &amp; c" in page and "a < b" not in page
    assert show_painless.TITLE in page
    assert ElementTree.fromstring(show_painless.svg(report)) is not None


def test_an_ablation_is_about_points_ahead_of_auto(pretend):
    points = {"auto": 80.0, "last iterate": 78.0, "plain mean": 81.0}
    report, asked = pretend(
        lambda a: run_of(a, points.get(a["choice"]["name"], 80.0)), ("digits", "hastie"), painless.ablation, seeds=2
    )
    assert len(asked) == 2 * 2 * (1 + len(VARIANTS))
    assert report["variants"]["last iterate"]["mean"] == pytest.approx(-2)
    assert show_painless.variants(report)[1][:4] == ["last iterate", "-2.0", "-2.0", "-2.0"]
    assert show_painless.variants_by_task(report)[1][:4] == ["digits", "80.0", "-2.0 ± 0.0", "+1.0 ± 0.0"]


# Optuna


class Study:
    """Proposes the same settings to all, and remembers what it was told."""

    told: list[float] = []  # noqa: RUF012 (shared on purpose)

    def ask(self):
        lr = (0.03, 0.2, 2.0)[len(self.told) % 3]
        return SimpleNamespace(suggest_float=lambda key, low, high, log: lr)

    def tell(self, trial, value):
        self.told.append(value)


def test_what_optuna_finds_has_its_own_price(pretend, monkeypatch):
    fake = SimpleNamespace(
        logging=SimpleNamespace(set_verbosity=lambda level: None, WARNING=0),
        samplers=SimpleNamespace(TPESampler=lambda seed: None),
        create_study=lambda direction, sampler: Study(),
    )
    monkeypatch.setitem(sys.modules, "optuna", fake)
    Study.told.clear()
    report, _ = pretend(trials=3, seeds=1)
    found = rows(report)
    searched = found["fedavg by Optuna"]
    assert (searched["setting"], searched["runs"], searched["diverged"]) == ("fedavg(lr=0.03)", 3, 1)
    assert searched["gradients"] == 3_000 and found["fedavg"]["gradients"] == 11_000
    assert Study.told == 2 * [pytest.approx(79.3), pytest.approx(79), 0.0]
    show_painless.markdown(report)


def test_without_optuna_nothing_is_run(pretend, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    asked = []
    with pytest.raises(InvalidInput, match=r"--trials needs Optuna; .*'fedstride\[tune\]'"):
        pretend(lambda a: asked.append(a) or usual(a), trials=2)
    assert asked == []


# The command


def command(*arguments):
    return CliRunner().invoke(app, ["bench", "painless", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "digit"], "--task 'digit' is unknown; did you mean 'digits'"),
        (["--group", "user"], "--group 'user' is unknown; did you mean 'users'"),
        (["--method", "fedavgg"], "--method 'fedavgg' is unknown"),
        (["--group", "users", "--task", "digits"], "none of the tasks digits is in the group users"),
    ],
)
def test_unknown_tasks_groups_and_methods_are_refused(arguments, says):
    done = command(*arguments)
    assert done.exit_code == 2 and says in done.stderr


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """One task of two rounds, two rates, one free algorithm, in this process."""
    monkeypatch.setattr(sweep, "cores", lambda: 1)
    monkeypatch.setitem(TASKS, "hastie", replace(TASKS["hastie"], rounds=2))
    monkeypatch.setattr(painless, "GRIDS", {"fedavg": {"lr": [0.1, 1e38]}})
    monkeypatch.setattr(painless, "FREE", ("auto",))
    monkeypatch.setattr(painless, "SCALED", ("hastie",))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "painless"


def test_the_command_writes_what_it_shows_and_goes_on_where_it_stopped(tiny, monkeypatch):
    options = ("--task", "hastie", "--seeds", "1")
    done = command(*options, "--markdown")
    assert done.exit_code == 0, done.output
    report = json.loads((tiny / "painless.json").read_text())
    found = rows(report, "hastie")
    assert (found["fedavg"]["runs"], found["fedavg"]["diverged"]) == (4, 1)
    assert 0 < found["auto"]["score"] <= 100
    assert done.stdout.strip() == show_painless.markdown(report)
    assert (tiny / "painless.svg").read_text() == show_painless.svg(report)
    assert show_painless.TITLE in (tiny / "painless.html").read_text()
    assert len(list((tiny / "cells").iterdir())) == 9, "two rates, two more, auto, and auto on four scales"

    monkeypatch.setattr(sweep, "_one", lambda cell, folder: pytest.fail(f"{cell.name} is run again"))
    again = command(*options, "--json")
    assert json.loads(again.stdout) == report
    plain = command(*options)
    assert plain.exit_code == 0 and "price of tuning" in plain.stdout and "Written to runs/painless" in plain.stdout


def test_the_ablation_uses_the_same_runs_of_auto(tiny):
    done = command("--task", "hastie", "--seeds", "1", "--ablation")
    assert done.exit_code == 0 and "plain mean" in done.stdout, done.output
    report = json.loads((tiny / "ablation.json").read_text())
    assert set(report["variants"]) == set(VARIANTS) and not (tiny / "painless.json").exists()
    assert len(list((tiny / "cells").iterdir())) == 1 + len(VARIANTS)


def test_a_stopped_command_says_how_to_go_on(tiny, monkeypatch):
    def stop(cell, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_one", stop)
    done = command("--task", "hastie")
    assert done.exit_code == 130 and "Completed results are kept; continue with: the same command" in done.stderr
    assert not (tiny / "painless.json").exists()
