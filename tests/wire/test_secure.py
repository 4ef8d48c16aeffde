"""Secure sums: every recipe's real uploads as whole numbers, and back to the mean that the server would have had."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.client import exchange
from fedstride.wire import WeightedMean
from fedstride.wire.secure import COUNTS, MEANS, MODULUS, Layout, Secure, Summed
from tests.problems import SIZES, STEPS, classification, classifier, learn

BOUNDS = {
    "control": 30.0,
    "gradient": 30.0,
    "mean_squares": 1000.0,
    "loss": 100.0,
    "stats": 100.0,
    "effective_steps": 10.0,
}
SECURE = Secure(20.0, BOUNDS)
WEIGHTS = [float(n) for n in SIZES]


class Noted:
    """The local engine, which keeps what clients upload: (kind, round, client, fields, metrics)."""

    def __init__(self):
        self.seen, self.engine = [], fs.engine.Local(workers=1)

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def open(self, task, exchanges, fresh):
        noted = {kind: dataclasses.replace(e, work=self.note(kind, e.work)) for kind, e in exchanges.items()}
        return self.engine.open(task, noted, fresh)

    def note(self, kind, do):
        def noted(chunk, x, memory):
            upload = do(chunk, x, memory)
            for row, client in enumerate(chunk.context.clients):
                fields = {k: v[row].clone() for k, v in upload.fields.items()}
                metrics = {k: v[row, 0].item() for k, v in upload.metrics.items()}
                self.seen.append((kind, chunk.context.round, client, fields, metrics))
            return upload

        return noted


def uploads(algorithm, **options):
    """What clients sent in two rounds: {(kind, round): [(client, fields, metrics)]}."""
    engine, found = Noted(), {}
    learn(algorithm, engine=engine, **{"rounds": 2, "local_steps": STEPS, "weights": WEIGHTS, **options})
    for kind, round, *rest in engine.seen:
        found.setdefault((kind, round), []).append(tuple(rest))
    return found


def numbers(algorithm, kind, model=None, stats=0):
    """How many there are in each field of an upload."""
    shapes = [p.shape for p in (model or classifier()).parameters()]
    return exchange.layout(algorithm, kind, shapes, stats)[0]


def summed(vectors: list[torch.Tensor], layout: Layout) -> torch.Tensor:
    """What SecAgg+ does with them: whole numbers from 0 to levels, summed modulo 2^32."""
    half = layout.levels // 2
    for v in vectors:
        assert torch.equal(v, v.round())
        assert v.abs().max() <= half
    return sum((v + half).long() for v in vectors).remainder(MODULUS).double() - len(vectors) * half


def plain_mean(sent, weights):
    mean = WeightedMean()
    for position, (fields, weight) in enumerate(zip(sent, weights, strict=True)):
        mean.add(position, weight, {k: v.double() for k, v in fields.items()})
    return mean.finish()


def check(clients, layout: Layout) -> Summed:
    """Within the bound of what a plain mean of what is sent is."""
    weights = [WEIGHTS[client] for client, _, _ in clients]
    relative = [w / max(weights) for w in weights]
    vectors = [layout.encode(fields, metrics, w) for (_, fields, metrics), w in zip(clients, relative, strict=True)]
    found = layout.decode(summed(vectors, layout))
    expected, weight = plain_mean([layout.shorten(fields)[0] for _, fields, _ in clients], weights)
    bound = layout.error(sum(relative))
    assert found.weight * max(weights) == pytest.approx(weight, rel=1e-8)
    assert found.fields.keys() == expected.keys()
    for name, mean in expected.items():
        assert (found.fields[name] - mean).abs().max() <= bound[name] * (1 + 1e-6)
    for name in MEANS:
        one = sum(w * metrics.get(name, 0.0) for w, (_, _, metrics) in zip(weights, clients, strict=True)) / weight
        assert abs(found.metrics[name] - one) <= bound[name]
    for name in COUNTS:
        assert found.metrics[name] == sum(metrics.get(name, 0) for _, _, metrics in clients)
    assert found.clients == len(clients)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_uploads_of_every_recipe_can_be_summed(name):
    algorithm, found = RECIPES[name](), uploads(name)
    assert len(found) == (4 if algorithm.exchanges_gradients else 2)  # in two rounds
    for (kind, _), clients in found.items():
        layout = SECURE.layout(numbers(algorithm, kind), len(clients))
        found = check(clients, layout)
        assert found.shortened == {}


def test_averaged_statistics_can_be_summed():
    model = classifier(middle=lambda: nn.BatchNorm1d(3))
    found = uploads("fedexp", model=model, local_steps=2)
    stats = found["updates", 0][0][1]["stats"].numel()
    layout = SECURE.layout(numbers(RECIPES["fedexp"](), "updates", model, stats), len(SIZES))
    check(found["updates", 1], layout)


def test_private_updates_can_be_summed_and_touch_their_clip_unnoticed():
    private = dataclasses.replace(fs.recipes.fedexp(), privacy=fs.Privacy(1.0, clip=0.01, quantile=0.5))
    found = uploads(private, weights="uniform", seed=1)
    layout = Secure(0.01).layout(numbers(private, "updates"), len(SIZES))
    assert check(found["updates", 0], layout).shortened == {}


def test_a_single_precision_model_can_be_summed():
    found = uploads("scaffold", model=classifier(torch.float32), clients=classification(dtype=torch.float32))
    check(found["updates", 1], SECURE.layout(numbers(RECIPES["scaffold"](), "updates"), len(SIZES)))


def test_long_updates_are_shortened_with_their_squares_and_counted():
    found = uploads(fs.recipes.fednova(lr=0.3))["updates", 0]
    lengths = [float(fields["square"]) ** 0.5 for _, fields, _ in found]
    bound = sorted(lengths)[1] * 1.001  # two of four are longer
    layout = Secure(bound, BOUNDS).layout(numbers(RECIPES["fednova"](), "updates"), len(SIZES))
    assert check(found, layout).shortened == {"update": 2}
    for (_, fields, _), length in zip(found, lengths, strict=True):
        sent, cut = layout.shorten(fields)
        assert float(sent["raw"].norm()) == pytest.approx(min(length, bound))
        assert float(sent["square"]) == pytest.approx(min(length, bound) ** 2)
        torch.testing.assert_close(sent["update"] * sent["effective_steps"], sent["raw"])
        assert bool(cut) == (length > bound)


def test_other_long_fields_are_shortened_by_themselves_and_counted():
    found = uploads("scaffold")["updates", 0]
    layout = Secure(20.0, {"control": 1e-3}).layout(numbers(RECIPES["scaffold"](), "updates"), len(SIZES))
    assert check(found, layout).shortened == {"control": len(SIZES)}
    sent, _ = layout.shorten(found[0][1])
    assert float(sent["control"].norm()) == pytest.approx(1e-3)
    assert torch.equal(sent["update"], found[0][1]["update"])


def test_metrics_beyond_their_bounds_are_counted_and_do_no_harm():
    layout = SECURE.layout({"gradient": 2}, 3)
    fields = {"gradient": torch.tensor([1.0, -2.0])}
    odd = [{"train_loss": math.nan}, {"train_loss": math.inf, "gradients": 2.0**40}, {"client_step": 1e9}]
    found = layout.decode(summed([layout.encode(fields, metrics, 1.0) for metrics in odd], layout))
    assert found.shortened == {"train_loss": 2, "client_step": 1, "gradients": 1}
    torch.testing.assert_close(
        found.fields["gradient"], fields["gradient"].double(), rtol=0, atol=layout.error(3)["gradient"]
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_who_has_nothing_finite_to_send_does_not_count(bad):
    layout = SECURE.layout({"update": 2, "square": 1}, 3)
    good = {"update": torch.tensor([3.0, 4.0]), "square": torch.tensor([25.0])}
    broken = layout.encode({**good, "update": torch.tensor([bad, 1.0])}, {"train_loss": 1.0}, 1.0)
    known = layout.encode(good, {"finite": False}, 1.0)
    assert not broken.any()
    assert not known.any()
    found = layout.decode(summed([broken, layout.encode(good, {}, 0.5), known], layout))
    assert (found.clients, found.weight) == (1, 0.5)
    torch.testing.assert_close(found.fields["update"], good["update"].double(), rtol=0, atol=1e-7)


def test_nobody_has_no_mean():
    layout = SECURE.layout({"gradient": 2}, 3)
    found = layout.decode(torch.zeros(layout.size, dtype=torch.float64))
    assert (found.fields, found.weight, found.clients) == ({}, 0.0, 0)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("clients", [3, 4, 5, 7, 64, 100, 1000])
def test_the_largest_numbers_of_a_cohort_do_not_overflow(clients, sign):
    layout = Secure(1.0).layout({"update": 2, "square": 1}, clients)
    vector = layout.encode({"update": torch.tensor([0.0, sign]), "square": torch.ones(1)}, {"failed": 7}, 1.0)
    found = layout.decode(summed([vector] * clients, layout))
    assert found.fields["update"].tolist() == [0.0, sign]
    assert (float(found.fields["square"]), found.clients, found.metrics["failed"]) == (1.0, clients, 7 * clients)


def test_the_bound_is_reached():
    """The stated error is that of numbers which all round the same way, not a guess far above it."""
    layout = Secure(1.0).layout({"update": 1, "square": 1}, 4)
    v = torch.tensor([(1000 + 0.4999) / (layout.levels // 2)], dtype=torch.float64)
    found = layout.decode(summed([layout.encode({"update": v, "square": v**2}, {}, 1.0)] * 4, layout))
    assert 0.4 * layout.error(4)["update"] < float((found.fields["update"] - v).abs()) <= layout.error(4)["update"]


def test_server_and_clients_share_a_layout_as_text():
    layout = SECURE.layout(numbers(RECIPES["auto"](), "updates"), 4)
    assert Layout(**json.loads(json.dumps(dataclasses.asdict(layout)))) == layout


@pytest.mark.parametrize(
    ("name", "missing"), [("scaffold", "control"), ("auto", "loss"), ("fednova", "effective_steps")]
)
def test_a_missing_bound_is_named_before_any_work(name, missing):
    with pytest.raises(fs.InvalidInput, match=missing):
        Secure(1.0).layout(numbers(RECIPES[name](), "updates"), 4)


@pytest.mark.parametrize("bad", [0, -1.0, math.inf, math.nan, None, True])
def test_impossible_bounds_are_refused(bad):
    with pytest.raises(fs.InvalidInput, match="bound"):
        Secure(bad)
    with pytest.raises(fs.InvalidInput, match="control"):
        Secure(1.0, {"control": bad})
    with pytest.raises(fs.InvalidInput, match="bounds"):
        Secure(1.0, bad)


@pytest.mark.parametrize("bad", [1e-200, 1e200])
def test_a_bound_must_have_a_square(bad):
    with pytest.raises(fs.InvalidInput, match="square"):
        Secure(bad)


def test_a_second_bound_of_the_update_is_refused():
    with pytest.raises(fs.InvalidInput, match="square"):
        Secure(1.0, {"square": 3.0})


@pytest.mark.parametrize("few", [0, 1, 2])
def test_too_small_a_cohort_is_refused(few):
    with pytest.raises(fs.InvalidInput, match="at least 3"):
        Secure(1.0).layout({"update": 3, "square": 1}, few)


def test_fields_of_another_layout_are_refused():
    layout = Secure(1.0).layout({"update": 3, "square": 1}, 3)
    with pytest.raises(fs.InvalidInput, match="expected"):
        layout.encode({"update": torch.zeros(4), "square": torch.zeros(1)}, {}, 1.0)


def a_sum(layout: Layout, square: float = 1.5) -> torch.Tensor:
    """The sum of the vectors of four clients with this squared norm."""
    update, squared = torch.full((6,), 0.5, dtype=torch.float64), torch.tensor([square], dtype=torch.float64)
    return 4 * layout.encode({"update": update, "square": squared}, {"gradients": 3.0}, 0.5)


@pytest.mark.parametrize(("square", "possible"), [(1.5, True), (4.0, True), (1.4, False), (0.0, False)])
def test_squares_are_between_that_of_the_mean_and_the_clip(square, possible):
    """The update has the squared norm 1.5, and its bound is 2."""
    layout = Secure(2.0).layout({"update": 6, "square": 1}, 4)
    assert layout.possible(a_sum(layout, square=square), 4) == possible


@pytest.mark.parametrize("change", [("square", 1.01), ("square", -0.1), ("update", 1.1), ("train_loss", 1.1)])
def test_means_beyond_their_bounds_are_impossible(change):
    name, factor = change
    layout = Secure(2.0).layout({"update": 6, "square": 1}, 4)
    total, half = a_sum(layout), layout.levels // 2
    assert layout.possible(total, 4)
    start = 0
    for field, numbers in layout.numbers.items():
        if field == name:
            total[start : start + numbers] = 2 * half * factor / numbers**0.5
        start += numbers
    assert not layout.possible(total, 4)


@pytest.mark.parametrize("entry", [-1, -4, -8])
def test_negative_counts_are_impossible(entry):
    layout = Secure(2.0).layout({"update": 6, "square": 1}, 4)
    total = a_sum(layout)
    total[entry] = -1
    assert not layout.possible(total, 4)
