"""Parameters that stay with their client: what is shared, what is sent, what is kept, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.client.chunk import Chunk
from fedstride.engine import store
from tests.problems import STEPS, classification, classifier, learn, records, same_bits
from tests.tiers import slow

HEAD = {"personal": ["head.*"]}
ALGORITHMS = ("fedavg", "auto", "scaffold", "fedexp", "fednova", "fedsls", "moon", "fedprox", "fedadamw")
ENTRIES, SHARED = 27, 15
topk = fs.Algorithm(up=fs.TopK(4))


def heads(run: fs.Run) -> list[torch.Tensor]:
    return [torch.cat([m.head.weight.flatten(), m.head.bias]).detach() for m in run.personal.values()]


def bodies(run: fs.Run) -> list[torch.Tensor]:
    return [m.body.weight.detach() for m in run.personal.values()]


def same(one: fs.Run, other: fs.Run) -> bool:
    return same_bits(one, other) and all(torch.equal(a, b) for a, b in zip(heads(one), heads(other), strict=True))


def work(steps: int = 0) -> dict:
    return {**HEAD, "personal_steps": steps, "local_steps": STEPS, "batch_size": 3}


@pytest.mark.parametrize("name", ["fedavg", "auto"])
def test_no_patterns_change_no_bit(name):
    assert same_bits(learn(name, personal=[]), learn(name))


def test_clients_share_the_body_and_keep_their_heads():
    run, start = learn("fedavg", **work()), classifier()
    assert all(torch.equal(b, run.model.body.weight) for b in bodies(run))
    assert len({tuple(h.tolist()) for h in heads(run)}) == 4
    assert torch.equal(run.model.head.weight, start.head.weight) and torch.equal(run.model.head.bias, start.head.bias)
    assert not torch.equal(run.model.body.weight, start.body.weight)


def test_personal_entries_are_not_sent():
    run = learn("scaffold", **HEAD)
    assert run.history[0]["bytes_up"] == 4 * 8 * 2 * SHARED  # the update and the control
    assert run.history[0]["bytes_down"] == 4 * 8 * (SHARED + ENTRIES)  # the model, and a control that is 0 in the head
    assert learn("fedavg", **HEAD).history[0]["bytes_down"] == 4 * 8 * SHARED


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in ("auto", "fedexp")])
def test_one_client_alone_trains_as_without_patterns(name):
    """With a server step of 1; other steps of the server do not move personal entries."""
    (data,) = classification((6,))
    options = {"clients": [data], "local_steps": 3, "rounds": 4}
    own, plain = learn(name, **HEAD, **options), learn(name, **options)
    row = nn.utils.parameters_to_vector(own.personal[0].parameters())
    torch.testing.assert_close(row, nn.utils.parameters_to_vector(plain.model.parameters()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", [n if n in ("fedavg", "auto", "scaffold") else slow(n) for n in ALGORITHMS])
def test_chunks_and_workers_change_no_bit(name, steps):
    one, *others = (
        learn(name, engine=fs.engine.Local(oracle="loop", chunk=c, workers=w), **work(steps))
        for c, w in ((1, 1), (4, 1), (3, 2))
    )
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("name", ["fedavg", "auto", "scaffold", slow("fedsls"), "ditto"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(name, steps, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(event):
        if event.round == 2:
            raise Interrupted

    if name == "ditto":
        options = {"batch_size": 3, "cohort": 0.5, "rounds": 5}
    else:
        options = {**work(steps), "cohort": 0.5, "rounds": 5, "test": classification(seed=5)}
    whole = learn(name, **options)
    with pytest.raises(Interrupted):
        learn(name, checkpoint=tmp_path, callbacks=[interrupt], **options)
    assert same(learn(name, checkpoint=tmp_path, **options), whole)


def test_a_checkpoint_with_other_patterns_is_refused(tmp_path):
    learn("fedavg", checkpoint=tmp_path, **HEAD)
    for other in ({}, {"personal": ["head.bias"]}, {**HEAD, "personal_steps": 1}):
        with pytest.raises(fs.InvalidInput, match="personal was"):
            learn("fedavg", checkpoint=tmp_path, **other)


def test_identical_clients_agree():
    (data,) = classification((6,))
    run = learn("fedavg", clients=[data] * 3, **HEAD, engine=fs.engine.Local(oracle="loop"), local_steps=3)
    assert all(torch.equal(h, heads(run)[0]) for h in heads(run))
    one = learn("fedavg", clients=[data], **HEAD, engine=fs.engine.Local(oracle="loop"), local_steps=3)
    torch.testing.assert_close(run.x, one.x, rtol=0, atol=1e-15)


def test_personal_steps_come_first_with_the_others_frozen():
    """FedRep by hand: k steps on the head, then tau on the body, full batches."""
    run = learn("fedavg(lr=0.3)", **HEAD, personal_steps=2, local_steps=3, rounds=1)
    ends = []
    for i, (inputs, targets) in enumerate(classification()):
        model = classifier()
        for part, steps in ((model.head, 2), (model.body, 3)):
            for _ in range(steps):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                for p, g in zip(part.parameters(), torch.autograd.grad(loss, list(part.parameters())), strict=True):
                    p.data -= 0.3 * g
        torch.testing.assert_close(run.personal[i].head.weight, model.head.weight, rtol=0, atol=1e-14)
        ends.append(model.body.weight.detach())
    torch.testing.assert_close(run.model.body.weight.detach(), torch.stack(ends).mean(0), rtol=0, atol=1e-14)
    assert run.history[0]["gradients"] == 5 * sum(len(t) for _, t in classification())


def test_clients_that_never_took_part_have_the_initial_head():
    run = learn("fedavg", cohort=1, rounds=1, **HEAD)
    fresh = [torch.equal(m.head.weight, classifier().head.weight) for m in run.personal.values()]
    assert sum(fresh) == 3


def test_each_client_is_tested_with_its_own_model():
    tests = classification(seed=5)
    run = learn("fedavg(lr=0.5)", test=tests, **work(), rounds=4)
    scores = [fs.evaluate(run.personal[i], test)["loss"] for i, test in enumerate(tests)]
    assert run.history[-1]["test_loss"] == pytest.approx(sum(scores) / 4)


@pytest.mark.parametrize("up", [fs.TopK(4), fs.RandomK(0.5, unbiased=True), fs.Quantize()], ids=str)
def test_compressors_see_shared_entries_only(up):
    algorithm = fs.Algorithm(up=up, error_feedback=False)
    run = learn(algorithm, **HEAD, rounds=2)
    assert run.history[0]["bytes_up"] == 4 * up.bytes(SHARED, 8)
    assert torch.equal(run.model.head.weight, classifier().head.weight)


def test_error_feedback_keeps_errors_of_shared_entries():
    run = learn(topk, **HEAD, rounds=3)
    assert run.history[1]["bytes_up"] == 4 * fs.TopK(4).bytes(SHARED, 8)
    assert len({tuple(h.tolist()) for h in heads(run)}) == 4


def test_noise_and_clipping_do_not_touch_personal_entries():
    clip = 1e-3
    algorithm = fs.Algorithm(privacy=fs.Privacy(noise=1.0, clip=clip))
    run = learn(algorithm, **HEAD, local_steps=5, seed=7, rounds=2)
    start = classifier()
    assert torch.equal(run.model.head.weight, start.head.weight)
    assert not torch.equal(run.model.body.weight, start.body.weight)
    assert all(float((h - heads_of(start)).norm()) > 10 * clip for h in heads(run))


def heads_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([model.head.weight.flatten(), model.head.bias]).detach()


def test_robust_aggregation_works():
    assert learn(fs.Algorithm(aggregate=fs.Median()), **HEAD).personal is not None


def test_clients_whose_head_becomes_non_finite_are_left_out():
    """Their update of the shared entries is finite."""

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 3).double(), nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, inputs):
            return self.body(inputs) + (self.head * 0).sqrt()  # whose derivative is NaN

    with pytest.raises(fs.Diverged):
        fs.train(Broken(), "cross_entropy", classification(), "fedavg", rounds=1, personal="head")


def test_batch_norm_of_each_client_is_fedbn():
    make = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    tests = classification(seed=5)
    run = fs.train(
        make, "cross_entropy", classification(), "fedavg", rounds=2, personal="1.*", buffers="local", test=tests
    )
    first, second = run.personal[0][1], run.personal[1][1]
    assert not torch.equal(first.running_mean, second.running_mean)
    assert not torch.equal(first.weight, second.weight)
    score = sum(fs.evaluate(run.personal[i], test)["loss"] for i, test in enumerate(tests)) / 4
    assert run.history[-1]["test_loss"] == pytest.approx(score)


def test_ditto_trains_the_shared_model_as_fedavg_does():
    ditto, plain = learn("ditto", batch_size=3), learn("fedavg", batch_size=3)
    assert torch.equal(ditto.x, plain.x)
    costs = {"gradients"}
    assert [{k: v for k, v in row.items() if k not in costs} for row in records(ditto)] == [
        {k: v for k, v in row.items() if k not in costs} for row in records(plain)
    ]


def test_ditto_leaves_the_statistics_of_the_shared_model_alone():
    make = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    models = [fs.train(make, "cross_entropy", classification(), name, rounds=2).model for name in ("ditto", "fedavg")]
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))


def test_ditto_without_a_tie_trains_alone():
    """v_i of lam = 0 and full participation: as many steps on the client's data, whatever the others do."""
    run = learn("ditto(lr=0.2, lam=0)", local_steps=3, rounds=2)
    alone = learn("fedavg(lr=0.2)", clients=classification()[:1], local_steps=3, rounds=2)
    torch.testing.assert_close(run.personal[0].head.weight, alone.model.head.weight, rtol=0, atol=1e-12)


