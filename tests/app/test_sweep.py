"""Studies: many runs, each kept in a file, none run twice."""

from __future__ import annotations

import json

import pytest
import torch

from fedstride import InvalidInput
from fedstride.app import run_folder, sweep
from fedstride.app.config import Config, resolve
from fedstride.app.sweep import KEPT, Cell, complete, trained, training

SMALL = {
    "training.rounds": 5,
    "data.clients": 8,
    "training.cohort": 3,
    "training.batch_size": 40,
    "model.name": "softmax",
    "algorithm.name": "fedavg",
}
calls = []


def square(n):
    calls.append(n)
    if n < 0:
        raise ValueError("negative")
    return {"square": n * n}


def cells(*numbers):
    return [Cell(f"square of {n}", square, {"n": n}) for n in numbers]


@pytest.fixture(autouse=True)
def _nothing_called():
    calls.clear()


def test_results_come_by_name_in_the_order_of_the_cells(tmp_path):
    complete(cells(3), tmp_path, workers=1)
    found = complete(cells(4, 3, 2, 3), tmp_path, workers=1)
    assert list(found.items()) == [(f"square of {n}", {"square": n * n}) for n in (4, 3, 2)]
    assert calls == [3, 4, 2]


def test_what_is_kept_is_not_run_again(tmp_path):
    first = complete(cells(2, 3), tmp_path, workers=1)
    told = []
    assert complete(cells(2, 3), tmp_path, lambda *what: told.append(what), workers=1) == first
    assert calls == [2, 3] and told == []


def test_progress_is_told(tmp_path):
    complete(cells(5), tmp_path, workers=1)
    told = []
    complete(cells(4, 5, 6), tmp_path, lambda *what: told.append(what), workers=1)
    assert told == [(1, 3, ""), (2, 3, "square of 4"), (3, 3, "square of 6")]


def test_an_interrupted_study_goes_on(tmp_path):
    with pytest.raises(ValueError, match="negative"):
        complete(cells(2, 3, -1, 4), tmp_path, workers=1)
    assert calls == [2, 3, -1]
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json"] * 2, "nothing of the one that failed"
    complete(cells(2, 3, 4), tmp_path, workers=1)
    assert calls == [2, 3, -1, 4]


def test_a_part_of_a_run_is_not_saved_as_its_result(tmp_path, monkeypatch):
    real = sweep.train

    def stop(event):
        if event.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "train", lambda *a, callbacks, **more: real(*a, callbacks=[*callbacks, stop], **more))
    cell = training("interrupted", SMALL)
    with pytest.raises(KeyboardInterrupt):
        complete([cell], tmp_path, workers=1)
    assert sweep.saved([cell], tmp_path) == {}


@pytest.mark.parametrize("content", ["", '{"arguments": {"n": 2}, "resu', "no json", b"\xff\xfe\xfa"])
def test_a_corrupt_file_is_computed_again(content, tmp_path):
    (cell,) = cells(2)
    cell.file(tmp_path).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complete([cell], tmp_path, workers=1) == {cell.name: {"square": 4}}
    assert complete([cell], tmp_path, workers=1) == {cell.name: {"square": 4}}
    assert calls == [2]


def test_a_cell_with_other_arguments_is_computed_again(tmp_path):
    complete([Cell("one", square, {"n": 2})], tmp_path, workers=1)
    assert complete([Cell("one", square, {"n": 3})], tmp_path, workers=1) == {"one": {"square": 9}}
    assert calls == [2, 3]


def test_arguments_are_compared_as_json_holds_them(tmp_path):
    cell = Cell("pairs", dict, {"pair": (1, 2), "by_number": {1: None}})
    complete([cell], tmp_path, workers=1)
    cell.file(tmp_path).write_text(cell.file(tmp_path).read_text().replace('"result": {', '"result": {"kept": true, '))
    assert complete([cell], tmp_path, workers=1)["pairs"]["kept"]


def test_names_become_plain_files(tmp_path):
    assert Cell("digits fedavg(lr=0.1,mu=1e-05) s0/../x", square, {}).file(tmp_path) == (
        tmp_path / "digits_fedavg_lr=0.1_mu=1e-05_s0_.._x.json"
    )


