"""Runs with SecAgg+ on a grid without processes."""

from __future__ import annotations

import json

import pytest
import torch

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.core.files import read_tensors
from fedstride.training.checkpoint import files

pytest.importorskip("flwr")

from flwr.app import Message

from fedstride.engine import flower
from fedstride.engine.flower.secure import secure_of
from fedstride.wire.secure import Secure
from tests.engine.test_flower import CLIENTS, PROJECT, a_grid, folder, local, settings  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow

BOUNDS = "10, control=100, gradient=100, mean_squares=1000, loss=100, effective_steps=100, stats=1000"


def summed(grid=None, **more):
    return flower.train(PROJECT, grid or a_grid(), settings(secure=BOUNDS, **more))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_trained_by_secure_sums(name):
    given = {
        "algorithm": name,
        "batch_size": "none" if name == "fedtrack" else 4,
        "local_steps": 3,
        "weights": "samples",
    }
    found, expected = summed(**given), local(settings(**given))
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=2e-4 if name in ("fedadam", "fedyogi") else 2e-5)
    for mine, theirs in zip(found.history, expected.history, strict=True):
        assert [mine[k] for k in ("gradients", "forwards", "failed", "participants", "lost")] == [
            theirs[k] for k in ("gradients", "forwards", "failed", "participants", "lost")
        ]
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-4)


def test_no_message_reveals_an_update_or_its_norm():
    """Nodes send keys, shares and masked numbers. In a run without SecAgg+, the same search finds the squared norm."""
    names, given = {}, {"algorithm": "fedexp", "rounds": 1}
    for secure in (False, True):
        seen = names[secure] = set()
        grid = a_grid()

        def look(reply: Message, seen=seen) -> Message:
            seen |= {name for record in reply.content.values() for name in record}
            return reply

        grid.spoil = look
        summed(grid, **given) if secure else flower.train(PROJECT, grid, settings(**given))
    assert {"update", "fields.square"} <= names[False]
    assert not any("square" in name or "update" in name or "loss" in name for name in names[True])


def test_a_client_that_drops_out_is_left_out():
    grid = a_grid()
    silent = (101, "train")
    grid.spoil = lambda r: None if (r.metadata.src_node_id, r.metadata.message_type) == silent else r
    run = summed(grid, rounds=1, deadline=1)
    assert run.history[0]["lost"] == 1
    assert run.history[0]["refused"] == {"late": 1}


def test_a_secure_node_refuses_plain_uploads():
    with pytest.raises(fs.TooFew, match="crashed"):
        flower.train(PROJECT, a_grid(secure=True), settings(rounds=1))
    assert len(summed(a_grid(secure=True), rounds=1).history) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"algorithm": "scaffold", "secure": 10.0}, "'control'"),
        ({"algorithm": 'custom(up={part="TopK", k=5})'}, "compressor"),
        ({"algorithm": 'custom(aggregate={part="Median"})'}, "Median"),
        ({"secure": "much"}, "secure='much'"),
    ],
)
def test_uploads_that_cannot_be_summed_are_refused_before_training(more, words):
    grid = a_grid()
    with pytest.raises((fs.InvalidInput, fs.Refused), match=words):
        flower.train(PROJECT, grid, settings(**{"secure": BOUNDS, **more}))
    assert grid.count <= CLIENTS  # who they are


def test_a_clipped_control_stays_consistent_with_the_clients(folder):  # noqa: F811
    """SCAFFOLD's c must stay the mean of the c_i, so clients must remember a clipped control as it was sent."""
    with pytest.warns(fs.FedstrideWarning, match="had to clip 'control'"):
        flower.train(PROJECT, a_grid(), settings(algorithm="scaffold", secure="100, control=0.01", rounds=4, out="out"))
    tensors, _ = read_tensors(files(folder / "out")[0])
    token, names = (bytes(tensors[f"clients/{name}"].numpy()).decode() for name in ("token", "names"))
    place = folder / "fedstride-memory" / token
    own = [read_tensors(place / c / f"{name}.safetensors")[0]["control"] for c, name in json.loads(names)[-1].items()]
    assert len(own) == CLIENTS
    torch.testing.assert_close(tensors["drift/control"], torch.stack(own).mean(0), rtol=0, atol=1e-9)
    assert float(tensors["drift/control"].norm()) > 1e-3


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, None), ("none", None), (10, Secure(10.0)), ("10, control=5", Secure(10.0, {"control": 5}))],
)
def test_the_setting_secure_is_parsed(setting, expected):
    assert secure_of(setting) == expected
