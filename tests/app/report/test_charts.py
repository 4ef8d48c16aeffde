"""The charts: valid figures that show the history's numbers, and none that would show nothing."""

from __future__ import annotations

import pytest

from fedstride.app.report import charts, client_charts, theme
from fedstride.app.report.read import read
from tests.app.report.figures import check
from tests.app.report.folders import CLIENTS, comparison_folder, rows_of, run_folder


def by_key(found):
    return {chart.key: chart for chart in found}


@pytest.fixture(scope="module")
def rows():
    return rows_of()


def test_figures_are_valid_and_curves_show_the_history(tmp_path, rows):
    shown = by_key(charts.of_run(read(run_folder(tmp_path, rows))))
    assert list(shown) == ["test_accuracy", "loss", "client_steps", "trials", "drift", "left_behind", "partition"]
    for chart in shown.values():
        check(chart.figure)
        assert chart.title and chart.note and chart.about
    for key, name in (("test_accuracy", "test_accuracy"), ("trials", "trials"), ("drift", "drift")):
        assert shown[key].figure["data"][0]["y"] == pytest.approx([row[name] for row in rows], rel=1e-5)
    training, test = shown["loss"].figure["data"]
    assert training["y"] == pytest.approx([row["train_loss"] for row in rows], rel=1e-5)
    assert test["y"] == pytest.approx([row["test_loss"] for row in rows], rel=1e-5)


def test_the_bands_hold_the_quartiles(tmp_path, rows):
    low, high, q25, q75, median = by_key(charts.of_run(read(run_folder(tmp_path, rows))))["client_steps"].figure["data"]
    for k, trace in enumerate((low, q25, median, q75, high)):
        assert trace["y"] == pytest.approx([row["client_steps"][k] for row in rows], rel=1e-5)
    assert high["fill"] == q75["fill"] == "tonexty"  # each down to the trace before it


def test_the_best_round_has_a_dot(tmp_path):
    rows = [{"round": t, "test_accuracy": a} for t, a in enumerate((0.2, 0.7, 0.5, 0.7, 0.6), 1)]
    accuracy, best = by_key(charts.of_run(read(run_folder(tmp_path, rows))))["test_accuracy"].figure["data"]
    assert best["y"] == [None, None, None, 0.7, None] and best["mode"] == "markers" and best["meta"] == accuracy["meta"]


def test_positive_curves_can_have_a_logarithmic_scale(tmp_path, rows):
    shown = by_key(charts.of_run(read(run_folder(tmp_path, rows))))
    assert {key for key, chart in shown.items() if chart.positive} >= {"loss", "drift"}
    assert not any(shown[key].positive for key in ("test_accuracy", "left_behind", "partition"))


def test_without_quartiles_the_mean_step_is_shown(tmp_path, rows):
    bare = [{k: v for k, v in row.items() if k != "client_steps"} for row in rows]
    chart = by_key(charts.of_run(read(run_folder(tmp_path, bare))))["client_step"]
    assert chart.figure["data"][0]["y"] == pytest.approx([row["client_step"] for row in rows], rel=1e-5)


def test_what_is_missing_or_never_changes_has_no_chart(tmp_path):
    rows = rows_of("fedavg", test=None)
    run = read(run_folder(tmp_path, rows, clients=None))
    assert list(by_key(charts.of_run(run))) == ["loss", "drift"]
    assert len(by_key(charts.of_run(run))["loss"].figure["data"]) == 1
    assert charts.constants(run) == {"client step size": 0.1, "server step": 1.0, "line-search trials": 0.0}


def test_a_single_round_is_drawn_as_points(tmp_path, rows):
    run = read(run_folder(tmp_path, rows[:1]))
    shown = by_key(charts.of_run(run))
    assert shown["drift"].figure["data"][0]["mode"] == "lines+markers"
    assert charts.constants(run) == {}


def test_narrow_charts_stand_in_pairs(tmp_path, rows):
    shown = charts.of_run(read(run_folder(tmp_path, rows)))
    assert sum(not chart.wide for chart in shown) % 2 == 0


def test_clients_are_sorted_with_the_worst_first():
    chart = charts.left_behind(CLIENTS)
    (all_of_them,) = chart.figure["data"]
    assert all_of_them["y"] == [0.2, 0.5, 0.75, 1.0]
    assert all_of_them["customdata"] == [["2", 5], ["0", 6], ["3", 8], ["1", 9]]
    sizes = all_of_them["marker"]["size"]
    assert sizes == sorted(sizes)
    assert "Worst 20.0 %" in chart.note and "No client is behind by more than chance explains" in chart.note