def test_long_names_stay_apart_and_fit_a_file_system(tmp_path):
    one, other = (Cell("a" * 300 + end, square, {"n": n}) for n, end in ((2, "1"), (3, "2")))
    assert len(one.file(tmp_path).name) <= 160
    assert one.file(tmp_path) != other.file(tmp_path)
    assert one.file(tmp_path) == Cell(one.name, square, {}).file(tmp_path)
    complete([one, other], tmp_path, workers=1)
    assert complete([one], tmp_path, workers=1) == {one.name: {"square": 4}}
    assert calls == [2, 3]


@pytest.mark.slow
def test_several_processes_find_the_same(tmp_path):
    work = [Cell(str(n), dict, {"n": n}) for n in range(3)]
    told = []
    found = complete(work, tmp_path, lambda done, total, name: told.append((done, total)), workers=2)
    assert list(found.items()) == [(str(n), {"n": n}) for n in range(3)]
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert complete(work, tmp_path, workers=1) == found


def test_settings_are_checked_when_the_cell_is_made():
    with pytest.raises(InvalidInput, match="did you mean 'rounds'"):
        training("x", {"training.round": 3})
    with pytest.raises(InvalidInput, match="is not an argument of auto"):
        training("x", {"algorithm.lr": 3})


def test_a_cell_that_trains_holds_all_that_json_needs(tmp_path):
    cell = training("small", SMALL)
    assert cell.arguments == json.loads(json.dumps(cell.arguments))
    assert Config.model_validate(cell.arguments["config"]) == resolve(settings=SMALL)
    found = complete([cell], tmp_path, workers=1)
    assert found["small"] == json.loads(cell.file(tmp_path).read_text())["result"]


@pytest.fixture(scope="module")
def last():
    return result({"training.readout": "last"})


def result(more, **arguments):
    return trained(**training("x", {**SMALL, **more}).arguments, **arguments)


def test_a_result_is_the_history_in_seven_digits(tmp_path, last):
    run = run_folder.execute(
        run_folder.prepare(resolve(settings={**SMALL, "training.readout": "last"})), tmp_path / "run"
    )
    for name in KEPT:
        expected = [None if v is None else pytest.approx(v, rel=1e-6) for v in run.history[name]]
        assert last["history"][name] == expected, name
    for name in ("bytes_up", "bytes_down", "gradients", "forwards"):
        assert last["totals"][name] == sum(run.history[name])
    assert last["diverged"] is None


def test_trained_twice_is_the_same_to_the_bit(last):
    assert result({"training.readout": "last"}) == last


def test_the_last_iterates_scores_where_it_is_the_readout_are_not_said_twice(last):
    assert last["history"]["last_loss"] == last["history"]["last_accuracy"] == [None] * 5


@pytest.mark.parametrize(
    ("readout", "every", "rounds", "scored"),
    [
        ("average", 1, 4, [4]),
        ("average", 1, 9, [9]),
        ("average", 1, 10, [9, 10]),
        ("average", 2, 11, [10, 11]),
        ("average", 4, 10, [10]),
        (None, 2, 5, [2, 4, 5]),
    ],
)
def test_when_the_last_iterate_is_scored(readout, every, rounds, scored):
    """With an averaged read-out, in the last fifth of the rounds."""
    more = {"training.readout": readout, "training.evaluate_every": every, "training.rounds": rounds}
    found = result(more)["history"]
    for name in ("last_loss", "last_accuracy"):
        assert [t for t, v in zip(found["round"], found[name], strict=True) if v is not None] == scored


def test_the_last_iterates_scores_are_those_of_the_last_readout(last):
    average = result({"training.readout": "average"})
    for name in ("loss", "accuracy"):
        assert average["history"][f"last_{name}"][-1] == pytest.approx(last["history"][f"test_{name}"][-1], rel=1e-6)
        assert average["history"][f"test_{name}"] != last["history"][f"test_{name}"]
    assert average["history"]["train_loss"] == last["history"]["train_loss"]