def test_own_models_are_known_by_name_and_by_number():
    clients = dict(zip(("north", "south", "east", "west"), classification(), strict=True))
    run = learn("fedavg", clients=clients, **HEAD)
    assert list(run.personal) == list(clients) and len(run.personal) == 4
    assert torch.equal(run.personal["south"].head.weight, run.personal[1].head.weight)
    with pytest.raises(KeyError, match="did you mean 'south'"):
        run.personal["sout"]
    with pytest.raises(KeyError, match="from 0 to 3"):
        run.personal[4]
    assert "head.weight" in repr(run.personal)


@pytest.mark.parametrize("more", [{}, {"normalise": True}], ids=["plain", "normalised"])
def test_own_models_are_saved_and_loaded(more, tmp_path):
    run = learn("fedavg", **HEAD, cohort=3, rounds=1, **more)
    again = fs.load(run.save(tmp_path), classifier())
    inputs = classification()[0][0]
    assert all(torch.equal(run.personal[i](inputs), again.personal[i](inputs)) for i in range(4))
    assert fs.load(learn("fedavg").save(tmp_path / "plain"), classifier()).personal is None


def test_own_models_outlive_a_run_whose_memory_is_a_file(monkeypatch):
    expected = heads(learn("fedavg", **work()))
    monkeypatch.setattr(store, "LIMIT", 0)
    run = learn("fedavg", **work())
    assert all(torch.equal(a, b) for a, b in zip(heads(run), expected, strict=True))