def test_clients_are_left_behind_if_chance_does_not_explain_it():
    accuracy = [0.9, 0.9, 0.9, 0.6, 0.7]
    few, many = ({"sizes": [n] * 5, "accuracy": accuracy} for n in (10, 200))
    assert client_charts.behind(few) == [] and client_charts.behind(many) == [3, 4]
    late, others = charts.left_behind(many).figure["data"]
    assert (late["name"], late["x"], late["y"]) == ("left behind", [1, 2], [0.6, 0.7]) and others["x"] == [3, 4, 5]
    assert client_charts.behind({"sizes": [9] * 4, "loss": [0.1, 0.1, 0.2, 0.9]}) == [3]
    assert client_charts.behind({"sizes": [10**6] * 3, "accuracy": [0.9, 0.9, 0.85]}) == []  # certain, but small


def test_without_accuracy_clients_are_sorted_by_their_loss():
    (everyone,) = charts.left_behind({**CLIENTS, "accuracy": None, "loss": [0.9, None, 1.5, 0.4]}).figure["data"]
    assert everyone["y"] == [1.5, 0.9, 0.4]
    assert charts.left_behind({"sizes": [1, 2]}) is None


def test_the_partition_is_the_table_of_counts():
    chart = charts.partition(CLIENTS)
    cells, bars = chart.figure["data"]
    axis = chart.figure["layout"]["yaxis"]
    assert cells["y"] == axis["tickvals"] == [0, 1, 2] and axis["ticktext"] == ["cat", "dog", "owl"]
    assert cells["z"] == [[6, 3, None, None], [None, 3, 5, 4], [None, 3, None, 4]]
    assert bars["y"] == CLIENTS["sizes"]
    assert "between 5 and 9 samples" in chart.note and "1.75 of 3 classes" in chart.note
    even = charts.partition({**CLIENTS, "sizes": [6, 6, 6, 6]})
    assert len(even.figure["data"]) == 1 and "6 samples each" in even.note
    assert charts.partition({**CLIENTS, "labels": None}) is None


def test_many_classes_and_long_names_leave_room_for_the_picture():
    many = {"sizes": [62, 62], "labels": [[1] * 62, [1] * 62], "classes": ["n" * 40, *map(str, range(1, 62))]}
    axis = charts.partition(many).figure["layout"]["yaxis"]
    assert len(axis["tickvals"]) == len(axis["ticktext"]) <= 20
    assert axis["ticktext"][:2] == ["n" * 15 + "…", "4"] and axis["tickvals"][:2] == [0, 4]


def test_a_comparison_has_a_thin_line_per_seed_and_a_thick_mean(tmp_path):
    runs = {name: [rows_of(name, seed=seed) for seed in (0, 1)] for name in ("fedavg", "fedsls")}
    shown = by_key(charts.of_comparison(read(comparison_folder(tmp_path, runs))))
    traces = shown["test_accuracy"].figure["data"]
    assert [trace["meta"] for trace in traces] == ["0", "1", "mean 0", "2", "3", "mean 1"]
    assert [trace["line"]["width"] for trace in traces] == [1, 1, 2.5, 1, 1, 2.5]
    assert len({trace["line"]["color"] for trace in traces[:3]}) == 1
    assert traces[0]["line"]["color"] != traces[3]["line"]["color"]
    both = zip(*(run for run in runs["fedavg"]), strict=True)
    assert traces[2]["y"] == pytest.approx([(a["test_accuracy"] + b["test_accuracy"]) / 2 for a, b in both], rel=1e-5)
    assert shown["test_accuracy"].figure["layout"]["shapes"][0]["y0"] == 0.5


def test_a_mean_goes_as_far_as_all_have_come():
    assert charts.means([[1.0, 2.0, 3.0], [3.0, 4.0]]) == [2.0, 3.0]
    assert charts.means([[1.0, None], [3.0, 4.0]]) == [2.0, None]


def test_more_algorithms_than_colours_differ_by_their_dashes():
    styles = {(theme.colour(i), theme.dash(i)) for i in range(22)}
    assert len(styles) == 22


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out(side):
    paper, surface = theme.PAGE["paper"][side], theme.PAGE["surface"][side]
    for name in ("ink", "muted"):
        assert min(contrast(theme.PAGE[name][side], ground) for ground in (paper, surface)) >= 4.5  # WCAG AA, text
    assert all(contrast(pair[side], paper) >= 3 for pair in theme.SERIES)  # WCAG AA, graphics
