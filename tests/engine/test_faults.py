"""Fault injection: faults are as configured, seeded by round, call and client, and nothing else changes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import fedstride as fs
from fedstride.client.exchange import Exchange, Upload
from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.core.files import read_tensors
from fedstride.core.message import unpack
from fedstride.core.rows import generator, sq
from fedstride.engine import Order
from fedstride.engine.admission import message
from fedstride.engine.faults import ABSENT, DAMAGED, DRAWN, Faulty, failing_work
from fedstride.training.checkpoint import files
from tests.problems import Fixed, classification, classifier, learn, same_bits

D = 6
ALL = Faulty(**dict.fromkeys(DRAWN, 0.06), spread=1.0, deadline=1.5)


def upload(clients, main="update"):
    """Return rows that depend only on the client."""
    W = torch.stack([torch.randn(D, generator=generator(c)) for c in clients])
    metrics = {"train_loss": W[:, :1], "finite": torch.ones(len(W), 1, dtype=torch.bool)}
    return Upload({"control": 2 * W, main: W, "square": sq(W)}, metrics, {"control": W}, [4 * D] * len(W))


class Inner:
    """Clients in chunks; exchange() returns (clients, upload) of each chunk."""

    leads = True

    def __init__(self, chunk=4, main="update"):
        self.chunk, self.main = chunk, main

    def open(self, task, exchanges, fresh):
        self.exchanges = exchanges
        return self

    def about(self):
        return {"engine": "inner"}

    def exchange(self, order):
        parts = [order.cohort[i : i + self.chunk] for i in range(0, len(order.cohort), self.chunk)]
        chunks = [SimpleNamespace(context=context(part, order.round, order.call)) for part in parts]
        return [(chunk.context.clients, self.exchanges["updates"].work(chunk, order.x, {})) for chunk in chunks]


def context(clients, round, call=0):
    return SimpleNamespace(clients=tuple(clients), round=round, call=call)


WORK = {"updates": Exchange(lambda chunk, x, memory: upload(chunk.context.clients, x))}


def opened(faulty, work=WORK, **inner):
    return replace(faulty, engine=Inner(**inner)).open(None, work, None)


def ask(clients, round=3, cohort=range(40), main="update", call=0):
    return clients.exchange(Order("updates", main, None, {}, round, list(cohort), call=call))


def outcome(answers):
    """Return what arrived in place of each failed client's row."""
    found = {}
    for clients, up in answers:
        found |= {clients[row]: why for row, why in up.lost.items()}
        found |= {clients[row]: [content(data) for data in sent] for row, sent in up.replies.items()}
    return found


def content(data):
    """Return the content of a message; the order of its header does not matter."""
    try:
        tensors, meta = unpack(data, "a reply")
    except Corrupt:
        return "corrupt"
    return meta, {name: (list(v.shape), v.numpy().tobytes()) for name, v in tensors.items()}


def reply(kind, main="update", round=3):
    """Return the content of a damaged answer of client 7, and the original row."""
    ((_, up),) = ask(opened(Faulty(**{kind: 1.0})), round, [7], main)
    assert not up.lost
    return up.replies[0], upload([7], main)


def parts(data):
    tensors, meta = unpack(data, "a reply")
    fields = {k.removeprefix("fields/"): v for k, v in tensors.items() if k.startswith("fields/")}
    return fields, {k.removeprefix("metrics/"): v for k, v in tensors.items() if k.startswith("metrics/")}, meta


def test_faults_have_the_requested_frequencies():
    n = 8_000
    chances = {kind: 0.02 * (i + 1) for i, kind in enumerate(DRAWN)}
    late = 0.5 * math.erfc(math.log(1.5) / 0.5 / math.sqrt(2))  # P(exp(0.5 N) > 1.5)
    faulty = Faulty(**chances, spread=0.5, deadline=1.5)
    found = Counter(faulty.fault(generator(i)) for i in range(n))
    expected = {**chances, "late": (1 - sum(chances.values())) * late}
    assert set(found) == {*expected, None}
    for kind, p in expected.items():
        assert abs(found[kind] - n * p) < 5 * math.sqrt(n * p * (1 - p)), kind


def test_without_faults_uploads_are_unchanged():
    for clients, up in ask(opened(Faulty(spread=1.0, deadline=1e9))):
        assert not up.lost and not up.replies
        assert torch.equal(up.fields["update"], upload(clients).fields["update"])


