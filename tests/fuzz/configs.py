"""Configurations: settings, TOML files, algorithms with parts; what is accepted must also train."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from fedstride.algorithm import Algorithm, text
from fedstride.algorithm.parts import PARTS as BY_SLOT
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.text import OTHERS, PARTS, parse_setting
from fedstride.app import run_folder
from fedstride.app.config import Config, resolve, to_toml
from fedstride.models import MODELS
from tests.fuzz import junk
from tests.fuzz.law import Target

SECTIONS = {name: Config.model_fields[name].annotation for name in ("data", "model", "training")}
FIELDS = {f"{at}.{key}": field for at, kind in SECTIONS.items() for key, field in kind.model_fields.items()}  # type: ignore[union-attr]
OPTIONS = {
    f"model.options.{key}": p.default
    for make in MODELS.values()
    for key, p in list(inspect.signature(make).parameters.items())[2:]
}
NAMES = ["digits", "breast_cancer", *MODELS, "cpu", "bfloat16", "label"]
anything = st.sampled_from(NAMES) | junk.values


def mostly(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Junk one time in six."""
    return st.integers(0, 5).flatmap(lambda luck: anything if luck == 5 else good)


def like(default: Any) -> st.SearchStrategy[Any]:
    """What may stand in a default's place."""
    for kind, good in (
        (bool, st.booleans()),
        (int, st.integers(1, 9)),
        (float, st.floats(0.01, 2)),
        (tuple, st.lists(st.floats(0.01, 0.99) | st.integers(1, 9), min_size=2, max_size=2)),
    ):
        if isinstance(default, kind):
            return mostly(good)
    return mostly(st.integers(1, 9) | st.floats(0.01, 2) | st.none())


def value_of(key: str) -> st.SearchStrategy[Any]:
    if key not in FIELDS:
        return like(OPTIONS.get(key))
    words = get_args(FIELDS[key].annotation)
    named = [w for word in words for w in (word, *get_args(word)) if isinstance(w, str)]
    return mostly(st.sampled_from(named)) if named else like(FIELDS[key].default)


known = st.sampled_from([*FIELDS, *OPTIONS])
odd = (
    st.sampled_from(["task", *SECTIONS, "algorithm", "data.options.test", "data.options.folder", "data.x"]) | junk.words
)
pairs = known.flatmap(lambda key: st.tuples(st.just(key), value_of(key)))
settings = st.lists(
    st.integers(0, 19).flatmap(lambda luck: st.tuples(odd, anything) if luck == 19 else pairs), max_size=4
).map(dict)


@st.composite
def called(draw: DrawFn, make: Callable[..., object]) -> dict[str, Any]:
    """Arguments of a recipe or a part, some of them wrong."""
    signature = inspect.signature(make).parameters
    wanted = draw(st.lists(st.sampled_from([*signature]), max_size=3, unique=True)) if signature else []
    needed = [key for key, p in signature.items() if p.default is p.empty and draw(st.booleans())]
    return {
        key: draw(mostly(parts(key)) if key in {*BY_SLOT, *OTHERS} else like(signature[key].default))
        for key in dict.fromkeys([*needed, *wanted])
    }


@st.composite
def parts(draw: DrawFn, slot: str) -> dict[str, Any]:
    fitting = [*text._parts(slot)]
    name = draw(mostly(st.sampled_from(fitting)))
    return {"part": name, **(draw(called(PARTS[name])) if _known(name, PARTS) else {})}


@st.composite
def algorithms(draw: DrawFn) -> dict[str, Any]:
    """A recipe or a composition of parts."""
    makers: dict[str, Callable[..., object]] = {**RECIPES, "custom": Algorithm}
    name = draw(mostly(st.sampled_from([*makers, "custom", "custom"])))
    more = draw(st.integers(0, 9).map(lambda luck: {"x": 1} if luck == 9 else {}))
    return {"name": name, **(draw(called(makers[name])) if _known(name, makers) else {}), **more}


def _known(name: object, table: dict[str, Any]) -> bool:
    return isinstance(name, str) and name in table


def resolved(given: dict[str, Any]) -> None:
    """Accepted means that it can be written down and read again."""
    found = resolve(settings=given)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(found), encoding="utf-8")
        again = resolve(file=path)
    assert to_toml(again) == to_toml(found)


def read(content: bytes) -> Config:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_bytes(content)
        return resolve(file=path)


def parsed(texts: list[str]) -> Config:
    return resolve(settings=dict(parse_setting(text) for text in texts))


NARROW: dict[str, dict[str, Any]] = {
    "mcmahan_cnn": {"width": 2, "hidden": 8},
    "resnet18": {"width": 4, "groups": 2},
    "char_lstm": {"hidden": 8},
}
SMALL = {"data.clients": 4, "model.name": "softmax", "training.cohort": 2, "training.local_steps": 2}


def trained(given: dict[str, Any]) -> None:
    """One round, on few clients; whatever else was asked for."""
    found = resolve(settings=SMALL | given)
    training, data = found.training, found.data
    most: dict[str, Any] = {"rounds": 1, "local_steps": training.local_steps and min(3, training.local_steps)}
    if training.epochs is not None:
        most["epochs"] = min(2.0, training.epochs)
    few = {"clients": min(8, data.clients)}
    narrow = {**NARROW.get(found.model.name, {}), **found.model.options}
    small = {
        "training": training.model_copy(update=most),
        "data": data.model_copy(update=few),
        "model": found.model.model_copy(update={"options": narrow}),
    }
    with TemporaryDirectory() as folder:
        run_folder.execute(run_folder.prepare(found.model_copy(update=small)), Path(folder) / "run")


TOML = [to_toml(resolve(task)).encode() for task in ("digits", "covtype")] + [
    to_toml(resolve(settings={"algorithm": {"name": "custom", "step": {"part": "Adam", "lr": 0.1}}}), True).encode()
]
TARGETS = [
    Target("configuration: settings", settings, resolved, 3),
    Target("configuration: algorithm", st.fixed_dictionaries({"algorithm": algorithms()}), resolved, 3),
    Target("configuration: file", junk.mutated(*TOML) | st.binary(max_size=40), read, 3),
    Target(
        "configuration: --set",
        st.lists(st.builds("{}={}".format, known | odd, junk.scalars) | junk.words, max_size=3),
        parsed,
    ),
    Target("training: settings", settings, trained),
    Target("training: algorithm", st.fixed_dictionaries({"algorithm": algorithms()}), trained),
]
