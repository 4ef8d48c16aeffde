"""The price of tuning: what is tried, what counts as the best, and verdicts that can come out either way."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fedstride import InvalidInput, study
from fedstride.bench import painless, show_painless
from fedstride.bench.painless import FREE, GRIDS, SCALED, SCALES, TASKS, Task, cell, claims, grid, measure, shown
from fedstride.cli import app

ROUNDS = 60
WORK = {"gradients": 1000, "forwards": 10, "bytes_up": 300, "bytes_down": 200}


def run_of(final=80.0, swing=2.0, diverged=None, work=1.0):
    """A run that rises by equal steps to its final accuracy; its last iterates are `swing` points below."""
    at = [t for t in range(1, ROUNDS + 1) if diverged is None or t < diverged]
    scored = [final * t / ROUNDS / 100 if t % 3 == 0 else None for t in at]
    late = [None if v is None or t <= 48 else v - swing / 100 for t, v in zip(at, scored, strict=True)]
    losses = [None if v is None else 2 - v for v in scored]
    history = {"round": at, "test_accuracy": scored, "last_accuracy": late, "test_loss": losses}
    return {"diverged": diverged, "history": history, "totals": {k: int(v * work) for k, v in WORK.items()}}


def usual(config, scale):
    """FedAvg is best near 0.1, and diverges above 1; FedExP is as good with any eps; `auto` is one point better."""
    a = config["algorithm"]
    if a["name"] == "auto":
        return run_of(81 - (scale != 1))
    lr = a.get("lr", 0.1)
    return run_of(80 - 10 * abs(lr - 0.1), diverged=7 if lr > 1 else None)


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """measure() with made-up results, and the cells that it asked for."""

    def go(result=usual, tasks=("digits",), **options):
        asked = []

        def complete(cells, folder, tell=None, workers=None):
            asked.extend(cells)
            return {c.name: result(c.arguments["config"], c.arguments.get("scale", 1.0)) for c in cells}

        monkeypatch.setattr(painless, "complete", complete)
        return measure(list(tasks), tmp_path, **options), asked

    return go


def rows(report, task="digits"):
    return {row["method"]: row for row in report["results"][task]}


@pytest.mark.parametrize(
    ("name", "full", "coarse"), [("fedavg", 9, 9), ("fedprox", 20, 8), ("fedadam", 25, 8), ("fedexp", 25, 8)]
)
def test_the_grids(name, full, coarse):
    assert (len(grid(name, False)), len(grid(name, True))) == (full, coarse)
    tried = {shown(choice) for choice in grid(name, False)}
    assert len(tried) == full
    assert all(choice["name"] == name and set(choice) == {"name", *GRIDS[name]} for choice in grid(name, True))
    if name != "fedavg":
        assert {shown(choice) for choice in grid(name, True)} <= tried


def test_every_task_and_choice_is_a_configuration():
    for task in TASKS:
        config = cell(task, {"name": "auto"}, seed=3).arguments["config"]
        training = config["training"]
        assert training["readout"] == "average" and training["rounds"] // training["evaluate_every"] == 20
        assert config["data"]["seed"] == config["model"]["seed"] == training["seed"] == 3
    for name in GRIDS:
        for choice in grid(name, False):
            assert cell("digits", choice).arguments["config"]["algorithm"] == choice
    assert set(SCALED) <= set(TASKS)


def test_names_of_runs_tell_them_apart():
    choices = [{"name": name} for name in FREE] + [choice for name in GRIDS for choice in grid(name, False)]
    names = {cell(task, choice, seed).name for task in ("digits", "breast-cancer") for choice in choices for seed in (0, 1)}  # fmt: skip
    assert len(names) == 4 * len(choices)
    scaled = cell("digits", {"name": "auto"}, scale=20.0)
    assert scaled.name == "digits auto s0 x20" and scaled.arguments["scale"] == 20.0
    assert "scale" not in cell("digits", {"name": "auto"}).arguments


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_is_run(pretend, seeds):
    report, asked = pretend(tasks=("digits", "breast-cancer"), seeds=seeds)
    each = len(FREE) + sum(len(grid(name, False)) for name in GRIDS) + 2
    assert len(asked) == (2 * each + len(SCALES)) * seeds, "digits also with scaled inputs"
    assert len({c.name for c in asked}) == len(asked)
    assert report["seeds"] == seeds
    assert report["grids"] == {name: len(grid(name, False)) + 2 * (name == "fedavg") for name in GRIDS}


def test_coarse_grids_are_smaller_but_for_fedavg(pretend):
    report, _ = pretend(coarse=True)
    assert report["grids"] == {"fedavg": 11, "fedavgm": 4, "fedprox": 8, "fedadam": 8, "scaffold": 4, "fedexp": 8}


def test_of_the_tuned_methods_fedavg_is_always_there(pretend):
    report, asked = pretend(tuned=["fedexp"])
    assert report["grids"] == {"fedavg": 11, "fedexp": 25}
    assert len(asked) == 11 + 25 + len(FREE) + len(SCALES)


def test_the_best_setting_and_its_price(pretend):
    found = rows(pretend()[0])
    tuned, auto = found["fedavg"], found["auto"]
    assert tuned["setting"] == "fedavg(lr=0.1)" and tuned["accuracy"] == pytest.approx(80)
    assert tuned["last"] == pytest.approx(80 * (51 + 54 + 57 + 60) / 4 / 60 - 2)
    assert tuned["loss"] == pytest.approx(1.2)
    assert (tuned["runs"], tuned["diverged"]) == (11, 2)
    assert (tuned["gradients"], tuned["forwards"], tuned["bytes"]) == (11_000, 110, 5_500)
    assert tuned["own_gradients"] == auto["own_gradients"] == auto["gradients"] == 1000
    assert found["fedexp"]["runs"] == 25


def test_two_rates_more_are_tried_next_to_the_best(pretend):
    def result(config, scale):
        a = config["algorithm"]
        return run_of(80 - 10 * abs(a.get("lr", 0.1) - 10**-0.75))

    report, asked = pretend(result)
    assert rows(report)["fedavg"]["setting"] == "fedavg(lr=0.177828)"
    finer = [c.name for c in asked if "fedavg(" in c.name][9:]
    assert finer in (["digits fedavg(lr=0.0562341) s0", "digits fedavg(lr=0.177828) s0"],
                     ["digits fedavg(lr=0.177828) s0", "digits fedavg(lr=0.562341) s0"])  # fmt: skip


@pytest.mark.parametrize(("ahead", "reached"), [(20, 48), (1, 60), (0, 60), (-1, None)])
def test_rounds_to_the_accuracy_of_tuned_fedavg(pretend, ahead, reached):
    report, _ = pretend(lambda config, scale: run_of(80 + ahead * (config["algorithm"]["name"] == "auto")))
    assert rows(report)["auto"]["rounds_to_target"] == reached
    assert rows(report)["fedavg"]["rounds_to_target"] == 60


def test_a_run_that_diverges_counts_nothing(pretend):
    """Whatever it had reached before."""

    def result(config, scale):
        return run_of(500, diverged=50) if config["algorithm"]["name"] == "fedsls" else usual(config, scale)

    found = rows(pretend(result)[0])["fedsls"]
    assert (found["accuracy"], found["last"], found["diverged"], found["rounds_to_target"]) == (0, 0, 1, None)


def test_one_setting_for_all_seeds(pretend):
    """0.1 is best with the first seed, 1 with the second; 0.316 is best for both."""

    def result(config, scale):
        a, seed = config["algorithm"], config["training"]["seed"]
        near = {0: {0.1: 90, 0.316: 85, 1.0: 10}, 1: {0.1: 10, 0.316: 85, 1.0: 90}}[seed]
        return run_of(near.get(float(f"{a.get('lr', 9):.3g}"), 5))

    tuned = rows(pretend(result, seeds=2)[0])["fedavg"]
    assert tuned["setting"] == "fedavg(lr=0.316228)" and tuned["accuracy"] == pytest.approx(85)
    assert (tuned["runs"], tuned["gradients"], tuned["own_gradients"]) == (22, 22_000, 2_000)


def test_scaled_inputs_are_for_auto_alone(pretend):
    report, _ = pretend(tasks=("digits", "breast-cancer"))
    assert report["scaled"] == {"digits": {"1": pytest.approx(81), "0.05": pytest.approx(80), "20": pytest.approx(80)}}
    assert len(show_painless.scaled(report)) == 2


AUTO = {
    "method": "auto",
    "accuracy": 82.0,
    "gradients": 1050,
    "own_gradients": 1050,
    "diverged": 0,
    "rounds_to_target": 50,
}
TUNED = {"method": "fedavg", "accuracy": 81.0, "last": 80.0, "gradients": 11_000, "own_gradients": 1000}
LAST, LAST_MEAN, AVERAGED, AVERAGED_MEAN = (
    "points ahead of tuned FedAvg's last iterate",
    "points ahead of its last iterate, mean",
    "points ahead of its averaged read-out",
    "points ahead of its averaged read-out, mean",
)
PRICE, EQUAL = "gradients of tuning FedAvg, in runs of auto", "the same, until auto has FedAvg's accuracy"


def stated(autos, tuned=TUNED, scaled=82.0):
    """Claims by what they say, of tasks named by letters."""
    found = dict(zip("abc", [[tuned, {**AUTO, **auto}] for auto in autos], strict=False))
    made = claims(found, {"a": {"1": 82.0, "20": scaled}} if scaled else {}, dict.fromkeys(found, 60))
    return {claim["what"]: claim for claim in made}


@pytest.mark.parametrize(
    ("auto", "missed"),
    [
        ({}, set()),
        ({"accuracy": 81.9}, {AVERAGED_MEAN}),
        ({"accuracy": 79.6}, {LAST_MEAN, AVERAGED_MEAN}),
        ({"accuracy": 79.4}, {LAST, LAST_MEAN, AVERAGED, AVERAGED_MEAN}),
        ({"gradients": 1100}, set()),
        ({"gradients": 1101}, {"gradients per local step", PRICE}),
        ({"diverged": 1}, {"runs that diverged"}),
        ({"rounds_to_target": None}, {EQUAL}),
    ],
)
def test_claims_are_kept_and_missed(auto, missed):
    made = stated([auto])
    assert {what for what, claim in made.items() if not claim["kept"]} == missed
    assert len(made) == 9


def test_claims_on_the_price_and_on_scaled_inputs():
    equal = stated([{}])[EQUAL]
    assert equal["kept"] and equal["measured"] == pytest.approx(11_000 / 1050 * 60 / 50)
    assert stated([{}], {**TUNED, "gradients": 10_000})[PRICE]["kept"] is False
    cost = "points that scaled inputs cost"
    assert stated([{}], scaled=81.0)[cost]["kept"] is True
    assert stated([{}], scaled=80.9)[cost] | {"measured": 1.1} == {
        "what": cost, "task": "a, x 20", "measured": 1.1, "relation": "<=", "bound": 1.0, "kept": False,
    }  # fmt: skip
    assert cost not in stated([{}], scaled=None), "no task with scaled inputs, no claim"


def test_claims_are_about_the_worst_task_or_the_mean():
    made = stated([{}, {"accuracy": 79.0, "gradients": 1060}, {"accuracy": 90.0, "diverged": 2}])
    assert (made[LAST]["task"], made[LAST]["measured"], made[LAST]["kept"]) == ("b", -1.0, False)
    assert (made[AVERAGED]["task"], made[AVERAGED]["measured"]) == ("b", -2.0)
    assert (made[LAST_MEAN]["task"], made[LAST_MEAN]["kept"]) == ("", True)
    assert made[LAST_MEAN]["measured"] == pytest.approx(11 / 3)
    assert (made["gradients per local step"]["task"], made["runs that diverged"]["task"]) == ("b", "c")


def test_tables(pretend):
    report, _ = pretend(tasks=("digits", "breast-cancer"))
    head, digits, cancer = show_painless.by_task(report)
    assert digits == ["digits", "0.1", "72.0", "80.0", "81.0", "+9.0", "+1.0", "60", "60", "11.0"]
    assert len(head) == len(digits) == len(cancer)
    table = {row[0]: row for row in show_painless.by_method(report)}
    assert list(table)[1:] == [*GRIDS, *FREE]
    assert table["auto"][1:6] == ["1", "0", "+1.0", "+1.0", "digits"] and table["auto"][-3::2] == ["1.0", "1.0"]
    assert table["fedavg"][1:4] == ["11", "4", "+0.0"] and table["fedavg"][-3::2] == ["11.0", "11.0"]
    verdicts = [row[-1] for row in show_painless.claims(report)[1:]]
    assert verdicts == ["met" if c["kept"] else "missed" for c in report["claims"]]
    text = show_painless.markdown(report)
    assert text.startswith("2 tasks, 1 seed(s); settings tried: fedavg 11,")
    assert "| " + " | ".join(digits) + " |" in text


def test_the_price_of_several_seeds_is_in_runs_of_auto(pretend):
    table = {row[0]: row for row in show_painless.by_method(pretend(seeds=3)[0])}
    assert (table["auto"][1], table["auto"][-3]) == ("3", "3.0")
    assert (table["fedavg"][1], table["fedavg"][-3]) == ("33", "33.0")


@pytest.mark.parametrize("bad", [0.0, 60.0])
def test_the_picture_is_well_formed_and_names_every_method(pretend, bad):
    """Also where a method is far behind."""

    def result(config, scale):
        return run_of(80 - bad) if config["algorithm"]["name"] == "fedsps" else usual(config, scale)

    report, _ = pretend(result, tasks=("digits", "breast-cancer"))
    root = ElementTree.fromstring(show_painless.svg(report))
    ns = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{ns}svg"
    _, _, width, height = map(float, root.get("viewBox").split())
    circles = root.findall(f"{ns}circle")
    assert len(circles) == 3 * (len(GRIDS) + len(FREE)), "two tasks and a mean"
    assert all(0 <= float(c.get("cx")) <= width and 0 <= float(c.get("cy")) <= height for c in circles)
    assert {*GRIDS, *FREE} <= {text.text for text in root.findall(f"{ns}text")}


def test_the_page_escapes_what_it_shows(pretend):
    report, _ = pretend()
    report["results"]["digits"][-1]["method"] = "a < b & c"
    page = show_painless.page(report)
    assert page.startswith("<!doctype html>") and "<td>a &lt; b &amp; c</td>" in page and "<td>a < b" not in page
    assert show_painless.TITLE in page
    assert ElementTree.fromstring(show_painless.svg(report)) is not None


def test_without_optuna_trials_are_refused(pretend, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r"--trials needs Optuna; .*'fedstride\[tune\]'"):
        pretend(trials=2)


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
    report, _ = pretend(trials=3)
    found = rows(report)
    searched = found["fedavg by Optuna"]
    assert (searched["setting"], searched["runs"], searched["diverged"]) == ("fedavg(lr=0.03)", 3, 1)
    assert searched["gradients"] == 3_000 and found["fedavg"]["gradients"] == 11_000
    assert found["fedadam by Optuna"]["setting"] == "fedadam(lr=0.03,server_lr=0.03)"
    assert Study.told == 2 * [pytest.approx(79.3), pytest.approx(79), 0.0]
    assert show_painless.methods(report)[-len(FREE) :] == list(FREE)


def command(*arguments):
    return CliRunner().invoke(app, ["bench", "painless", *arguments])


def test_unknown_tasks_and_methods_are_refused():
    done = command("--task", "digit")
    assert done.exit_code == 2 and "--task 'digit' is unknown; did you mean 'digits'" in done.stderr
    done = command("--method", "auto")
    assert done.exit_code == 2 and "--method 'auto' is unknown" in done.stderr


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """One task of a few rounds, two rates, one free algorithm, in this process."""
    settings = {"data.clients": 8, "training.cohort": 3, "training.batch_size": 40, "model.name": "softmax"}
    monkeypatch.setattr(study, "cores", lambda: 1)
    monkeypatch.setattr(painless, "TASKS", {"digits": Task("digits", "tiny", 5, settings)})
    monkeypatch.setattr(painless, "GRIDS", {"fedavg": {"lr": [0.1, 1e38]}})
    monkeypatch.setattr(painless, "FREE", ("auto",))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "painless"


def test_the_command_writes_what_it_shows_and_goes_on_where_it_stopped(tiny, monkeypatch):
    done = command("--markdown")
    assert done.exit_code == 0, done.output
    report = json.loads((tiny / "painless.json").read_text())
    found = rows(report)
    assert (found["fedavg"]["runs"], found["fedavg"]["diverged"]) == (4, 1)
    assert found["fedavg"]["setting"].startswith("fedavg(lr=0.")
    assert 0 < found["auto"]["accuracy"] <= 100
    assert done.stdout.strip() == show_painless.markdown(report)
    assert (tiny / "painless.svg").read_text() == show_painless.svg(report)
    assert show_painless.TITLE in (tiny / "painless.html").read_text()
    assert len(list((tiny / "cells").iterdir())) == 7, "two rates, two more, auto, and auto with inputs of two scales"

    monkeypatch.setattr(study, "_one", lambda cell, folder: pytest.fail(f"{cell.name} is run again"))
    again = command("--json")
    assert json.loads(again.stdout) == report
    shown_ = command()
    assert shown_.exit_code == 0 and "price of tuning" in shown_.stdout and "Written: runs/painless" in shown_.stdout


def test_a_stopped_command_says_how_to_go_on(tiny, monkeypatch):
    def stop(cell, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "_one", stop)
    done = command()
    assert done.exit_code == 130 and "What was computed is kept; go on with: the same command" in done.stderr
    assert not (tiny / "painless.json").exists()


def test_a_scaled_run_that_diverges_counts_as_nothing(pretend):
    report, _ = pretend(lambda c, s: run_of(81, diverged=59) if s == 20.0 else usual(c, s))
    assert report["scaled"]["digits"]["20"] == 0


def test_scaled_inputs_are_averaged_over_the_seeds_too(pretend):
    report, _ = pretend(lambda c, s: run_of(80 + 3 * c["training"]["seed"]), seeds=3)
    assert len(set(report["scaled"]["digits"].values())) == 1


def test_a_method_that_diverges_at_once_breaks_nothing(pretend):
    def result(config, scale):
        if config["algorithm"]["name"] != "fedsps":
            return usual(config, scale)
        return {**run_of(diverged=1), "totals": dict.fromkeys(("gradients", "forwards", "bytes_up", "bytes_down"), 0)}

    report, _ = pretend(result)
    json.dumps(report, allow_nan=False)
    assert "fedsps" in show_painless.svg(report)
    assert "diverged" in show_painless.markdown(report)


def test_without_optuna_nothing_is_run(pretend, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    asked = []
    with pytest.raises(InvalidInput, match="needs Optuna"):
        pretend(lambda c, s: asked.append(c) or usual(c, s), trials=2)
    assert asked == []
