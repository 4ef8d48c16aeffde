"""The read-out: the model that is evaluated and returned, while training continues from the last iterate."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from tests.problems import classification, learn, same_bits

TEST = classification((7,), seed=9)[0]


def followed(algorithm="fedavg", **options):
    """Return a run, and its iterates x_0, x_1, ..."""
    iterates = []
    run = learn(algorithm, callbacks=[lambda event: iterates.append(event.x)], **options)
    return run, iterates


def returned(run):
    return parameters_to_vector(run.model.parameters()).detach()


def test_the_average_weighs_later_iterates_more():
    run, iterates = followed(readout="average", rounds=6)
    mean = iterates[0]
    for t, x in enumerate(iterates[1:]):
        mean = mean + 9 / (t + 9) * (x - mean)
    assert torch.allclose(returned(run), mean, rtol=1e-14, atol=0)


def test_the_average_in_closed_form():
    run, iterates = followed(readout="average", rounds=5)
    w = torch.tensor([math.comb(t + 7, 8) for t in range(1, 6)], dtype=torch.float64)  # the start weighs nothing
    assert torch.allclose(returned(run), (w / w.sum()) @ torch.stack(iterates[1:]), rtol=1e-12, atol=1e-14)


def test_after_one_round_the_average_is_the_iterate():
    run = learn(readout="average", rounds=1)
    assert torch.allclose(returned(run), run.x, rtol=1e-14, atol=0)


def test_fedexps_own_readout_is_the_mean_of_two():
    (own, iterates), last = followed("fedexp"), learn("fedexp", readout="last")
    assert torch.equal(returned(own), (iterates[-1] + iterates[-2]) / 2)
    assert torch.equal(returned(last), last.x)
    assert not torch.equal(returned(last), returned(own))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_every_readout_on_the_same_path(name):
    last, mean, own = (learn(name, readout=readout) for readout in ("last", "average", "server"))
    assert torch.equal(returned(last), last.x)
    assert torch.isfinite(returned(mean)).all()
    assert torch.isfinite(returned(own)).all()
    assert torch.equal(mean.x, last.x)
    assert torch.equal(own.x, last.x)
    assert not torch.equal(returned(mean), mean.x)


def test_readout_none_is_the_algorithms_choice():
    assert same_bits(learn("auto", readout="average"), learn("auto"))
    assert same_bits(learn("fedexp", readout="server"), learn("fedexp"))
    assert same_bits(learn(fs.Algorithm(readout="average")), learn(fs.Algorithm(), readout="average"))


@pytest.mark.parametrize("readout", ["last", "average"])
def test_scores_are_those_of_the_read_out(readout):
    run = learn("fedexp", test=TEST, readout=readout)
    with torch.no_grad():
        output = run.model(TEST[0])
    assert run.history[-1]["test_loss"] == pytest.approx(float(F.cross_entropy(output, TEST[1])), rel=1e-12)
    assert run.history[-1]["test_accuracy"] == pytest.approx(float((output.argmax(1) == TEST[1]).double().mean()))


def test_an_unknown_readout_is_named():
    with pytest.raises(fs.InvalidInput, match="readout='avarage' is unknown; did you mean 'average'"):
        fs.Algorithm(readout="avarage")
    with pytest.raises(fs.InvalidInput, match="readout=2 is unknown; expected one of: average, last, server"):
        learn(readout=2)


class Crash(Exception):
    pass


def crash(event):
    if event.round == 3:
        raise Crash


@pytest.mark.parametrize("algorithm", ["auto", "fedexp", "scaffold"])
def test_an_averaged_run_resumes_bitwise(algorithm, tmp_path):
    def go(**options):
        return learn(algorithm, readout="average", rounds=6, cohort=2, batch_size=3, test=TEST, **options)

    with pytest.raises(Crash):
        go(checkpoint=tmp_path, callbacks=[crash])
    resumed, whole = go(checkpoint=tmp_path), go()
    assert same_bits(resumed, whole)
    assert torch.equal(returned(resumed), returned(whole))
    assert resumed.history["turn"] == whole.history["turn"]
    assert None not in whole.history["turn"][1:]


def test_a_checkpoint_with_another_readout_is_refused(tmp_path):
    learn(checkpoint=tmp_path, rounds=2)
    with pytest.raises(fs.InvalidInput, match="belongs to another run: algorithm was"):
        learn(checkpoint=tmp_path, rounds=4, readout="average")


def test_the_saved_model_is_the_returned_one(tmp_path):
    run = learn(readout="average")
    again = fs.load(run.save(tmp_path))
    assert torch.equal(returned(again), returned(run))
    assert torch.equal(again.x, run.x)


@pytest.mark.parametrize("readout", [None, "average"])
def test_evaluations_are_sparse_and_change_nothing(readout):
    options = {"rounds": 7, "test": TEST, "readout": readout}
    sparse, dense = learn("fedexp", evaluate_every=3, **options), learn("fedexp", **options)
    for column in ("test_loss", "test_accuracy"):
        expected = [v if t in (3, 6, 7) else None for t, v in enumerate(dense.history[column], start=1)]
        assert sparse.history[column] == expected
        assert None not in dense.history[column]
    assert torch.equal(sparse.x, dense.x)
    assert torch.equal(returned(sparse), returned(dense))
    assert sparse.history["train_loss"] == dense.history["train_loss"]


def test_evaluations_may_be_rarer_than_rounds():
    assert [v is not None for v in learn(evaluate_every=10, test=TEST).history["test_loss"]] == [False, False, True]
