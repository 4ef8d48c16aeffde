"""Capabilities: custom parts get the fast paths and refusals of built-in parts with the same declarations."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.client.chunk import Chunk
from fedstride.core.capabilities import DEFAULTS, declared
from fedstride.oracle import Linear
from tests.algorithm.test_compose import REFUSED
from tests.problems import STEPS, learn, linear, regression, same_bits

SLOTS = ("step", "server", "objective", "gradient", "drift", "up", "down")


def twin(part: Any) -> Any:
    """Return the same part from an unrelated class, as a third party would write it."""
    if not is_dataclass(part):
        return part
    cls = type(part)
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return type(cls.__name__, (), body)(**{f.name: getattr(part, f.name) for f in fields(part)})


def copied(algorithm: fs.Algorithm) -> fs.Algorithm:
    found = replace(algorithm, **{slot: twin(getattr(algorithm, slot)) for slot in SLOTS})
    assert not isinstance(found.step, type(algorithm.step))
    return found


@dataclass(frozen=True)
class Fixed:
    """fs.Constant, as a third party would write it."""

    lr: float = 0.05
    slot: ClassVar[str] = "step"
    rotation_invariant: ClassVar[bool] = True
    fixed_step: ClassVar[bool] = True

    def init(self, x, context):
        return {"eta": torch.full_like(context.size, self.lr)}

    def step(self, W, L, G, state, oracle):
        return -state["eta"] * G


@dataclass(frozen=True)
class Search:
    """fs.Armijo, as a third party would write it."""

    rule: fs.Armijo = fs.Armijo()  # noqa: RUF009 (it is frozen)
    slot: ClassVar[str] = "step"
    needs_loss: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    rotation_invariant: ClassVar[bool] = True

    def init(self, x, context):
        return self.rule.init(x, context)

    def step(self, W, L, G, state, oracle):
        return self.rule.step(W, L, G, state, oracle)


class Undeclared:
    """The same, without declarations."""

    def init(self, x, context):
        return Fixed().init(x, context)

    def step(self, W, L, G, state, oracle):
        return Fixed().step(W, L, G, state, oracle)


class Halved(fs.Constant):
    """A subclass whose step a fast path would skip."""

    def step(self, W, L, G, state, oracle):
        return super().step(W, L, G, state, oracle) / 2


@pytest.fixture
def shortcuts(monkeypatch):
    """Count uses of the fast paths: the span of the samples, and steps without a call of the rule."""
    counts = {"span": 0, "descend": 0}
    reduced, descend = Chunk.reduced, Linear.descend

    def counted(self, x, fixed_step):
        found = reduced(self, x, fixed_step)
        counts["span"] += found is not None
        return found

    def straight(self, layers, eta, valued=False):
        counts["descend"] += 1
        return descend(self, layers, eta, valued)

    monkeypatch.setattr(Chunk, "reduced", counted)
    monkeypatch.setattr(Linear, "descend", straight)
    return counts


def trained(step, counts, d=30):
    counts.update(span=0, descend=0)
    engine = fs.engine.Local(workers=1)
    run = fs.train(linear(d=d), "mse", regression(d=d), fs.Algorithm(step), rounds=2, local_steps=3, engine=engine)
    return run, dict(counts)


@pytest.mark.parametrize(("own", "built_in"), [(Fixed(0.05), fs.Constant(0.05)), (Search(), fs.Armijo())])
@pytest.mark.parametrize("d", [5, 30], ids=["more samples", "more features"])
def test_a_custom_step_rule_gets_the_same_fast_paths(own, built_in, d, shortcuts):
    mine, by_mine = trained(own, shortcuts, d)
    theirs, by_theirs = trained(built_in, shortcuts, d)
    assert by_mine == by_theirs
    assert (by_mine["span"] > 0) == (d == 30)
    assert (by_mine["descend"] > 0) == isinstance(own, Fixed)
    assert same_bits(mine, theirs)


@pytest.mark.parametrize("step", [Undeclared(), Halved(0.05)], ids=["undeclared", "subclass"])
def test_without_a_declaration_of_its_own_a_rule_gets_no_fast_path(step, shortcuts):
    run, counts = trained(step, shortcuts)
    assert counts == {"span": 0, "descend": 0}
    expected, _ = trained(fs.Constant(0.025 if isinstance(step, Halved) else 0.05), shortcuts)
    torch.testing.assert_close(run.x, expected.x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RECIPES)
def test_an_algorithm_of_copied_parts_gives_the_same_bits(name):
    algorithm = RECIPES[name]()
    assert same_bits(learn(copied(algorithm), local_steps=STEPS), learn(algorithm, local_steps=STEPS))


@pytest.mark.parametrize("case", REFUSED)
def test_copied_parts_are_refused_for_the_same_reason(case):
    parts, _ = REFUSED[case]
    with pytest.raises(fs.Refused) as expected:
        fs.Algorithm(**parts)
    with pytest.raises(fs.Refused) as found:
        fs.Algorithm(**{slot: twin(part) for slot, part in parts.items()})
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (fs.recipes.fedsls(), {"clip_norm": 1.0}),
        (fs.recipes.fedsplit(), {"cohort": 2}),
        (fs.recipes.fedtrack(), {"batch_size": 2}),
        (fs.recipes.fedtrack(), {"loss": lambda o, t: torch.nn.functional.cross_entropy(o, t, reduction="sum") ** 2}),
        (fs.recipes.moon(), {"model": torch.nn.Linear(4, 3).double()}),
    ],
    ids=["searches", "needs everyone", "full batches", "by components", "needs features"],
)
def test_copied_parts_are_refused_by_training_for_the_same_reason(algorithm, options):
    reasons = []
    for chosen in (algorithm, copied(algorithm)):
        with pytest.raises(fs.Refused) as found:
            learn(chosen, **options)
        reasons.append(str(found.value))
    assert reasons[0] == reasons[1]


WRONG_SLOTS = {
    "server as step": ({"step": fs.FedExP()}, r"step=FedExP\(.*\) is a server rule, not a step rule: pass it as server=FedExP"),
    "step as server": ({"server": fs.Armijo()}, "is a step rule, not a server rule: pass it as step=Armijo"),
    "drift as objective": ({"objective": fs.Scaffold()}, "is a drift correction, not an objective: pass it as drift="),
    "objective as gradient": ({"gradient": fs.Moon()}, "is an objective, not a gradient estimator: pass it as objective="),
    "gradient as drift": ({"drift": fs.IAG()}, "is a gradient estimator, not a drift correction: pass it as gradient="),
    "compressor as step": ({"step": fs.TopK(3)}, "is a compressor, not a step rule: pass it as up=TopK"),
    "median as compressor": ({"up": fs.Median()}, "is an aggregation rule, not a compressor: pass it as aggregate=Median"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_SLOTS)
def test_a_part_in_the_wrong_slot_is_told_where_it_belongs(case):
    parts, message = WRONG_SLOTS[case]
    with pytest.raises(fs.InvalidInput, match=f"Algorithm: .*{message}"):
        fs.Algorithm(**parts)


class Keep:
    """A server rule that declares no slot."""

    needs = ()

    def init(self, x):
        return {"eta": x.new_ones(())}

    def broadcast(self, state):
        return {}

    def step(self, x, mean, state):
        return x

    def output(self, x, state):
        return x


def test_a_part_without_a_declaration_may_have_methods_of_other_parts():
    class Both(Undeclared):
        def compress(self, V, sources):
            return V

        def bytes(self, d, itemsize):
            return d * itemsize

    assert fs.Algorithm(Both(), up=Both())


def test_the_first_argument_of_algorithm_is_a_step_rule():
    with pytest.raises(fs.InvalidInput, match="pass it as server=FedExP"):
        fs.Algorithm(fs.FedExP())
    with pytest.raises(fs.InvalidInput, match="pass it as server=Keep"):
        fs.Algorithm(Keep())
    assert fs.Algorithm(server=Keep())


@pytest.mark.parametrize("recipe", RECIPES)
def test_declarations_of_the_built_in_parts_name_settings_they_have(recipe):
    algorithm = RECIPES[recipe]()
    for part in (algorithm.step, algorithm.server):
        named = [declared(part, name) for name in ("scaled_by", "capped_by", "damped_by", "grows_from")]
        assert all(hasattr(part, name) for name in named if name is not None)


def test_a_part_that_declares_nothing_has_the_defaults():
    assert {name: declared(object(), name) for name in DEFAULTS} == DEFAULTS
