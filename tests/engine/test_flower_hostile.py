"""Hostile nodes of a Flower federation: one of them costs one client, never the run; and a node's data stays there."""

from __future__ import annotations

import json
import logging
import warnings
from typing import ClassVar

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedstride.engine import flower
from fedstride.engine.flower import node, records
from fedstride.engine.flower.clients import FlowerClients
from fedstride.engine.flower.project import arguments
from tests.engine.grid import Grid
from tests.engine.test_flower import (
    PROJECT,
    a_grid,
    load_data,
    make_model,
    more,
    rewrite,
    settings,
    spoil_data,
    spoiled,
)

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def junk(record, made):
    def change(reply):
        reply.content[record] = made
        return reply

    return change


EXTRA = {
    "a record that was not asked for": junk("more", ArrayRecord({"junk": Array(torch.zeros(10**6).numpy())})),
    "a fact that was not asked for": more("upload", "more", "x" * 10**6),
    "10,000 records": lambda reply: [junk(str(i), ConfigRecord({}))(reply) for i in range(10_000)][-1],
    "a number of 10^6 parts": more("upload", "metrics.gradients", [1] * 10**6),
    "junk beside a problem": lambda reply: junk("problem", ConfigRecord({"text": "x" * 10**6}))(reply),
    "effective steps below zero": rewrite("upload", "fields.effective_steps", -1.0),
    "a negative count": rewrite("upload", "metrics.gradients", -1),
}


@pytest.mark.parametrize("case", EXTRA)
def test_junk_costs_one_answer(case):
    run = flower.train(PROJECT, spoiled(a_grid(), 2, EXTRA[case]), settings(algorithm="fednova"))
    assert run.history["lost"] == [0, 1, 0]


@pytest.mark.parametrize("case", ["a record that was not asked for", "a fact that was not asked for"])
def test_junk_is_counted(case):
    run = flower.train(PROJECT, spoiled(a_grid(), 2, EXTRA[case]), settings())
    assert run.history["bytes_up"][1] > 10**6 > run.history["bytes_up"][0] > 0


def test_nodes_do_not_declare_the_size_of_their_answers():
    """What arrived is measured: here, an update that should be sparse is dense."""
    given = settings(algorithm='custom(up={part="TopK", k=0.1})', kind="wide", local_steps=2)
    honest = flower.train(PROJECT, a_grid(), given).history["bytes_up"]
    padded = rewrite_sparse(lambda v: v + 1e-9)
    lying = flower.train(PROJECT, spoiled(a_grid(), 2, padded), given).history["bytes_up"]
    assert (lying[0], lying[2]) == (honest[0], honest[2])
    assert lying[1] > honest[1] + 8 * 10_000 * 0.8


def rewrite_sparse(change):
    def spoil(reply):
        upload = reply.content["upload"]
        parts = {name: upload.pop(name) for name in list(upload) if name.startswith("update")}
        upload["update"] = Array(change(records.tensors(parts)["update"]).numpy()).data
        return reply

    return spoil


DEEP = "[" * 100_000
CALL = {
    "deep JSON": rewrite("about", "found", DEEP),
    "JSON that is not a table": rewrite("about", "found", "[1, 2]"),
    "a wrong type in it": rewrite("about", "found", json.dumps({"moving": 3, "random": 1, "features": "x"})),
    "no number of samples": rewrite("about", "samples", "many"),
    "2^62 samples": rewrite("about", "samples", 2**62),
    "no identity": junk("identity", ConfigRecord({})),
    "another client's number": rewrite("about", "client", 0),
    "no number": rewrite("about", "client", "none"),
    "20 MB about itself": more("identity", "more", "x" * 20_000_000),
    "a clock that is not a number": rewrite("about", "time", float("nan")),
}


@pytest.mark.parametrize("case", CALL)
def test_an_unneeded_node_cannot_stop_the_roll_call(case):
    """Node 99 comes first, says that it is client 2, and answers the roll call with rubbish."""
    grid = a_grid()
    grid.nodes[99] = {"partition-id": 2}
    grid.online.add(99)
    grid.spoil = lambda reply: (
        CALL[case](reply)
        if reply.metadata.src_node_id == 99 and reply.metadata.message_type == "query.about"
        else reply
    )
    run = flower.train(PROJECT, grid, settings(deadline=20))
    assert len(run.history) == 3


