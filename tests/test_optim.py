"""The step rules as torch optimizers: the federated rule with one client, by torch's conventions."""

from __future__ import annotations

import copy
import io
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector

import fedstride as fs
from fedstride.client import local, step
from fedstride.client.context import Context
from fedstride.client.objective import Terms
from fedstride.core.model import Replica
from fedstride.oracle import Loop, Meter
from tests.problems import classification, classifier, seeded

STEPS = 12
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
CHOICES = [
    ("Armijo", {}),
    ("Armijo", {"reset": "keep", "lr_max": 5.0}),
    ("Armijo", {"reset": "max", "c": 0.7, "lr_max": 9.0}),
    ("Armijo", {"reset": "grow", "backtrack": 0.5, "growth": 3.0, "lr_max": 20.0}),
    ("DeltaSGD", {}),
    ("DeltaSGD", {"gamma": 0.5, "delta": 1.0, "lr0": 1.0}),
    ("DeltaSGD", {"reuse_gradient": True}),
    ("Polyak", {}),
    ("Polyak", {"c": 1.0, "lr_max": 2.0, "f_star": 0.1}),
    ("Polyak", {"growth": 1.1}),
]
ONE_EACH = [
    ("Armijo", {"lr_max": 9.0}),
    ("DeltaSGD", {}),
    ("DeltaSGD", {"reuse_gradient": True}),
    ("Polyak", {"growth": 1.2}),
]
each_choice = pytest.mark.parametrize(("name", "hyper"), CHOICES)
each_rule = pytest.mark.parametrize(("name", "hyper"), ONE_EACH)


def optimizer(name, params, **hyper):
    return getattr(fs.optim, name)(params, **hyper)


def data(dtype=torch.float64):
    return classification([40], dtype)[0]


def quarters(dtype=torch.float64):
    inputs, targets = data(dtype)
    return list(zip(inputs.split(10), targets.split(10), strict=True))


def closure_of(model, opt, inputs, targets, calls=None):
    """The closure of torch's documentation, with cheap trials; `calls` gets True for each gradient, else False."""

    def closure():
        loss = F.cross_entropy(model(inputs), targets)
        if calls is not None:
            calls.append(torch.is_grad_enabled())
        if torch.is_grad_enabled():
            opt.zero_grad()
            loss.backward()
        return loss

    return closure


def eager_closure_of(model, opt, inputs, targets, zero=lambda opt: opt.zero_grad()):
    """The closure most people write: it always calls backward."""

    def closure():
        zero(opt)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    return closure


def fit(model, opt, batches, make=closure_of, **options):
    """One step a batch; the losses and the steps of the first group."""
    losses, steps = [], []
    for inputs, targets in batches:
        losses.append(opt.step(make(model, opt, inputs, targets, **options)).item())
        steps.append(opt.param_groups[0]["lr"])
    return losses, steps


def flat(model):
    return parameters_to_vector(model.parameters()).detach()


def locally(rule, model, batches, size):
    """The federated local loop, alone: y_K."""
    replica, K = Replica(model), len(batches)
    x, b = replica.row(), len(batches[0][0])
    context = Context(0, 0, 1, (0,), (K,), x.new_tensor([[size]]), x.new_tensor([[b]]))
    loops = lambda k, n: Loop(replica, F.cross_entropy, [batches[k]], Meter(1))  # noqa: E731
    return local.run(rule, loops, x, context, Terms(), None, local.LocalOptions()).W[0]