def test_faults_do_not_depend_on_chunks():
    one, some, whole = (outcome(ask(opened(ALL, chunk=c))) for c in (1, 7, 40))
    assert one == some == whole
    assert 10 < len(one) < 40


def test_faults_do_not_depend_on_the_other_clients():
    found = outcome(ask(opened(ALL)))
    fewer = outcome(ask(opened(ALL), cohort=range(30, 10, -1)))
    assert fewer == {c: what for c, what in found.items() if 10 < c <= 30}


def test_faults_differ_by_round_attempt_and_seed():
    clients = opened(ALL)
    draws = [outcome(ask(clients, round, call=call)) for round, call in ((3, 0), (3, 1), (3, 2), (4, 0), (4, 1))]
    draws.append(outcome(ask(opened(replace(ALL, seed=1)))))
    assert len({tuple(sorted(failed)) for failed in draws}) == len(draws)


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [(Faulty(dropout=1.0), "no answer"), (Faulty(crash=1.0), "crashed"), (Faulty(spread=1.0, deadline=1e-9), "late")],
)
def test_absent_clients_have_a_reason(faulty, reason):
    ((_, up),) = ask(opened(faulty, chunk=3), cohort=[5, 2, 7])
    assert up.lost == {0: reason, 1: reason, 2: reason}
    assert not up.replies


@pytest.mark.parametrize("main", ["update", "gradient"])
@pytest.mark.parametrize(("kind", "is_it"), [("nan", torch.isnan), ("infinite", torch.isinf)])
def test_one_number_is_not_finite(kind, is_it, main):
    (data,), true = reply(kind, main)
    fields, metrics, meta = parts(data)
    bad = [name for name, v in fields.items() if not torch.isfinite(v).all()]
    assert bad == (["update"] if main == "update" else ["control"])  # the longest; of equals, the update
    hit = is_it(fields[bad[0]])
    assert int(hit.sum()) == 1
    assert torch.equal(fields[bad[0]][~hit], true.fields[bad[0]][0][~hit])
    assert torch.equal(fields["square"], true.fields["square"][0])
    assert bool(metrics["finite"])  # what the client says about itself is of no worth
    assert (meta["client"], meta["round"]) == (7, 3)


def test_a_gradient_is_damaged_if_there_is_no_update():
    work = Exchange(lambda *_: Upload({"gradient": torch.ones(1, D)}, {}, {}, [0]))
    ((_, up),) = ask(opened(Faulty(nan=1.0), {"updates": work}), cohort=[1])
    assert int(torch.isnan(parts(up.replies[0][0])[0]["gradient"]).sum()) == 1


def test_an_exploding_update_is_long():
    (data,), true = reply("exploding")
    fields, _, _ = parts(data)
    assert torch.equal(fields["update"], true.fields["update"][0] * 1e12)
    assert torch.equal(fields["control"], true.fields["control"][0])


def test_a_field_may_have_another_length():
    names = set()
    for round in range(12):
        (data,), true = reply("shape", round=round)
        fields, _, _ = parts(data)
        wrong = [name for name, v in fields.items() if v.shape != true.fields[name][0].shape]
        assert len(wrong) == 1
        names |= set(wrong)
    assert names == {"control", "update", "square"}


def test_a_stale_answer_has_the_previous_round_number():
    (data,), true = reply("stale")
    fields, metrics, meta = parts(data)
    assert meta["round"] == 2
    assert all(torch.equal(v, true.fields[name][0]) for name, v in fields.items())
    assert all(torch.equal(v, true.metrics[name][0]) for name, v in metrics.items())


def test_a_duplicate_is_the_original_answer_twice():
    answers, true = reply("duplicate")
    assert [content(data) for data in answers] == [content(message(true, 0, 7, 3))] * 2


def flips(data):
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield content(bytes(flipped))


def test_a_corrupt_message_differs_in_one_bit():
    (data,), true = reply("corrupt")
    assert content(data) == "corrupt"
    assert [found for found in flips(data) if found != "corrupt"] == [content(message(true, 0, 7, 3))]


def test_every_flipped_bit_is_detected():
    assert set(flips(message(upload([7]), 0, 7, 3))) == {"corrupt"}