def calling(case: str, node: int) -> Grid:
    """A node that the run needs answers the roll call with rubbish."""
    grid, change = a_grid(), {**CALL, **OTHER}[case]
    grid.spoil = lambda reply: (
        change(reply) if reply.metadata.src_node_id == node and reply.metadata.message_type == "query.about" else reply
    )
    return grid


OTHER = {
    "other samples": rewrite("about", "kind of samples", "([5] float64, [] int64)"),
    "other buffers": rewrite("about", "found", lambda text: json.dumps({**json.loads(text), "moving": ["x"]})),
    "a problem": junk("problem", ConfigRecord({"kind": "X", "text": "no data", "client": 0})),
}
NEEDED = [case for case in (*CALL, *OTHER) if case != "another client's number"]


@pytest.mark.parametrize("case", NEEDED)
@pytest.mark.parametrize("quorum", [{"quorum": 0.5}, {"guard": "quorum=3"}], ids=["share", "guard"])
def test_a_needed_node_cannot_stop_the_roll_call_of_a_run_with_a_quorum(case, quorum):
    """It is client 0, to whose answer the others' could be compared."""
    with pytest.warns(fs.FedstrideWarning, match=r"the run starts without client\(s\) 0"):
        run = flower.train(PROJECT, calling(case, 100), settings(deadline=1, **quorum))
    assert run.history["participants"] == [3] * 3 and run.history["lost"] == [1] * 3


@pytest.mark.parametrize("case", NEEDED)
def test_without_a_quorum_a_run_needs_all_clients_and_names_the_node(case):
    with pytest.raises(fs.InvalidInput, match=r"node 100.*To start without such clients, set quorum"):
        flower.train(PROJECT, calling(case, 100), settings(deadline=1))


def test_a_quorum_that_is_not_met_is_an_error_that_names_the_node():
    with pytest.raises(fs.InvalidInput, match=r"node 102: .* 3 of 4 clients have a usable node; expected at least 4"):
        flower.train(PROJECT, calling("deep JSON", 102), settings(quorum=0.9))


def test_a_run_with_a_quorum_starts_without_a_node_that_does_not_come():
    grid = a_grid()
    grid.online.remove(102)
    with pytest.warns(fs.FedstrideWarning, match=r"the run starts without client\(s\) 2"):
        run = flower.train(PROJECT, grid, settings(deadline=0.5, quorum=0.5))
    assert run.history["lost"] == [1] * 3


def test_a_run_that_started_without_a_client_resumes_without_it():
    """Its number of samples was unknown, so it cannot be added."""
    given = settings(quorum=0.5, out="run", weights="samples", algorithm="scaffold")
    with pytest.warns(fs.FedstrideWarning, match="starts without"):
        flower.train(PROJECT, calling("deep JSON", 102), given)
    run = flower.train(PROJECT, a_grid(), {**given, "rounds": 4})
    assert run.history["lost"] == [1] * 4


@pytest.mark.slow
def test_a_number_stays_with_the_first_node():
    grid = a_grid()
    seen = []

    def another(reply):
        if reply.metadata.group_id == "0" and 100 in grid.online:
            grid.nodes[200] = {"partition-id": 0}
            grid.online = (grid.online | {200}) - {100}
        if reply.metadata.group_id == "2":
            seen.append(reply.metadata.src_node_id)
        return reply

    grid.spoil = another
    with pytest.warns(fs.FedstrideWarning, match="client 0 is node 100 and node 200"):
        flower.train(PROJECT, grid, settings(bound=True, quorum=0.5, deadline=5))
    assert seen and 200 not in seen


