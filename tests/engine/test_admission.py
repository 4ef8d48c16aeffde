"""Admission: which uploads are admitted, and the reasons for which others are left out."""

from __future__ import annotations

import pytest
import torch

from fedstride.client.exchange import Upload
from fedstride.core.message import pack, unpack
from fedstride.engine.admission import Rules, admit, message


def upload(**more):
    fields = {"update": torch.arange(12.0).view(3, 4), "square": torch.tensor([[14.0], [126.0], [366.0]])}
    metrics = {"finite": torch.ones(3, 1, dtype=torch.bool), "train_loss": torch.tensor([[1.0], [2.0], [3.0]])}
    return Upload(fields, metrics, {}, [20, 20, 20], **more)


CLIENTS = (7, 3, 9)


def test_valid_rows_are_admitted_unchanged():
    sent = upload()
    found = admit(sent, CLIENTS, 5)
    assert found.rows == [0, 1, 2]
    assert all(torch.equal(found.fields[k], v) for k, v in sent.fields.items())
    assert found.lost == {}
    assert not found.refused


def test_lost_rows_are_left_out():
    found = admit(upload(lost={1: "late"}), CLIENTS, 5)
    assert (found.rows, found.lost, dict(found.refused)) == ([0, 2], {3: "late"}, {"late": 1})
    assert found.metrics["train_loss"][:, 0].tolist() == [1.0, 3.0]


def test_a_reply_replaces_its_row():
    sent = upload()
    data = message(Upload({k: v + 1 for k, v in sent.fields.items()}, sent.metrics, {}, [0] * 3), 1, 3, 5)
    found = admit(upload(replies={1: [data]}), CLIENTS, 5)
    assert torch.equal(found.fields["update"][1], sent.fields["update"][1] + 1)
    assert torch.equal(found.fields["update"][[0, 2]], sent.fields["update"][[0, 2]])


def changed(row=1, client=3, round=5, **fields):
    tensors, _ = unpack(message(upload(), row, client, round), "")
    tensors.update({k.replace("_", "/", 1): v for k, v in fields.items()})
    return pack({k: v for k, v in tensors.items() if v is not None}, {"client": client, "round": round})


GOOD = changed()
REPLIES = {
    "no answer": [],
    "corrupt": [GOOD[:-3] + b"abc"],
    "stale": [changed(round=4)],
    "of another client": [changed(client=7)],
    "wrong shape": [changed(fields_update=torch.zeros(5))],
    "not finite": [changed(fields_update=torch.tensor([0, 0, torch.nan, 0]))],
    "too long": [changed(fields_update=torch.full((4,), 1e9))],
}


@pytest.mark.parametrize("reason", REPLIES)
def test_an_unusable_reply_is_left_out(reason):
    found = admit(upload(replies={1: REPLIES[reason]}), CLIENTS, 5, Rules({"update": 100.0}))
    assert (found.rows, found.lost) == ([0, 2], {3: reason})


@pytest.mark.parametrize(
    "bad",
    [
        {"fields_square": None},
        {"fields_more": torch.zeros(1)},
        {"fields_update": torch.zeros(4, dtype=torch.float64)},
        {"metrics_train_loss": None},
    ],
)
def test_fields_must_match_the_request(bad):
    assert admit(upload(replies={1: [changed(**bad)]}), CLIENTS, 5).lost == {3: "wrong shape"}


def test_the_first_usable_reply_counts():
    found = admit(upload(replies={1: [changed(round=4), GOOD, GOOD, b""]}), CLIENTS, 5)
    assert found.rows == [0, 1, 2]
    assert dict(found.refused) == {"stale": 1, "duplicate": 1, "corrupt": 1}


@pytest.mark.parametrize("part, name", [("fields", "update"), ("fields", "square"), ("metrics", "train_loss")])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_false_claim_to_be_finite_is_detected(part, name, value):
    sent = upload()
    getattr(sent, part)[name][2, 0] = value
    found = admit(sent, CLIENTS, 5)
    assert found.lost == {9: "not finite"}


def test_a_client_that_reports_a_non_finite_model_is_refused():
    sent = upload()
    sent.metrics["finite"][0] = False  # its model, of which the upload shows nothing
    assert admit(sent, CLIENTS, 5).lost == {7: "not finite"}