@pytest.mark.parametrize("kind", DAMAGED)
def test_the_original_upload_is_unchanged(kind):
    true, given = upload(range(4)), upload(range(4))
    chunk = SimpleNamespace(context=context(range(4), 0))
    up = failing_work(Faulty(**{kind: 0.6}), lambda *_: given)(chunk, None, {})
    assert 0 < len(up.replies) < 4
    assert up.bytes == true.bytes
    for mine, theirs in ((up.fields, true.fields), (up.metrics, true.metrics), (up.memory, true.memory)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_faulty_engines_nest():
    inner, outer = Faulty(dropout=0.5, engine=Inner()), Faulty(nan=0.5, seed=1, engine=Inner())
    first, second = outcome(ask(inner.open(None, WORK, None))), outcome(ask(outer.open(None, WORK, None)))
    both = outcome(ask(replace(outer, engine=inner).open(None, WORK, None)))
    assert both == {**first, **second}  # who has a fault gets no other one


def test_other_methods_are_forwarded():
    clients = opened(replace(ALL, crash=0))
    assert clients.chunk == 4
    about = clients.about()
    assert about["engine"] == "inner"
    assert about["faults"] == {k: 0.06 for k in DRAWN if k != "crash"} | {"spread": 1.0, "deadline": 1.5}


@pytest.mark.parametrize(
    "options",
    [
        *({kind: p} for kind in DRAWN for p in (-0.1, 1.1, math.nan, "often", True)),
        {"dropout": 0.5, "nan": 0.3, "corrupt": 0.3},
        {"spread": -1.0, "deadline": 1.0},
        {"spread": 1.0},
        {"deadline": 0.0},
        {"seed": 0.5},
    ],
)
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Faulty(**options)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InvalidInput, match="engine='lokal'"):
        Faulty("lokal").open(None, WORK, None)


def test_probabilities_may_sum_to_one():
    faulty = Faulty(**dict.fromkeys(DRAWN, 1 / len(DRAWN)))
    assert None not in {faulty.fault(generator(i)) for i in range(1000)}
    assert set(ABSENT) | set(DAMAGED) == {*DRAWN, "late"}


# --- whole runs --------------------------------------------------------------------------------------------------------

REASONS = {
    **ABSENT,
    **dict.fromkeys(("nan", "infinite"), "not finite"),
    **{"exploding": "too long", "shape": "wrong shape"},
    **{kind: kind for kind in ("stale", "duplicate", "corrupt")},
}
KINDS = {**{kind: {kind: 0.3} for kind in DRAWN}, "late": {"spread": 1.0, "deadline": 1.7}}
ALGORITHMS = {
    "fedexp": fs.recipes.fedexp(),
    "scaffold": fs.recipes.scaffold(),
    "error feedback": fs.Algorithm(up=fs.TopK(5)),
}
TASK = {"clients": classification((6, 9, 5, 8, 7, 6, 8, 9)), "rounds": 4, "local_steps": 2, "batch_size": 3}
ONE_BY_ONE = fs.engine.Local(oracle="loop")  # a client gets the same bits in any company
LOSSES = {"dropout": 0.15, "crash": 0.05, "nan": 0.05, "shape": 0.05, "corrupt": 0.1, "spread": 0.5, "deadline": 3.0}
MIXED = Faulty(ONE_BY_ONE, duplicate=0.1, **LOSSES)


class Recorder:
    """An engine that records the cohorts and the lost clients."""

    leads = True

    def __init__(self, engine):
        self.engine, self.calls = engine, []

    def open(self, *given):
        clients = self.engine.open(*given)
        ask = clients.exchange

        def exchange(order):
            reply = ask(order)
            self.calls.append((order.round, [client for client, _ in order.cohort], reply.lost))
            return reply

        clients.exchange = exchange
        return clients

    def answered(self):
        """Return the clients that answered in each round."""
        last = {round: [c for c in asked if c not in lost] for round, asked, lost in self.calls}
        return [last[round] for round in sorted(last)]

    def expected(self, faulty):
        """Return the expected counts of refused messages, from the draws alone."""
        counts = [Counter() for _ in self.answered()]
        for i, (round, asked, _) in enumerate(self.calls):
            call = sum(before == round for before, _, _ in self.calls[:i])
            kinds = (faulty.fault(generator(faulty.seed, round, call, client, "fault")) for client in asked)
            counts[round].update(REASONS[kind] for kind in kinds if kind)
        return counts


