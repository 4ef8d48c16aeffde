"""The page: its numbers are the history's, its text is only text, and it needs nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from statistics import mean, stdev

import pytest

import fedstride as fs
from fedstride.app import diagnose
from fedstride.app.report import write
from fedstride.app.report.read import read
from fedstride.app.report.write import duration, rounds_to, short, size
from tests.app.report.folders import CLIENTS, CONFIG, Page, comparison_folder, rows_of, run_folder
from tests.problems import classification, learn

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@pytest.fixture(scope="module")
def rows():
    return rows_of()


@pytest.fixture(scope="module")
def page(tmp_path_factory, rows):
    return Page(write(run_folder(tmp_path_factory.mktemp("run") / "mine", rows)))


def test_the_headline_numbers_are_those_of_the_history(page, rows):
    values = page.text("dd")
    assert f"{100 * rows[-1]['test_accuracy']:.1f} %" in values
    assert f"best {100 * max(row['test_accuracy'] for row in rows):.1f} %" in values
    assert f"{rows[-1]['test_loss']:.4g}" in values
    assert f"training {rows[-1]['train_loss']:.4g}" in values
    assert size(sum(row["bytes_up"] + row["bytes_down"] for row in rows)) in values
    assert short(sum(row["gradients"] for row in rows)) in values
    assert f"and {short(sum(row['forwards'] for row in rows))} forward only" in values
    assert duration(sum(row["seconds"] for row in rows)) in values
    assert str(len(rows)) in values


def test_the_axes_are_the_rounds_and_two_running_sums(page, rows):
    assert page.data["x"]["0"]["rounds"] == [1, 2, 3, 4]
    assert page.data["x"]["0"]["bytes"][-1] == sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    assert page.data["x"]["0"]["gradients"][-1] == sum(row["gradients"] for row in rows)
    assert page.attributes("input", "value") == ["rounds", "bytes", "gradients"]


def test_every_chart_has_a_frame_a_heading_and_words_for_it(page):
    frames = page.attributes("div", "data-chart")
    assert frames and set(frames) == set(page.data["charts"])
    assert page.count["figure"] == page.count["figcaption"] == page.count["h2"] == len(frames)
    assert len(page.attributes("div", "aria-label")) == len(frames)
    assert page.attributes("html", "lang") == ["en"]
    assert page.count["title"] == page.count["h1"] == page.count["main"] == 1
    assert page.text("h1") == ["fedsls on toys"]


def test_configuration_and_environment_are_there(page):
    assert 'name = "fedsls"' in page.text("pre")[0]
    assert "fedstride run toys" in page.text("dd")
    assert "2026-01-02 03:04" in page.text("span")


def test_a_run_links_to_its_diagnosis_and_a_comparison_to_its_runs(tmp_path, rows):
    folder = comparison_folder(tmp_path / "some", {"a": [rows], "b": [rows]})
    assert Page(write(folder)).attributes("a", "href") == []
    write(folder / "a0-s0")
    assert Page(write(folder)).attributes("a", "href") == ["a0-s0/report.html"]
    diagnose.write(folder / "a0-s0")
    assert Page(write(folder / "a0-s0")).attributes("a", "href") == ["diagnosis.html"]
    assert Page(folder / "a0-s0" / "diagnosis.html").attributes("a", "href") == ["report.html"]


def test_configurations_are_shown_by_their_differences(tmp_path, rows):
    folder = comparison_folder(tmp_path, {"a": [rows], "b": [rows]})
    assert "Differences of configuration" not in Page(write(folder)).text("h2")
    (folder / "a1-s0" / "config.toml").write_text(CONFIG.replace("fedsls", "fedavg"))
    page = Page(write(folder))
    assert "Differences of configuration" in page.text("h2") and page.text("pre") == ['data.source = "toys"']
    assert page.text("th")[-4:] == ["Setting", "a", "b", "algorithm.name"]
    assert page.text("td")[-2:] == ['"fedsls"', '"fedavg"']


def test_nothing_comes_from_elsewhere(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "a")
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), tag
        assert "url(" not in (attributes.get("style") or "")
    assert "url(" not in "".join(page.text("style")) and "@import" not in "".join(page.text("style"))


def test_the_policy_lets_exactly_its_scripts_run(page):
    (policy,) = page.attributes("meta", "content")[:1]
    programs = page.scripts[1:]
    assert len(programs) == 3
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in programs]
    rules = dict(rule.split(None, 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]


def test_no_text_can_become_markup(tmp_path, rows):
    clients = {**CLIENTS, "classes": [EVIL, "<b>bold</b>", '<a href="https://example.org">x</a>']}
    config = f'[algorithm]\nname = """{EVIL}"""\n[data]\nsource = "</title><svg onload=alert(3)>"\n'
    folder = run_folder(
        tmp_path / "<img src=x onerror=alert(4)>",
        rows,
        config=config,
        clients=clients,
        environment={"started": EVIL, "a": 1, "b": 2, EVIL: EVIL},
    )
    plain = Page(write(run_folder(tmp_path / "plain", rows)))
    page = Page(write(folder))
    assert page.count == plain.count  # no tag more
    assert EVIL in page.text("pre")[0] and page.text("dt")[-1] == page.text("dd")[-1] == EVIL
    assert page.text("h1") == [f"{EVIL} on </title><svg onload=alert(3)>"]


def test_no_algorithm_s_name_can_become_markup(tmp_path, rows):
    plain = Page(write(comparison_folder(tmp_path / "plain", {"a": [rows], "b": [rows]})))
    page = Page(write(comparison_folder(tmp_path / "evil", {EVIL: [rows], "<b>b</b>": [rows]})))
    assert page.count == plain.count


def test_the_table_of_a_comparison(tmp_path):
    runs = {name: [rows_of(name, seed=seed, rounds=3) for seed in (0, 1, 2)] for name in ("fedavg", "delta_sgd")}
    target = sorted(rows[-1]["test_accuracy"] for rows in runs["fedavg"])[1]
    page = Page(write(comparison_folder(tmp_path, runs, target)))
    cells = page.text("td")
    for rows in runs.values():
        ends = [100 * run[-1]["test_accuracy"] for run in rows]
        assert f"{mean(ends):.1f} ± {stdev(ends):.1f} %" in cells
        assert short(mean(sum(row["gradients"] for row in run) for run in rows)) in cells
        assert size(mean(sum(row["bytes_up"] + row["bytes_down"] for row in run) for run in rows)) in cells
    assert f"Rounds to {100 * target:g} %" in page.text("th")
    assert [text for text in page.text("button") if text not in ("log", "CSV", "PNG")] == list(runs)
    assert [text for text in page.text("th") if text in runs] == list(runs)
    assert list(page.data["x"]) == ["0", "1", "2", "3", "4", "5", "mean 0", "mean 1"]
    assert page.data["x"]["mean 0"]["rounds"] == [1, 2, 3]


def test_rounds_to_the_target(tmp_path):
    rows = [{"round": t, "test_accuracy": a} for t, a in ((1, 0.2), (2, None), (3, 0.5), (4, 0.4), (5, 0.9))]
    run = read(run_folder(tmp_path, rows))
    assert [rounds_to(run, goal) for goal in (0.1, 0.5, 0.6, 0.95)] == [1, 3, 5, None]
    never = Page(write(comparison_folder(tmp_path / "some", {"a": [rows, rows[:3]], "b": [rows[:2]]}, 0.9)))
    assert "5 (1 of 2 seeds)" in never.text("td") and "never" in never.text("td")
    assert "1 of 2 stopped early" in never.text("span")


def test_a_comparison_without_target_or_test_set(tmp_path):
    rows = rows_of("fedavg", test=None)
    page = Page(write(comparison_folder(tmp_path, {"fedavg": [rows], "lost": [[]]}, target=None)))
    assert page.text("th")[:4] == ["Algorithm", "Training loss", "Traffic", "Sample gradients"]
    assert "test_accuracy" not in page.data["charts"] and "train_loss" in page.data["charts"]


def test_a_history_alone_is_enough(tmp_path, rows):
    page = Page(write(run_folder(tmp_path / "bare", rows, config=None, environment=None, clients=None)))
    assert page.text("h1") == ["bare"]
    assert page.count["details"] == 0
    assert not {"left_behind", "partition"} & set(page.data["charts"])


def test_what_never_changes_is_said_in_words(tmp_path):
    page = Page(write(run_folder(tmp_path, rows_of("fedavg"))))
    (said,) = [text for text in page.text("p") if text.startswith("Constant over all rounds")]
    assert "server step 1" in said and "client step size 0.1" in said


def test_the_same_folder_gives_the_same_page(tmp_path, rows):
    folder = run_folder(tmp_path, rows)
    assert write(str(folder)) == folder / "report.html"
    before = (folder / "report.html").read_bytes()
    assert write(folder).read_bytes() == before
    assert not list(folder.glob("*.new"))


def test_numbers_in_few_letters():
    assert [short(v) for v in (0, 12, 999, 1000, 18_000, 1_234_567, 2.5e9, 3e12)] == [
        *("0", "12", "999", "1 k", "18 k", "1.23 M", "2.5 G", "3 T")
    ]
    assert [size(v) for v in (0, 999, 23_100_000)] == ["0 B", "999 B", "23.1 MB"]
    assert [duration(v) for v in (0.033, 1.99, 119, 600, 7260)] == ["33 ms", "1.99 s", "119 s", "10 min", "2 h 1 min"]


def test_what_was_left_out_and_what_privacy_cost_is_shown(tmp_path):
    faulty, private = fs.faults.Faulty(dropout=0.3, nan=0.1, seed=3), fs.Algorithm(privacy=fs.Privacy(noise=1.0))
    clients = classification((6,) * 12)
    learn(private, clients=clients, rounds=4, engine=faulty, seed=1).save(tmp_path)
    page = write(tmp_path).read_text()
    for words in ("Rejected answers", "Lost clients", "no answer", "not finite", "Privacy spent", "ε = "):
        assert words in page
    learn(clients=clients, rounds=4).save(tmp_path)
    page = write(tmp_path).read_text()
    assert not any(words in page for words in ("Rejected answers", "Lost clients", "Privacy"))
