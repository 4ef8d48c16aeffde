"""The benchmark counts what travels, and adds up right; how fast it is, is not a test's business."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys

import pytest
from typer.testing import CliRunner

from fedstride.app.cli import app
from fedstride.research.bench import show_wire, wire
from fedstride.research.bench.cases import CaseTiming, Square
from fedstride.research.bench.launch import APP, ENDED, Launched

pytestmark = pytest.mark.slow

SERVER = {
    **{"parameters": 10**6, "seconds_per_reply": 0.01, "bytes_per_reply": 4_000_500},
    "open_in_order": {"1000": 9, "10000": 13},
    "open_as_they_come": {"1000": 385, "10000": 3870},
}


def timed(side, clients, seconds, floor=()):
    size = 4 * side**2 * clients
    return vars(
        CaseTiming(vars(Square(side, clients)), list(seconds), list(floor), [size, size], [size + 9, size + 7], 2**20)
    )


def report(**engines):
    found = {"machine": {"cpu": "one", "cores": 2, "torch": "2"}, "load": 0.5, "repeats": 3, "engines": engines}
    found |= {"notes": {}, "server": SERVER}
    return {**found, "claims": wire.claims(found), "paper": wire.on_paper(found)}


def test_what_fedstride_adds_is_the_median_of_pairs():
    assert wire.added(timed(1000, 2, [5.0, 9.0, 6.0], [4.5, 6.0, 5.75])) == 0.5


@pytest.mark.parametrize("more, kept", [(0.9, True), (1.1, False)])
def test_claims_say_what_is_kept(more, kept):
    slow = timed(1000, 2, [1 + more] * 3, [1.0] * 3)
    (claim,) = report(simulation=[timed(100, 2, [9.0] * 3, [1.0] * 3), slow])["claims"]
    assert claim["what"].startswith("simulation: seconds that fedstride adds")
    assert claim["kept"] is kept and claim["measured"] == pytest.approx(more)


@pytest.mark.parametrize("seconds, kept", [(0.9, True), (1.1, False)])
def test_a_deployed_round_is_compared_with_a_second_and_a_large_one_with_flowers_own(seconds, kept):
    flowers = [timed(side, 3, [8.0] * 3, [7.0] * 3) for side in (100, 1000, 5000)]
    ours = [timed(side, 3, [seconds + (side == 5000) * 7.0] * 3, [0.5] * 3) for side in (100, 1000, 5000)]
    found = report(deployment=flowers, supernode=ours)
    assert [claim["kept"] for claim in found["claims"]] == [kept] * 3
    assert [claim["measured"] for claim in found["claims"]] == pytest.approx([seconds] * 3)
    assert show_wire.deployed(found)[1:] == [
        ["10,000", "3", "7", "8", "0.5", f"{seconds}"],
        ["1,000,000", "3", "7", "8", "0.5", f"{seconds}"],
        ["25,000,000", "3", "7", "8", "0.5", f"{seconds + 7:.3g}"],
    ]


@pytest.mark.parametrize("two, kept", [(2.0, True), (3.0, False)])
def test_two_processes_are_compared_round_by_round(two, kept):
    lanes = {"cnn, 1 process": [timed(0, 10, [4.0, 4.0, 8.0])], "cnn, 2 processes": [timed(0, 10, [two, 2.0, 2 * two])]}
    (claim,) = report(**lanes)["claims"]
    assert claim["kept"] is kept and claim["measured"] == pytest.approx(4 / two)


def test_the_tables_show_what_was_measured():
    one = report(
        local=[timed(100, 2, [0.1] * 3), timed(100, 10, [0.2] * 3), timed(1000, 2, [0.3] * 3)],
        simulation=[timed(1000, 2, [0.5, 0.6, 0.7], [0.4, 0.5, 0.6])],
    )
    assert show_wire.sizes(one)[1:] == [
        ["10,000", "0.1", "-", "-", "-", "-"],
        ["1,000,000", "0.3", "-", "0.5", "0.6", "+0.10"],
    ]
    assert show_wire.growth(one)[1:] == [
        ["local", "10,000", "2", "0.1", "50", "", "1"],
        ["local", "10,000", "10", "0.2", "20", "", "1"],
    ]
    assert show_wire.sizes_of_messages(one)[1:] == [
        ["simulation", "1,000,000", "2", "8,000,000", "8,000,009", "8,000,000", "8,000,007"]
    ]
    assert show_wire.markdown(one).count("\n|---|") == 5


def test_the_sum_of_a_cohort_in_order_is_as_deep_as_its_tree_and_in_any_order_grows_with_it():
    for m in (2, 64, 1000):
        assert wire.open_nodes(range(m)) <= math.ceil(math.log2(m)) + 1
    shuffled = random.Random(1).sample(range(1000), 1000)
    assert 300 < wire.open_nodes(shuffled) < 500


def test_the_paper_adds_up():
    small, large = report()["paper"]
    assert (small["cohort"], large["cohort"]) == (1_000, 10_000)
    assert small["bytes_each_way"] == 1000 * 4_000_500 and small["network_seconds"] == pytest.approx(3.2004)
    assert large["ingest_core_seconds"] == pytest.approx(100)
    assert small["sum_bytes_in_order"] == 9 * 4_000_000 and small["sum_bytes_as_they_come"] == 385 * 4_000_000
    assert small["sum_bytes_all_at_once"] == 4_000_000_000 and small["heartbeats_per_second"] == pytest.approx(
        33_333.3, 1e-4
    )
    rows = show_wire.paper(report())
    assert rows[0] == ["estimate for a round", "cohort of 1,000", "cohort of 10,000"] and rows[1][1:] == ["4.0", "40.0"]
    assert wire.on_paper({"server": {}}) == [] and len(show_wire.paper({"paper": []})) == 1


def test_lanes_take_turns_and_count_their_bytes():
    sizes, said = wire.Sizes(repeats=2), []
    found = wire.in_turns({"local": (0, None), "torchrun": (2, None)}, [Square(6, 3)], sizes, said.append)
    vector = 4 * 36
    for (result,) in found.values():
        assert len(result["seconds"]) == 2 and all(s > 0 for s in result["seconds"])
        assert result["counted"] == [3 * vector] * 2 and result["peak"] > 2**20
    assert found["local"][0]["real"] == [0, 0]
    down, up = found["torchrun"][0]["real"]
    assert vector < down < vector + 500  # the model goes to one other process, with a few facts
    assert vector < up < 3 * vector + 2000
    assert len(said) == 3


def test_rounds_in_flower_alternate_with_those_of_a_plain_app(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from fedstride.research.bench.federated import serve
    from tests.engine.grid import Grid

    at = Launched(tmp_path)
    place = at.place("simulation", {"do": "wire", "cases": [{"side": 5, "clients": 2}], "repeats": 2})
    at._app(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.chdir(place)
    grid = Grid(importlib.import_module(APP).client, {7: {"partition-id": 0}, 9: {"partition-id": 1}})
    monkeypatch.delitem(sys.modules, APP)
    serve(str(place), grid)
    assert (place / ENDED).read_text() == ""
    result = json.loads((place / "0.json").read_text())
    assert len(result["seconds"]) == len(result["floor"]) == 2
    assert result["counted"] == [2 * 4 * 25] * 2
    assert all(2 * 100 < size < 2 * 100 + 4000 for size in result["real"])
    assert grid.count == 2 + 3 * 2 * 2  # who are you; three rounds of each kind


def test_a_reply_is_taken_in_and_has_the_size_of_its_numbers():
    pytest.importorskip("flwr")
    from fedstride.research.bench.federated import ingest

    seconds, size = ingest(1000, replies=3)
    assert seconds > 0 and 4000 < size < 6000


def test_the_command_writes_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "measure", lambda engines, sizes, say: report(local=[timed(100, 2, [0.1] * 3)]))
    done = CliRunner().invoke(app, ["bench", "wire", "--out", str(tmp_path), "--markdown"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "wire.json").read_text())["engines"]["local"][0]["seconds"] == [0.1] * 3
    assert "| 10,000 | 0.1 |" in done.stdout


def test_replies_are_fetched_so_that_the_sum_has_few_gaps():
    replies = pytest.importorskip("fedstride.engine.flower.replies")
    arrivals = random.Random(1).sample(range(2000), 2000)
    order = list(wire.fetched(arrivals, replies.TOGETHER))
    assert sorted(order) == list(range(2000))
    assert wire.open_nodes(order) < 300 < 700 < wire.open_nodes(arrivals)
    late = [*range(1, 2000), 0]  # the first one keeps nobody from being fetched
    assert list(wire.fetched(late, replies.TOGETHER)) == late
