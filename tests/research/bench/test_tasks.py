"""The tasks of `fedstride bench painless`: every one can be made, and a seed decides all of it."""

from __future__ import annotations

import math

import pytest
import torch

from fedstride.core import losses
from fedstride.data import cache
from fedstride.research.bench.painless import SCALED
from fedstride.research.bench.task_parts import constant, gaussian_nll
from fedstride.research.bench.task_table import TASKS
from fedstride.research.bench.tasks import GROUPS, _corrupted

pytestmark = pytest.mark.slow


def available(name):
    needs = TASKS[name].source
    missing = needs is not None and not cache.path(needs).exists()
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"fedstride data get {needs}"))


@pytest.mark.parametrize("name", [*map(available, TASKS)])
def test_a_task_can_be_made_and_its_first_loss_is_finite(name):
    setup = TASKS[name].make(1)
    x, y = setup.clients[0]
    if setup.arguments.get("normalise"):
        every = torch.cat([inputs for inputs, _ in setup.clients])
        x = (x - every.mean(0)) / every.std(0).clamp(min=1e-6)
    loss = losses.resolve(setup.loss)
    assert math.isfinite(float(loss(setup.model(x), y).detach()))
    assert math.isfinite(constant(loss, setup.test[1]))
    assert len(setup.clients) >= (setup.arguments["cohort"] or 10) and 80 <= len(setup.test[1]) <= 2000
    assert min(len(targets) for _, targets in setup.clients) >= 8


@pytest.mark.parametrize("name", ["hastie", "digits", "post-norm", "friedman"])
def test_a_seed_makes_the_same_task_and_another_seed_another(name):
    def flat(seed):
        setup = TASKS[name].make(seed)
        return torch.cat([p.flatten() for p in setup.model.parameters()]), setup.clients[0][0].flatten().float()

    before = torch.random.get_rng_state()
    (w, x), (v, z), (other, _) = flat(0), flat(0), flat(1)
    assert torch.equal(w, v) and torch.equal(x, z) and not torch.equal(w, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_three_groups_of_enough_tasks():
    sizes = {group: sum(task.group == group for task in TASKS.values()) for group in GROUPS}
    assert min(sizes.values()) >= 10 and sum(sizes.values()) >= 25 and len(GROUPS) == 3
    assert all(task.name == name and 30 <= task.rounds <= 60 for name, task in TASKS.items())
    assert len({task.what for task in TASKS.values()}) == len(TASKS)
    assert set(SCALED) <= set(TASKS)


def test_wrong_labels_are_wrong_and_of_a_known_class():
    labels = torch.arange(10_000) % 7
    changed = _corrupted(labels, labels, 0.2, torch.Generator().manual_seed(0))
    assert float((changed != labels).float().mean()) == pytest.approx(0.2, abs=0.02)
    assert int(changed.min()) == 0 and int(changed.max()) == 6


def test_the_constant_prediction_of_a_likelihood_is_the_best_one():
    y = 3 + 2 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    best = torch.stack([y.mean(), y.var(correction=0).log()]).repeat(500, 1)
    assert constant(gaussian_nll, y) == pytest.approx(float(gaussian_nll(best, y)), rel=1e-5)
    assert constant(gaussian_nll, y) < float(gaussian_nll(best + 0.1, y))