@pytest.mark.parametrize("recipe", ["fedexp", "fedexpm"])
def test_the_pairs_scores_are_those_of_a_recipe_that_returns_the_mean_of_two(recipe):
    found = result({"algorithm.name": recipe}, pair=1)
    history = found["history"]
    assert history["pair_loss"] == pytest.approx(history["test_loss"], rel=1e-5)
    assert history["pair_accuracy"] == pytest.approx(history["test_accuracy"], abs=1e-3)
    assert history["pair_loss"] != history["last_loss"]
    late = result({"algorithm.name": recipe}, pair=2)["history"]["pair_accuracy"]
    assert late == [None, *history["pair_accuracy"][1:]]
    sizes = [len(c) for c in run_folder.prepare(resolve(settings=SMALL)).clients]
    assert found["batch_share"] == pytest.approx(sum(min(1, 40 / n) for n in sizes) / len(sizes))


def test_inputs_may_be_scaled(last):
    """Those of the test set too."""
    assert result({"training.readout": "last"}, scale=1.0) == last
    scaled = result({"training.readout": "last"}, scale=20.0)
    assert scaled["history"]["train_loss"] != last["history"]["train_loss"]
    config = training("x", SMALL).arguments["config"]
    prepared = sweep._prepared(json.dumps(config["data"]), json.dumps(config["model"]))
    other = sweep._scaled(prepared, 20.0)
    assert torch.equal(other.test[0], 20 * prepared.test[0]) and torch.equal(other.test[1], prepared.test[1])
    for one, two in zip(prepared.clients, other.clients, strict=True):
        assert torch.equal(two.take()[0], 20 * one.take()[0]) and torch.equal(two.take()[1], one.take()[1])


def test_a_run_that_diverges_says_when():
    found = result({"algorithm.lr": 1e38, "training.readout": "average"})
    assert found["diverged"] >= 1
    assert len(found["history"]["round"]) == found["diverged"] - 1
    assert set(found["history"]) == {*KEPT, "last_loss", "last_accuracy"}


@pytest.mark.parametrize("text", ["null", "[]", "1", '{"arguments": {"n": 1}}'])
def test_a_file_of_another_shape_is_computed_again(text, tmp_path):
    cell = Cell("a", trained, {"n": 1})
    cell.file(tmp_path).write_text(text)
    assert sweep._kept(cell, tmp_path) is None


def test_two_cells_of_one_name_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="two different cells are named 'a'"):
        complete([Cell("a", trained, {"n": 1}), Cell("a", trained, {"n": 2})], tmp_path)


def test_the_pair_is_of_successive_rounds_where_not_all_are_evaluated():
    every, some = (result({"training.evaluate_every": n, "training.rounds": 4}, pair=1)["history"] for n in (1, 2))
    for name in ("pair_loss", "pair_accuracy"):
        assert some[name] == [None, every[name][1], None, every[name][3]]


def test_a_batch_is_at_most_all_of_a_clients_data():
    assert result({"training.batch_size": 10_000, "training.rounds": 1}, pair=1)["batch_share"] == 1


def test_the_seconds_of_a_resumed_cell_are_those_of_all_its_parts(tmp_path):
    cell = Cell("resumed", lambda folder: {"seconds": 3600.0, "score": 1}, {}, resumes=True)
    assert complete([cell], tmp_path, workers=1) == {"resumed": {"score": 1}}
    assert json.loads(cell.file(tmp_path).read_text())["seconds"] == 3600


def test_a_round_that_was_done_again_counts_once_as_it_was_done_last(tmp_path):
    cell = Cell("begun", dict, {}, resumes=True)
    file = cell.file(tmp_path).with_suffix("") / sweep.ROUNDS
    file.parent.mkdir()
    rows = [{"round": 1, "a": 1}, {"round": 2, "a": 2}, {"round": 2, "a": 3}, {"round": 3, "a": 4}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sweep.begun([cell], tmp_path) == {"begun": [rows[0], rows[2], rows[3]]}
