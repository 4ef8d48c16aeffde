"""Batches, models and losses of any structure train as the same problem in two tensors does."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import fedstride as fs
from fedstride import InvalidInput

torch.manual_seed(0)
CLIENTS = [(torch.randn(20 + i, 5), torch.randint(0, 3, (20 + i,))) for i in range(4)]
TEST = (torch.randn(40, 5), torch.randint(0, 3, (40,)))
RUN = {"rounds": 3, "batch_size": 8, "cohort": 3}


class Plain(nn.Module):
    """A small network on five features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


class Parts(Plain):
    """The same network, with its features in two arguments."""

    def forward(self, first, second):
        return super().forward(torch.cat([first, second], 1))


class Own(Plain):
    """The same network, as models of Hugging Face are."""

    def forward(self, x, labels=None):
        logits = super().forward(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Tuples(Own):
    """The same network, as models of Hugging Face are with return_dict=False."""

    def forward(self, x, labels=None):
        found = super().forward(x, labels)
        return (found.logits,) if found.loss is None else (found.loss, found.logits)


class OfBatch(nn.Module):
    """A loss that sees the batch."""

    def forward(self, output, batch):
        return of_batch(output, batch)


class Items(Dataset):
    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return len(self.batch[1])

    def __getitem__(self, i):
        return {"x": self.batch[0][i], "labels": self.batch[1][i]}


def as_parts(batch):
    return (batch[0][:, :2], batch[0][:, 2:]), batch[1]


def as_dict(batch):
    return {
        "second": batch[0][:, 2:],
        "first": batch[0][:, :2],
        "labels": batch[1],
        "unused": torch.zeros(len(batch[1])),
    }


def as_own(batch):
    return {"x": batch[0], "labels": batch[1]}


def of_batch(output, batch):
    return nn.functional.cross_entropy(getattr(output, "logits", output), batch["labels"])


CASES = {
    "nested tuple": (Parts, "cross_entropy", as_parts),
    "dict": (Parts, nn.CrossEntropyLoss(), as_dict),
    "dict with the model's loss": (Own, "model", as_own),
    "dict with a loss of logits": (Own, "cross_entropy", as_own),
    "dict with a loss of the batch": (Own, of_batch, as_own),
    "dataset of dicts": (Own, "model", Items),
    "list of items": (Own, "model", lambda batch: [Items(batch)[i] for i in range(len(batch[1]))]),
    "tensor dataset": (Plain, "cross_entropy", lambda batch: TensorDataset(*batch)),
    "arrays": (Plain, "cross_entropy", lambda batch: tuple(v.numpy() for v in batch)),
    "labels of 32 bits": (Plain, "cross_entropy", lambda batch: (batch[0], batch[1].int())),
    "labels of wide unsigned numbers": (
        Plain,
        "cross_entropy",
        lambda batch: (batch[0], batch[1].numpy().astype("u2")),
    ),
    "data of a graph": (Plain, "cross_entropy", lambda batch: (batch[0].clone().requires_grad_(), batch[1])),
    "tuple with the model's loss": (Tuples, "model", as_own),
    "tuple with a loss of logits": (Tuples, "cross_entropy", as_own),
    "dict with a module as loss of the batch": (Own, OfBatch(), as_own),
    "frame and series": (Plain, "cross_entropy", lambda b: (pd.DataFrame(b[0].numpy()), pd.Series(b[1].numpy()))),
}


def train(model, loss, convert, engine="auto", algorithm="auto", **more):
    return fs.train(
        model(), loss, [convert(c) for c in CLIENTS], algorithm, test=convert(TEST), engine=engine, **{**RUN, **more}
    )


@pytest.fixture(scope="module")
def expected():
    return {
        oracle: train(Plain, "cross_entropy", lambda b: b, fs.engine.Local(oracle=oracle))
        for oracle in ("loop", "vmap")
    }


@pytest.mark.parametrize("oracle", ["loop", "vmap"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_problem_in_another_structure(case, oracle, expected):
    run = train(*CASES[case], fs.engine.Local(oracle=oracle))
    like = expected[oracle]
    assert torch.allclose(run.x, like.x, atol=1e-6)
    assert run.history[-1]["test_loss"] == pytest.approx(like.history[-1]["test_loss"], abs=1e-5)
    assert run.history[-1]["test_accuracy"] == like.history[-1]["test_accuracy"]


@pytest.mark.parametrize(
    "algorithm", ["scaffold(lr=0.1)", "fedlin(lr=0.1)", "fedsls", "fedprox(lr=0.1)", "fednova(lr=0.1)"]
)
def test_other_algorithms_take_dicts_too(algorithm):
    more = {"algorithm": algorithm, "rounds": 2}
    one, two = train(Plain, "cross_entropy", lambda b: b, **more), train(Own, "model", as_own, **more)
    assert torch.allclose(one.x, two.x, atol=1e-6)


def test_a_loader_gives_its_dataset_and_its_collate():
    def collate(items):
        return {"x": torch.stack([i["x"] for i in items]), "labels": torch.stack([i["labels"] for i in items])}

    def loader(batch):
        return DataLoader(Items(batch), batch_size=3, collate_fn=collate)

    with pytest.warns(fs.FedstrideWarning, match="fs.train\\(\\) sets batch size and order"):
        run = train(Own, "model", loader)
    assert torch.allclose(run.x, train(Own, "model", as_own).x, atol=1e-6)


class Words(nn.Module):
    """A bag of words of any length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.words, self.head = nn.Embedding(12, 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.words(ids).sum(1))


def sentences(seed, n=16):
    source = torch.Generator().manual_seed(seed)
    lengths, labels = torch.randint(1, 7, (n,), generator=source), torch.randint(0, 2, (n,), generator=source)
    return [
        {"ids": torch.randint(1, 6, (int(k),), generator=source) + 6 * int(y), "label": int(y)}
        for k, y in zip(lengths, labels, strict=True)
    ]


def padded(items, width=None):
    width = width or max(len(i["ids"]) for i in items)
    ids = torch.stack([nn.functional.pad(i["ids"], (0, width - len(i["ids"]))) for i in items])
    return {"ids": ids, "label": torch.tensor([i["label"] for i in items])}


@pytest.mark.parametrize("oracle", ["loop", "vmap"])
def test_padding_by_batch_is_padding_of_all(oracle):
    data = {f"site {s}": sentences(s) for s in range(3)}
    given = {**RUN, "cohort": None, "engine": fs.engine.Local(oracle=oracle), "metrics": ["f1"]}
    by_batch = fs.train(Words(), "cross_entropy", data, collate=padded, test=sentences(9), **given)
    whole = {name: padded(items, 6) for name, items in data.items()}
    once = fs.train(Words(), "cross_entropy", whole, test=padded(sentences(9), 6), **given)
    assert torch.allclose(by_batch.x, once.x, atol=1e-6)
    assert by_batch.history[-1]["f1"] == once.history[-1]["f1"]
    assert by_batch.facts["names"] == ["site 0", "site 1", "site 2"]


def test_a_list_of_items_is_one_data_set_and_a_list_of_lists_is_several():
    model, items = Words(), sentences(9)
    alone = fs.evaluate(model, items, collate=padded)
    assert alone["loss"] == pytest.approx(fs.evaluate(model, padded(items, 6))["loss"], abs=1e-6)
    assert fs.evaluate(model, [items, items], collate=padded) == [alone, alone]
    assert fs.evaluate(model, {"a": items}, collate=padded) == {"a": alone}
    single = [(x, int(y)) for x, y in zip(*TEST, strict=True)]  # without collate, too
    assert fs.evaluate(Plain(), single) == fs.evaluate(Plain(), TEST)
    assert fs.evaluate(Plain(), [TEST, TEST]) == [fs.evaluate(Plain(), TEST)] * 2
    run = fs.train(Plain(), "cross_entropy", CLIENTS, rounds=1, test=single)
    assert run.history[0]["test_loss"] == pytest.approx(fs.evaluate(run.model, TEST)["loss"])


class Coder(nn.Module):
    """A variational auto-encoder: random, and with three outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.down, self.up = nn.Linear(5, 4), nn.Linear(2, 5)

    def forward(self, x):
        mean, log = self.down(x).chunk(2, 1)
        return self.up(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log


def elbo(output, batch):
    found, mean, log = output
    return (found - batch).square().sum(1).mean() - 0.5 * (1 + log - mean.square() - log.exp()).sum(1).mean()


def test_an_auto_encoder_has_no_targets():
    given = {
        **RUN,
        "rounds": 12,
        "metrics": {"error": lambda output, batch: float((output[0] - batch).square().mean())},
    }
    run = fs.train(Coder(), elbo, [c[0] for c in CLIENTS], test=TEST[0], **given)
    assert run.history[-1]["test_loss"] < run.history[0]["test_loss"]
    assert run.history[-1]["error"] > 0 and run.history[-1]["test_accuracy"] is None


def test_double_data_for_a_float_model_is_converted_and_said_once():
    double = [(x.double(), y) for x, y in CLIENTS]
    with pytest.warns(fs.FedstrideWarning, match="the data is torch.float64 and the model is torch.float32") as said:
        run = fs.train(Plain(), "cross_entropy", double, test=(TEST[0].double(), TEST[1]), **RUN)
    assert len(said) == 1
    assert torch.equal(run.x, fs.train(Plain(), "cross_entropy", CLIENTS, **RUN).x)


def test_the_users_data_and_model_stay_as_they_are():
    model, data = Own(), [as_own(c) for c in CLIENTS]
    before, values = copy.deepcopy(model.state_dict()), [c["x"].clone() for c in data]
    fs.train(model, "model", data, **RUN)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(c["x"], v) for c, v in zip(data, values, strict=True))


def test_a_run_of_dicts_resumes_to_the_same_bits(tmp_path):
    whole = train(Own, "model", as_own, rounds=4)
    train(Own, "model", as_own, rounds=2, checkpoint=tmp_path)
    assert torch.equal(train(Own, "model", as_own, rounds=4, checkpoint=tmp_path).x, whole.x)


FRAME = pd.DataFrame({"age": [1.0, 2.0], "label": [0, 1]})
BAD = {
    "a frame without label": (Plain, "cross_entropy", FRAME, "a data frame does not say which column is the target"),
    "texts": (
        Plain,
        "cross_entropy",
        (np.array(["a", "b"]), np.array([0, 1])),
        "Encode texts and categories as numbers",
    ),
    "lengths": (Own, "model", {"x": torch.ones(3, 5), "labels": torch.ones(4)}, "expected the same first dimension"),
    "other names": (Own, "model", {"z": torch.ones(3, 5)}, "the batch has 'z'; Own.forward takes 'x', 'labels'"),
    "a class": (Plain, nn.CrossEntropyLoss, CLIENTS[0], r"got the class CrossEntropyLoss; expected an instance, as in"),
    "no loss": (Plain, "model", CLIENTS[0], "model: it fails on"),
    "no loss in the output": (Own, "model", {"x": torch.ones(3, 5)}, "without a loss; expected an output with .loss"),
    "different items": (Own, "model", [{"x": torch.ones(5)}, {"x": torch.ones(4)}], "need collate="),
    "empty": (Own, "model", {}, "got an empty dict"),
    "a text in a dict": (Own, "model", [{"x": torch.ones(5), "title": "a"}] * 3, r"got str in batch\['title'\]\[0\]"),
    "a dict without targets": (
        Plain,
        "cross_entropy",
        {"x": torch.ones(3, 5)},
        "The targets of a dict are its entry labels",
    ),
    "a sparse tensor": (
        Plain,
        "cross_entropy",
        (torch.ones(3, 5).to_sparse(), torch.zeros(3)),
        "got a sparse or nested",
    ),
    "images in bytes": (
        Plain,
        "cross_entropy",
        (torch.ones(3, 5).byte(), torch.zeros(3).long()),
        r"inputs.float\(\) / 255",
    ),
    "a loss to be trained": (Plain, nn.Linear(3, 1), CLIENTS[0], "parameters of its own, which would not be trained"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_with_the_reason(case):
    model, loss, client, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        fs.train(model(), loss, [client], rounds=1)


def test_a_collate_that_returns_other_lengths():
    with pytest.raises(InvalidInput, match=r"collate makes .* of 1 items; expected tensors with one row per item"):
        fs.train(Own(), "model", [Items(CLIENTS[0])], rounds=1, collate=lambda items: {"x": torch.ones(2, 5)})


@pytest.mark.parametrize(
    ("collate", "message"), [(3, "collate=3 is invalid"), (lambda items: 1 / 0, "division by zero")]
)
def test_a_collate_that_is_none(collate, message):
    with pytest.raises(InvalidInput, match=message):
        fs.train(Own(), "model", [Items(CLIENTS[0])], rounds=1, collate=collate)


def test_a_collate_for_tensors_is_refused():
    with pytest.raises(InvalidInput, match="collate: it makes batches of lists of items, and the clients are tensors"):
        fs.train(Plain(), "cross_entropy", CLIENTS, rounds=1, collate=default_collate)


def test_numbers_of_several_kinds_in_a_frame():
    frame = pd.DataFrame({"a": [1.5, 2.0], "b": [True, False], "c": [3, 4]})
    inputs, _ = fs.data.Federation([(frame, pd.Series([0, 1]))])[0].take()
    assert inputs.tolist() == [[1.5, 1.0, 3.0], [2.0, 0.0, 4.0]]


def test_one_batch_of_nested_dicts_is_one_test_set():
    clients = [{"x": {"first": x[:, :2], "second": x[:, 2:]}, "labels": y} for x, y in [*CLIENTS, TEST]]

    class Nested(Parts):
        def forward(self, x):
            return super().forward(**x)

    run = fs.train(Nested(), "cross_entropy", clients[:-1], "fedavg", test=clients[-1], **RUN)
    assert run.history[-1]["test_loss"] == pytest.approx(
        fs.train(Plain(), "cross_entropy", CLIENTS, "fedavg", test=TEST, **RUN).history[-1]["test_loss"], abs=1e-5
    )


def test_test_sets_by_name_are_those_of_the_clients_with_these_names():
    named = {f"client {i}": client for i, client in enumerate(CLIENTS)}
    backwards = dict(reversed(named.items()))
    runs = [
        fs.train(Plain(), "cross_entropy", named, "fedavg", rounds=2, personal=["head.*"], test=test)
        for test in (named, backwards, fs.data.Federation(backwards))
    ]
    assert len({run.history[-1]["test_loss"] for run in runs}) == 1
    with pytest.raises(InvalidInput, match="test: there is no client 'client 9'; did you mean"):
        fs.train(Plain(), "cross_entropy", named, rounds=1, test={**dict([*named.items()][1:]), "client 9": TEST})


class Tagger(nn.Module):
    """A label for each word of texts of any length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, words, labels=None):
        logits = self.head(self.words(words)).transpose(1, 2)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_metrics_of_outputs_of_different_lengths(monkeypatch):
    """Parts of a test set that are padded to different lengths give the scores of one part."""
    source = torch.Generator().manual_seed(0)
    texts = [
        {key: torch.randint(0, 3, (1 + i % 4,), generator=source) for key in ("words", "labels")} for i in range(8)
    ]

    def collate(items):
        pad = {"words": 0, "labels": -100}
        return {k: nn.utils.rnn.pad_sequence([i[k] for i in items], True, padding_value=v) for k, v in pad.items()}

    given = {"metrics": ["f1", "accuracy"], "collate": collate}
    whole = fs.evaluate(Tagger(), texts, "model", **given)
    monkeypatch.setattr("fedstride.engine.evaluation.EVALUATION_CHUNK", 3)
    parts = fs.evaluate(Tagger(), texts, "model", **given)
    assert (parts["f1"], parts["accuracy"]) == pytest.approx((whole["f1"], whole["accuracy"]))
    run = fs.train(Tagger(), "model", [texts], rounds=1, test=texts, **given)
    assert 0 <= run.history[-1]["f1"] <= 1


def test_ignored_labels_do_not_count_in_the_accuracy():
    outputs, labels = torch.eye(3), torch.tensor([0, 1, -100])
    assert fs.evaluate(nn.Identity(), (outputs, labels))["accuracy"] == 1.0


@pytest.mark.parametrize("data", [(torch.ones(5, 7), CLIENTS[0][1][:5]), (torch.ones(2, 5), torch.tensor([0, 9]))])
def test_evaluate_refuses_what_does_not_fit(data):
    with pytest.raises(InvalidInput, match="data: model and loss do not fit its samples"):
        fs.evaluate(Plain(), data)


def test_clients_of_different_structure():
    with pytest.raises(InvalidInput, match=r"clients\[1\]: .* differs from .* of clients\[0\]"):
        fs.train(Own(), "model", [as_own(CLIENTS[0]), as_dict(CLIENTS[1])], rounds=1)