@pytest.mark.parametrize("bound", [True, False])
def test_a_number_stays_with_the_first_node_after_a_restart_of_the_server(bound):
    given = settings(bound=bound, quorum=0.5, out="run", deadline=5)
    flower.train(PROJECT, a_grid(), given)
    grid, seen = a_grid(), []
    grid.nodes[200] = grid.nodes.pop(100)
    grid.online = set(grid.nodes)
    grid.spoil = lambda reply: (seen.append(reply.metadata.src_node_id) if reply.metadata.group_id else None, reply)[1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = flower.train(PROJECT, grid, {**given, "rounds": 4})
    assert run.history["lost"] == [0, 0, 0, int(bound)] and (200 in seen) != bound
    assert any("client 0 was node 100 in this run, and is node 200 now" in str(w.message) for w in caught) == bound


@pytest.mark.parametrize("nodes", ["[1]", '{"0": Infinity}', "{" * 9999, '{"a": 1}'])
def test_nodes_of_a_checkpoint_of_somebody_else(nodes):
    clients = object.__new__(FlowerClients)
    texts = {"token": "t", "names": "[{}]", "nodes": nodes}
    with pytest.raises(fs.Corrupt, match="checkpoint: it does not contain"):
        clients.restore({name: torch.frombuffer(bytearray(v.encode()), dtype=torch.uint8) for name, v in texts.items()})


LOSSES = {  # by round, from 0: what a node says about its training loss
    "grows": lambda t: 10.0 ** (t + 1),
    "is lowest at the start": lambda t: -1e4 if t == 0 else 1e4,
}


def losing(kind: str) -> Grid:
    """Node 102 lies about its training loss."""
    grid = a_grid()

    def spoil(reply):
        if reply.metadata.src_node_id == 102 and reply.metadata.message_type == "train.updates":
            reply.content["upload"]["metrics.train_loss"] = LOSSES[kind](int(reply.metadata.group_id))
        return reply

    grid.spoil = spoil
    return grid


@pytest.mark.parametrize("kind", LOSSES)
def test_a_false_training_loss_does_not_end_a_run(kind):
    given = settings(rounds=8, stop="metric=train_loss, patience=2", batch_size="none", local_steps=1)
    honest = flower.train(PROJECT, a_grid(), given)
    assert (honest.ended, honest.best.round) == ("finished", 8)
    run = flower.train(PROJECT, losing(kind), given)
    assert (run.ended, run.best.round) == ("finished", 8)
    assert run.history["lost"] == [int(kind == "is lowest at the start"), *[0] * 7]  # a cross entropy is not negative


PATIENT = "Erika Mustermann"


def quoting(settings, given):
    if given["partition-id"] == 2:
        float(PATIENT)  # ValueError: could not convert string to float: 'Erika Mustermann'
    return load_data(settings, given)


def test_texts_of_exceptions_stay_at_the_node(caplog):
    grid = a_grid()
    grid.apps[102] = flower.client_app(flower.Project(make_model, "cross_entropy", quoting))
    replies = []
    grid.spoil = lambda reply: (replies.append(str(reply.content if reply.has_content() else reply.error)), reply)[1]
    with pytest.raises(fs.InvalidInput, match="ValueError in quoting") as caught:
        flower.train(PROJECT, grid, settings())
    assert PATIENT not in str(caught.value) + "".join(replies)


@pytest.mark.parametrize("kind", [RuntimeError, fs.InvalidInput])
def test_texts_of_exceptions_during_training_stay_at_the_node(kind):
    def fails():
        raise kind(PATIENT)

    text = str(node._answered(fails, Message(RecordDict(), 1, "train.updates"), _Context).content)
    assert f"{kind.__name__} in fails" in text
    assert PATIENT not in text


class _Context:
    node_config: ClassVar = {"client": 3}


@pytest.mark.parametrize(
    "error",
    [
        fs.InvalidInput(f"column 'name': {PATIENT!r} is not a number."),
        fs.InvalidInput(f'got "{PATIENT}"; expected a number.'),
        fs.InvalidInput(f"column b: {PATIENT.encode()!r} is not a number."),
        fs.InvalidInput(f"""got {PATIENT + "'s" + ' "Ward"'!r}; expected a number."""),
        fs.InvalidInput(f"the test label {PATIENT!r} does not occur in the training samples."),
        fs.InvalidInput("clients[0]: target 4711 is out of range; this loss expects -1 or +1."),
        fs.InvalidInput("table: labels such as 4711.5 are not classes; use regression=True."),
        ValueError(PATIENT),
        KeyError(PATIENT),
    ],
)
def test_what_a_node_tells_quotes_nothing(error):
    told = records.told(error)
    assert not any(word in told for word in ("Erika", "Mustermann", "Ward", "4711"))


def test_texts_of_exceptions_that_were_wrapped_twice_stay_at_the_node():
    def wrapped():
        try:
            raise RuntimeError(f"the row of {PATIENT}")
        except RuntimeError as error:
            raise fs.InvalidInput(f"table: not readable ({error}).") from error

    with pytest.raises(fs.InvalidInput) as caught:
        try:
            wrapped()
        except fs.InvalidInput as error:
            raise fs.InvalidInput(f"data: {error}") from error
    own = caught.value.with_traceback(None)  # as if it were raised by fedstride
    assert records.told(own) == "data: table: not readable (RuntimeError)."


def test_advice_survives():
    text = "client=None is invalid: expected the number of this node's client. Use --node-config 'client=0'."
    assert records.told(fs.InvalidInput(text)) == text


def test_labels_are_not_quoted():
    project = spoil_data(lambda X, y: (X, y + 4711))
    grid = a_grid()
    grid.app = flower.client_app(project)
    with pytest.raises(fs.InvalidInput) as caught:
        flower.train(project, grid, settings())
    assert "471" not in str(caught.value)


def test_texts_from_nodes_cannot_forge_log_lines(caplog):
    def change(reply):
        reply.content.clear()
        reply.content["problem"] = ConfigRecord({"kind": "X", "text": "a\n2026-01-01 root: \x1b[31mfine" + "x" * 9999})
        return reply

    with caplog.at_level(logging.WARNING, "flwr.fedstride"):
        run = flower.train(PROJECT, spoiled(a_grid(), 2, change), settings())
    assert run.history[1]["refused"] == {"crashed": 1}
    said = [record.getMessage() for record in caplog.records if "root:" in record.getMessage()]
    assert said and all("\n" not in line and "\x1b" not in line and len(line) < 700 for line in said)


@pytest.mark.parametrize("name", ["fedstride", "frozen parameters and buffers"])
def test_what_a_node_says_of_itself_cannot_forge_log_lines(name, caplog):
    grid, forged = a_grid(), rewrite("identity", name, "1\n2026-01-01 root: \x1b[31mfine")
    grid.spoil = lambda reply: forged(reply) if reply.metadata.src_node_id == 102 else reply
    with caplog.at_level(logging.WARNING, "flwr.fedstride"), pytest.raises(fs.InvalidInput) as caught:
        flower.train(PROJECT, grid, settings())
    said = [record.getMessage() for record in caplog.records if "root:" in record.getMessage()]
    assert said and all("\n" not in line and "\x1b" not in line for line in [*said, str(caught.value)])


@pytest.mark.parametrize("lie", [{"features": 7}, {"reduction": "sum"}])
def test_the_others_do_not_believe_what_one_node_found_out_about_the_model(lie):
    """The result of the largest client's trial run used to be sent to all."""
    honest = flower.train(PROJECT, a_grid(), settings(normalise=True, local_steps=2))
    grid = a_grid()

    def change(reply):
        if reply.metadata.src_node_id == 102 and "about" in reply.content:
            about = reply.content["about"]
            about["samples"] = 10**6
            about["found"] = json.dumps({**json.loads(about["found"]), **lie})
        return reply

    grid.spoil = change
    nodes = flower.server.gathered(PROJECT, grid, settings())
    assert nodes.found == flower.server.gathered(PROJECT, a_grid(), settings()).found
    run = flower.train(PROJECT, grid, settings(normalise=True, local_steps=2))
    assert run.history["lost"] == honest.history["lost"]


def test_weights_and_steps_of_the_operator_need_no_counts_of_the_nodes():
    given = settings(algorithm="fednova", weights="[6, 9, 5, 8]", local_steps="[2, 3, 2, 3]")
    assert arguments(given)["weights"] == [6.0, 9.0, 5.0, 8.0] and arguments(given)["local_steps"] == [2, 3, 2, 3]
    grid, lie = a_grid(), rewrite("about", "samples", 10**6)
    grid.spoil = lambda reply: lie(reply) if reply.metadata.src_node_id == 102 and "about" in reply.content else reply
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.FedstrideWarning)
        run = flower.train(PROJECT, grid, given)
    honest = flower.train(PROJECT, a_grid(), given)
    torch.testing.assert_close(run.x, honest.x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("weights", ["[1, 2]", "[1, 2, 3, x]", "[[1], 2, 3, 4]", "[", "[1, 2, 3, -4]"])
def test_invalid_lists_are_refused(weights):
    with pytest.raises(fs.InvalidInput, match="weights"):
        flower.train(PROJECT, a_grid(), settings(weights=weights))


def test_guard_privacy_and_robust_means_are_settings():
    given = settings(guard="norm=7.5, quorum=0.9", privacy="noise=0.5, clip=0.1", stop="none")
    found = arguments(given)
    assert found["guard"] == fs.Guard(norm=7.5, quorum=0.9)
    assert found["algorithm"].privacy == fs.Privacy(noise=0.5, clip=0.1)
    robust = 'custom(step={part="Constant", lr=0.1}, aggregate={part="TrimmedMean", share=0.3})'
    assert arguments(settings(algorithm=robust))["algorithm"].aggregate == fs.TrimmedMean(0.3)


def test_the_guard_reaches_the_run():
    with pytest.raises(fs.Diverged, match="exploded"):
        flower.train(PROJECT, a_grid(), settings(guard="norm=1e-9"))


def test_private_runs_on_flower_spend_epsilon():
    run = flower.train(PROJECT, a_grid(), settings(privacy="noise=4.0, clip=0.1, delta=1e-3", batch_size=4))
    assert 0 < run.history[0]["epsilon"] < run.history[2]["epsilon"] < 9


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("privcy", "did you mean 'privacy'"),
        ("guards", "did you mean 'guard'"),
        ("batch_sise", "did you mean 'batch_size'"),
        ("guard.norm", 'write guard="norm=..."'),
    ],
)
def test_a_misspelt_setting_is_refused(name, match):
    with pytest.raises(fs.InvalidInput, match=match):
        arguments({**settings(), name: 1})