# --- the same rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_choice
def test_it_is_the_federated_rule(name, hyper, dtype):
    model, batches = classifier(dtype), quarters(dtype) * (STEPS // 4)
    there = locally(getattr(step, name)(**hyper), model, batches, size=40)
    bpe = {} if name == "DeltaSGD" else {"batches_per_epoch": 4}
    fit(model, optimizer(name, model.parameters(), **hyper, **bpe), batches)
    # The local loop's parameters lie elsewhere in memory, on which the last digits of products may depend.
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(flat(model), there, rtol=tolerance, atol=tolerance)


@each_choice
def test_it_is_a_round_of_train_with_one_client(name, hyper):
    algorithm = fs.Algorithm(step=getattr(step, name)(**hyper))
    run = fs.train(classifier(), "cross_entropy", [data()], algorithm, rounds=1, local_steps=STEPS)
    model = classifier()
    losses, steps = fit(model, optimizer(name, model.parameters(), **hyper), [data()] * STEPS)
    torch.testing.assert_close(flat(model), run.x, rtol=0, atol=1e-12)
    assert losses[0] == pytest.approx(run.history[0]["train_loss"], abs=1e-12)
    assert sum(steps) / STEPS == pytest.approx(run.history[0]["client_step"], rel=1e-12)


@pytest.mark.parametrize("name", ["Armijo", "DeltaSGD", "Polyak"])
def test_defaults_are_the_rule_s(name):
    group = optimizer(name, classifier().parameters()).param_groups[0]
    rule = getattr(step, name)()
    assert {f.name: group[f.name] for f in fields(rule)} == {f.name: getattr(rule, f.name) for f in fields(rule)}


@pytest.mark.parametrize(("reset", "second"), [("keep", 0.25), ("max", 1.0), ("grow", 0.5)])
def test_resets_start_where_they_say(reset, second):
    """On a y^2 the search accepts steps up to 0.9 / a: from the grid 1, 1/2, 1/4, ... with a = 3 it takes 1/4."""
    y = torch.ones(1, dtype=torch.float64, requires_grad=True)
    opt = fs.optim.Armijo([y], backtrack=0.5, reset=reset, growth=16, batches_per_epoch=4)
    steps = []
    for a in (3.0, 0.1):

        def closure(a=a):
            opt.zero_grad()
            loss = a * (y**2).sum()
            loss.backward()
            return loss

        opt.step(closure)
        steps.append(opt.param_groups[0]["lr"])
    assert steps == pytest.approx([0.25, second], rel=1e-15)  # 16^(1/4) need not be 2 to the bit


# --- closures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_none", [True, False])
@each_rule
def test_a_closure_that_always_calls_backward_gives_the_same(name, hyper, to_none):
    cheap, eager = classifier(), classifier()
    a = fit(cheap, optimizer(name, cheap.parameters(), **hyper), quarters())
    b = fit(
        eager,
        optimizer(name, eager.parameters(), **hyper),
        quarters(),
        eager_closure_of,
        zero=lambda o: o.zero_grad(to_none),
    )
    # A forward pass without gradients may use other kernels.
    torch.testing.assert_close(a, b, **CLOSE)
    torch.testing.assert_close(flat(cheap), flat(eager), **CLOSE)
    for p, q in zip(cheap.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, **CLOSE)


def test_trials_of_a_search_need_no_gradient():
    model, calls = classifier(), []
    opt = fs.optim.Armijo(model.parameters(), lr_max=50.0)
    fit(model, opt, quarters(), calls=calls)
    trials = float(opt.state[next(model.parameters())]["trials"])
    assert trials > 2 * 4  # it did backtrack
    assert (calls.count(True), calls.count(False)) == (4, trials)


@pytest.mark.parametrize(("hyper", "gradients"), [({}, 1 + 2 * 3), ({"reuse_gradient": True}, 4)])
def test_delta_sgd_takes_the_gradients_it_announces(hyper, gradients):
    model, calls = classifier(), []
    fit(model, fs.optim.DeltaSGD(model.parameters(), **hyper), quarters(), calls=calls)
    assert calls == [True] * gradients


@each_rule
def test_step_returns_the_loss_before_the_step_and_leaves_its_gradient(name, hyper):
    model = classifier()
    opt = optimizer(name, model.parameters(), **hyper)
    for inputs, targets in quarters():
        value = F.cross_entropy(model(inputs), targets)
        gradient = torch.autograd.grad(value, list(model.parameters()))
        before = flat(model)
        assert opt.step(closure_of(model, opt, inputs, targets)) == value
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradient, strict=True))
        moved = before - opt.param_groups[0]["lr"] * torch.cat([g.flatten() for g in gradient])
        torch.testing.assert_close(flat(model), moved, rtol=0, atol=1e-14)