def remembered(folder):
    """Return the client memory at the end of a run."""
    tensors, _ = read_tensors(files(folder)[-1])
    return {name: v for name, v in tensors.items() if name.startswith("clients/")}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_failed_clients_have_no_effect(kind, algorithm, tmp_path):
    faulty = Faulty(ONE_BY_ONE, **KINDS[kind])
    recorder = Recorder(faulty)
    # Of three clients two are left, or one: sums of so few have the same bits in any order.
    options = {**TASK, "weights": "samples", "guard": fs.Guard(quorum=1, norm=1e6)}
    run = learn(ALGORITHMS[algorithm], engine=recorder, cohort=3, checkpoint=tmp_path / "faulty", **options)

    history = run.history
    assert history["refused"] == [dict(c) for c in recorder.expected(faulty)]
    assert sum(map(len, history["refused"])) > 0
    assert history["participants"] == [len(answered) for answered in recorder.answered()]
    assert [row["lost"] + row["participants"] for row in history] == [3] * 4
    if kind == "duplicate":
        assert history["lost"] == [0] * 4

    survivors = Fixed(recorder.answered())
    other = learn(ALGORITHMS[algorithm], engine=ONE_BY_ONE, cohort=survivors, checkpoint=tmp_path / "other", **options)
    assert torch.equal(run.x, other.x)
    assert history["train_loss"] == other.history["train_loss"]
    mine, theirs = remembered(tmp_path / "faulty"), remembered(tmp_path / "other")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert bool(mine) == (algorithm != "fedexp")


MOST_FAULTS = {"algorithm": "scaffold", "guard": fs.Guard(quorum=0.6, retries=9), "cohort": 6, **TASK}


def test_results_do_not_depend_on_workers_or_chunks():
    engines = [fs.engine.Local(workers=w, chunk=c, oracle="loop") for w, c in ((1, 1), (2, 1), (2, 4))]
    runs = [learn(**MOST_FAULTS, engine=replace(MIXED, engine=e)) for e in engines]
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


def test_a_resumed_run_has_the_same_faults(tmp_path):
    at_once = learn(**MOST_FAULTS, engine=MIXED)
    learn(**{**MOST_FAULTS, "rounds": 2}, engine=MIXED, checkpoint=tmp_path)
    assert same_bits(learn(**MOST_FAULTS, engine=MIXED, checkpoint=tmp_path), at_once)
    assert max(at_once.history["attempts"][2:]) > 1  # the law holds for rounds that were tried again, too


def test_a_run_records_its_faults():
    assert learn(**TASK, engine=MIXED).engine["faults"]["dropout"] == 0.15


def test_clients_without_a_gradient_take_no_local_steps():
    recorder = Recorder(Faulty(ONE_BY_ONE, dropout=0.2))
    run = learn("fedlin", engine=recorder, guard=fs.Guard(quorum=1), **{**TASK, "batch_size": None})
    for (_, asked, lost), (_, again, _) in zip(recorder.calls[::2], recorder.calls[1::2], strict=True):
        assert again == [client for client in asked if client not in lost]
    assert run.history["participants"] == [len(answered) for answered in recorder.answered()]
    assert [row["lost"] for row in run.history] == [row["refused"].get("no answer", 0) for row in run.history]


def test_a_round_without_answers_is_given_up():
    with pytest.raises(fs.TooFew, match=r"Round 1 was given up after 6 attempts.*no answer: 8") as caught:
        learn(**TASK, engine=Faulty(ONE_BY_ONE, dropout=1.0))
    assert torch.equal(caught.value.run.x, torch.nn.utils.parameters_to_vector(classifier().parameters()))


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [
        *(("fedavg", 0), ("scaffold", 0)),  # the first explosion is in the third round
        *((name, 1) for name in ("fedavg", "scaffold", "fedlin")),  # in the first
    ],
)
def test_an_explosion_never_reaches_the_model(algorithm, seed):
    faulty = Faulty(ONE_BY_ONE, exploding=0.2, seed=seed)
    run = learn(algorithm, engine=faulty, guard=fs.Guard(quorum=1), **{**TASK, "batch_size": None})
    assert float(run.x.norm()) < 1e3
    assert sum(row["refused"].get("too long", 0) for row in run.history) > 0