REFUSED = [
    ({"personal": ["haed.*"]}, fs.InvalidInput, "matches no trainable parameter"),
    ({"personal": "*"}, fs.InvalidInput, "nothing is shared"),
    ({"personal": 3}, fs.InvalidInput, "expected patterns"),
    ({"personal": [3]}, fs.InvalidInput, "expected patterns"),
    ({"personal": ["head"]}, fs.InvalidInput, r"did you mean .*\.\*"),
    ({"personal_steps": 2}, fs.InvalidInput, "without personal="),
    ({**HEAD, "personal_steps": -1}, fs.InvalidInput, "whole number"),
    ({**HEAD, "algorithm": "fedlin"}, fs.Refused, "exchanged at x"),
    ({**HEAD, "algorithm": fs.Algorithm(gradient=fs.IAG())}, fs.Refused, "start elsewhere"),
    ({**HEAD, "algorithm": "feddyn"}, fs.Refused, "agree on all parameters"),
    ({**HEAD, "algorithm": "fedsplit"}, fs.Refused, "agree on all parameters"),
    ({**HEAD, "algorithm": "ditto"}, fs.Refused, "a whole model of its own"),
    ({**HEAD, "test": classification((7,))[0]}, fs.Refused, "test set for each client"),
    (
        {**HEAD, "test": classification(), "stop": fs.EarlyStopping()},
        fs.Refused,
        "clients keep their last parameters",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_makes_no_sense_is_refused(options, error, message):
    given = {"algorithm": "fedavg", **options}
    with pytest.raises(error, match=message):
        learn(given.pop("algorithm"), **given)


def test_ditto_with_incremental_gradients_is_refused():
    with pytest.raises(fs.Refused, match="own models start elsewhere"):
        fs.Algorithm(objective=fs.Ditto(), gradient=fs.IAG())


def test_shared_steps_go_on_with_the_batches_of_the_personal_ones(monkeypatch):
    seen, batch = [], Chunk.batch
    monkeypatch.setattr(Chunk, "batch", lambda self, k, active: seen.append(k) or batch(self, k, active))
    engine = fs.engine.Local(oracle="loop", chunk=4, workers=1)
    learn("fedavg", **HEAD, personal_steps=2, local_steps=3, batch_size=3, rounds=1, engine=engine)
    assert seen == [0, 1, 2, 3, 4]