def test_a_closure_that_fails_in_a_trial_leaves_the_model_where_it_was():
    model, calls = classifier(), []
    opt = fs.optim.Armijo(model.parameters(), lr_max=50.0)
    good = closure_of(model, opt, *data())

    def closure():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return good()

    before = flat(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        opt.step(closure)
    assert torch.equal(flat(model), before)
    assert all(p.grad is not None for p in model.parameters())


# --- chance -----------------------------------------------------------------------------------------------------------


class Recorder(nn.Module):
    """Dropout that notes its masks, BatchNorm, and a buffer that is replaced rather than changed in place."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.masks = []
        self.register_buffer("forwards", torch.zeros(()))

    def forward(self, inputs):
        self.forwards = self.forwards + 1
        h = self.norm(self.body(inputs))
        mask = F.dropout(torch.ones_like(h))
        self.masks.append(mask)
        return self.head(mask * h)


@pytest.mark.parametrize("make", [closure_of, eager_closure_of])
@pytest.mark.parametrize(("name", "hyper"), [("Armijo", {"lr_max": 50.0}), ("DeltaSGD", {}), ("Polyak", {})])
def test_a_step_is_one_evaluation_to_dropout_and_batch_norm(name, hyper, make):
    model, twin = seeded(Recorder), seeded(Recorder)
    opt = optimizer(name, model.parameters(), **hyper)
    torch.manual_seed(3)
    for inputs, targets in quarters():
        random = torch.get_rng_state()
        twin.load_state_dict(model.state_dict())
        model.masks.clear(), twin.masks.clear()
        opt.step(make(model, opt, inputs, targets))
        after = torch.get_rng_state()

        torch.set_rng_state(random)
        twin(inputs)
        assert torch.equal(after, torch.get_rng_state())
        assert all(torch.equal(mask, twin.masks[0]) for mask in model.masks)
        for mine, once in zip(model.buffers(), twin.buffers(), strict=True):
            assert torch.equal(mine, once)
    assert len(model.masks) > 1 or name == "Polyak"
    assert int(model.norm.num_batches_tracked) == int(model.forwards) == 4


# --- groups -----------------------------------------------------------------------------------------------------------


def halves(model, **second):
    return [{"params": model.body.parameters()}, {"params": model.head.parameters(), **second}]


@pytest.mark.parametrize(("name", "hyper"), [("Armijo", {"lr_max": 9.0}), ("Polyak", {"growth": 1.2})])
def test_equal_groups_are_one_group(name, hyper):
    one, two = classifier(), classifier()
    fit(one, optimizer(name, one.parameters(), **hyper), quarters())
    fit(two, optimizer(name, halves(two), **hyper), quarters())
    torch.testing.assert_close(flat(one), flat(two), rtol=0, atol=1e-13)


def test_armijo_groups_share_a_search_and_keep_their_own_maximum():
    model, (inputs, targets) = classifier(), data()
    opt = fs.optim.Armijo(halves(model, lr_max=25.0), lr_max=100.0, c=0.5, reset="max")
    for _ in range(4):
        value = F.cross_entropy(model(inputs), targets)
        gradient = torch.autograd.grad(value, list(model.parameters()))
        before = [p.detach().clone() for p in model.parameters()]
        opt.step(closure_of(model, opt, inputs, targets))
        a, b = (group["lr"] for group in opt.param_groups)
        assert b == pytest.approx(a / 4, rel=1e-14) and 0 < b < 25
        lrs = [a, a, b, b]

        def point(factor, lrs=lrs, before=before, gradient=gradient):
            return [y - factor * lr * g for y, lr, g in zip(before, lrs, gradient, strict=True)]

        def enough(factor, lrs=lrs, value=value, gradient=gradient, point=point):
            twin = classifier()
            for p, y in zip(twin.parameters(), point(factor), strict=True):
                p.data = y
            promised = 0.5 * factor * sum(lr * float((g**2).sum()) for lr, g in zip(lrs, gradient, strict=True))
            return F.cross_entropy(twin(inputs), targets) <= value - promised

        for p, y in zip(model.parameters(), point(1), strict=True):
            torch.testing.assert_close(p.detach(), y, rtol=0, atol=1e-13)
        assert enough(1) and not enough(1 / 0.9)  # the largest of the grid


def test_polyak_groups_share_the_gap_and_keep_their_own_maximum():
    model, (inputs, targets) = classifier(), data()
    opt = fs.optim.Polyak(halves(model, lr_max=0.01))
    value = F.cross_entropy(model(inputs), targets)
    square = sum(float((g**2).sum()) for g in torch.autograd.grad(value, list(model.parameters())))
    opt.step(closure_of(model, opt, inputs, targets))
    assert [group["lr"] for group in opt.param_groups] == pytest.approx([value.item() / (0.5 * square + 1e-8), 0.01])


@pytest.mark.parametrize("reuse", [False, True])
def test_delta_sgd_groups_have_their_own_steps(reuse):
    """f = 3 u^2 + v^2 / 2, separable: each group is the one-row rule on its own part."""

    def train(groups, terms, steps=6):
        opt = fs.optim.DeltaSGD(groups)
        calls = []

        def closure():
            calls.append(1)
            opt.zero_grad()
            loss = sum(a * (p**2).sum() for a, p in terms)
            loss.backward()
            return loss

        for _ in range(steps):
            opt.step(closure)
        return [group["lr"] for group in opt.param_groups], len(calls)

    u, v = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    together, calls = train(
        [{"params": [u]}, {"params": [v], "lr0": 0.5, "reuse_gradient": reuse}], [(3.0, u), (0.5, v)]
    )
    assert calls == 1 + 2 * 5  # the groups share the second evaluation
    alone = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert together[0] == train([{"params": [alone]}], [(3.0, alone)])[0][0]
    assert torch.equal(u, alone)
    alone = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert together[1] == train([{"params": [alone], "lr0": 0.5}], [(0.5, alone)])[0][0]
    assert torch.equal(v, alone) and together[0] != together[1]


@each_rule
def test_frozen_parameters_stay_out(name, hyper):
    """Frozen in an optimizer of all, or left out of it: the same."""
    all_of, rest = classifier(), classifier()
    for model in (all_of, rest):
        model.body.requires_grad_(False)
    a = fit(all_of, optimizer(name, all_of.parameters(), **hyper), quarters())
    b = fit(rest, optimizer(name, rest.head.parameters(), **hyper), quarters())
    assert a == b and torch.equal(flat(all_of.head), flat(rest.head))
    assert torch.equal(flat(all_of.body), flat(classifier().body))


@each_rule
def test_parameters_may_be_thawed(name, hyper):
    model = classifier()
    opt = optimizer(name, model.parameters(), **hyper)
    model.body.requires_grad_(False)
    fit(model, opt, quarters())
    model.body.requires_grad_(True)
    before = flat(model.body)
    _, steps = fit(model, opt, quarters())
    assert not torch.equal(flat(model.body), before) and all(0 < s < 100 for s in steps)


@each_rule
def test_a_parameter_without_gradient_does_not_move(name, hyper):
    model = classifier()
    unused = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = optimizer(name, [*model.parameters(), unused], **hyper)
    fit(model, opt, quarters())
    assert unused.grad is None and torch.equal(unused, torch.ones_like(unused))


# --- torch's conventions ----------------------------------------------------------------------------------------------


@each_rule
def test_a_saved_state_goes_on_with_the_same_bits(name, hyper):
    model = classifier()
    opt = optimizer(name, halves(model), **hyper)
    fit(model, opt, quarters())
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    expected = fit(model, opt, quarters())

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = classifier()
    again = optimizer(name, halves(other))  # its own hyper-parameters are replaced by the saved ones
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    assert [g["lr"] for g in again.param_groups] == [g["lr"] for g in saved["opt"]["param_groups"]]
    assert fit(other, again, quarters()) == expected
    assert torch.equal(flat(model), flat(other))


def test_a_rule_that_forgot_would_not_go_on_with_the_same_bits():
    """The state matters: without it the next steps differ, so the test above can fail."""
    for name, hyper in ONE_EACH:
        model = classifier()
        opt = optimizer(name, model.parameters(), **hyper)
        fit(model, opt, quarters())
        other = copy.deepcopy(model)
        _, steps = fit(model, opt, quarters())
        assert fit(other, optimizer(name, other.parameters(), **hyper), quarters())[1] != steps


@each_rule
def test_a_copy_of_the_optimizer_is_complete(name, hyper):
    model = seeded(Recorder)
    opt = optimizer(name, model.parameters(), **hyper)
    fit(model, opt, quarters())
    twin, again = copy.deepcopy((model, opt))
    torch.manual_seed(0)
    expected = fit(model, opt, quarters())
    torch.manual_seed(0)
    assert fit(twin, again, quarters()) == expected
    assert torch.equal(model.norm.running_mean, twin.norm.running_mean)


@each_rule
def test_schedulers_read_and_write_lr_without_effect(name, hyper):
    one, two = classifier(), classifier()
    plain, scheduled = (optimizer(name, m.parameters(), **hyper) for m in (one, two))
    schedulers = [
        torch.optim.lr_scheduler.StepLR(scheduled, 1),
        torch.optim.lr_scheduler.CosineAnnealingLR(scheduled, 10),
        torch.optim.lr_scheduler.ReduceLROnPlateau(scheduled),
    ]
    for batch in quarters():
        a, b = fit(one, plain, [batch]), fit(two, scheduled, [batch])
        assert a == b
        for scheduler in schedulers:
            scheduler.step(*([a[0][0]] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
    assert torch.equal(flat(one), flat(two))


def test_groups_may_be_added_and_the_user_s_dict_stays_his():
    model = classifier()
    mine = {"params": list(model.body.parameters()), "name": "body"}
    opt = fs.optim.Armijo([mine])
    assert "lr" not in mine and opt.param_groups[0]["name"] == "body"
    fit(model, opt, quarters())
    before = flat(model.head)
    opt.add_param_group({"params": model.head.parameters(), "lr_max": 0.3})
    fit(model, opt, quarters())
    assert not torch.equal(flat(model.head), before) and 0 < opt.param_groups[1]["lr"] <= 0.3


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Armijo", "DeltaSGD", "Polyak"])
def test_a_missing_closure_is_named(name):
    with pytest.raises(fs.InvalidInput, match="closure"):
        optimizer(name, classifier().parameters()).step()


@pytest.mark.parametrize(
    ("returned", "message"), [(None, "returned None"), ("loss", "single number"), (torch.ones(2), "single number")]
)
def test_a_closure_must_return_the_loss(returned, message):
    model = classifier()
    opt = fs.optim.Polyak(model.parameters())

    def closure():
        closure_of(model, opt, *data())()
        return returned

    before = flat(model)
    with pytest.raises(fs.InvalidInput, match=rf"closure.*{message}"):
        opt.step(closure)
    assert torch.equal(flat(model), before)


def test_a_closure_may_return_a_number():
    one, two = classifier(), classifier()
    a, b = fs.optim.Armijo(one.parameters()), fs.optim.Armijo(two.parameters())
    inner = closure_of(two, b, *data())
    fit(one, a, [data()])
    b.step(lambda: inner().item())
    assert torch.equal(flat(one), flat(two))


def test_a_closure_that_forgets_backward_is_told():
    model = classifier()
    with pytest.raises(fs.InvalidInput, match=r"closure.*backward"):
        fs.optim.Armijo(model.parameters()).step(lambda: F.cross_entropy(model(data()[0]), data()[1]))


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("Armijo", {"lr_max": 0.0}, "lr_max=0.0"),
        ("Armijo", {"c": 1.0}, "c=1.0"),
        ("Armijo", {"reset": "grwo"}, "did you mean 'grow'"),
        ("Armijo", {"batches_per_epoch": 0}, "batches_per_epoch=0"),
        ("DeltaSGD", {"gamma": -1.0}, "gamma=-1.0"),
        ("Polyak", {"growth": 0.5}, "growth=0.5"),
        ("Polyak", {"batches_per_epoch": -3}, "batches_per_epoch=-3"),
    ],
)
def test_hyper_parameters_are_checked_by_the_rule(name, hyper, message):
    model = classifier()
    with pytest.raises(fs.InvalidInput, match=message):
        optimizer(name, model.parameters(), **hyper)
    opt = optimizer(name, model.body.parameters())
    with pytest.raises(fs.InvalidInput, match=message):
        opt.add_param_group({"params": model.head.parameters(), **hyper})
    assert len(opt.param_groups) == 1


def test_armijo_groups_may_not_differ_in_what_they_share():
    with pytest.raises(fs.InvalidInput, match=r"c=0\.2.*0\.1.*only in lr_max"):
        fs.optim.Armijo(halves(classifier(), c=0.2))


@pytest.mark.parametrize("entry", ["lr", "momentum", "weight_decay", "maximize"])
def test_entries_of_other_optimizers_are_refused(entry):
    with pytest.raises(fs.InvalidInput, match=rf"sets {entry}.*expected only lr0"):
        fs.optim.DeltaSGD(halves(classifier(), **{entry: 0.1}))
    with pytest.raises(TypeError, match=entry):
        fs.optim.DeltaSGD(classifier().parameters(), **{entry: 0.1})


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    opt = fs.optim.Armijo(table.parameters())

    def closure():
        opt.zero_grad()
        loss = (table(torch.tensor([1, 2])) ** 2).sum()
        loss.backward()
        return loss

    with pytest.raises(fs.InvalidInput, match="sparse"):
        opt.step(closure)


def test_params_of_several_kinds_and_complex_ones_are_refused():
    single, double = torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(fs.InvalidInput, match=r"params.*float32.*float64.*one type"):
        fs.optim.Polyak([single, double])
    with pytest.raises(fs.InvalidInput, match=r"params.*complex64.*real"):
        fs.optim.Polyak([torch.ones(2, dtype=torch.complex64, requires_grad=True)])


# --- and it trains ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Armijo", "DeltaSGD", "Polyak"])
def test_digits_are_learnt_without_a_learning_rate(name):
    inputs, targets = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    inputs = (inputs / 8 - 1).float()
    source = torch.Generator().manual_seed(0)
    order = torch.randperm(len(inputs), generator=source)
    train, test = order[: 21 * 64], order[21 * 64 :]
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), torch.float32)
    opt = optimizer(name, model.parameters())
    for _ in range(6):
        epoch = train[torch.randperm(len(train), generator=source)]
        fit(model, opt, [(inputs[i], targets[i]) for i in epoch.split(64)])
    accuracy = (model(inputs[test]).argmax(1) == targets[test]).float().mean()
    assert accuracy > 0.9