@pytest.mark.parametrize("bad", [{"guard": 3}, {"guard": "nrm=3"}, {"privacy": "clip=1"}, {"bound": "yes"}])
def test_invalid_values_of_these_settings_are_refused(bad):
    with pytest.raises(fs.InvalidInput):
        flower.train(PROJECT, a_grid(), settings(**bad))


def one_hot(settings, given):
    inputs, targets = load_data(settings, given)
    return inputs, torch.nn.functional.one_hot(targets, 3).double()


REGRESSION = flower.Project(make_model, "mse", one_hot)


def loud(change) -> Grid:
    """Node 102 lies about the mean squares of its gradients."""
    grid = a_grid()
    grid.app = flower.client_app(REGRESSION)
    grid.spoil = lambda reply: (
        rewrite("upload", "mean_squares", changed(change))(reply)
        if reply.metadata.src_node_id == 102 and reply.metadata.message_type == "train.updates"
        else reply
    )
    return grid


def changed(change):
    return lambda data: Array(change(records.tensor_of(data)).numpy()).data


def one_tensor(squares):
    squares[squares.argmin()] *= 1000
    return squares


@pytest.mark.parametrize("change", [lambda squares: 3000 * squares, one_tensor], ids=["all", "one tensor"])
def test_false_mean_squares_of_gradients_do_not_stop_auto(change):
    """The steps of all clients are divided by their root."""
    given = settings(algorithm="auto", rounds=12, local_steps=3, batch_size="none")
    honest = flower.train(REGRESSION, loud(lambda squares: squares), given)
    with pytest.warns(fs.FedstrideWarning, match=r"client\(s\) 2 are more than 30 times those of the median client"):
        run = flower.train(REGRESSION, loud(change), given)
    assert run.history["lost"] == [0] * 12
    gains = [one.history[0]["train_loss"] - one.history[-1]["train_loss"] for one in (honest, run)]
    assert gains[1] > 0.8 * gains[0]
