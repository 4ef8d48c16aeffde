"""The settings of a run have one declaration: the signature and the docstring of fs.train()."""

import inspect
from dataclasses import dataclass

import pytest

import fedstride as fs
from fedstride.app import settings
from fedstride.app.config import Training, resolve
from fedstride.app.settings import SETTINGS
from fedstride.core.errors import InvalidInput


def test_every_plain_argument_of_train_is_a_setting():
    arguments = inspect.signature(fs.train).parameters
    rest = {"model", "loss", "clients", "algorithm", "test", "engine", "checkpoint", "callbacks", "collate", "progress"}
    assert set(SETTINGS) == set(arguments) - rest
    assert set(SETTINGS) <= set(Training.model_fields)
    for name, setting in SETTINGS.items():
        assert setting.description, name
        assert setting.dataclass or setting.default == arguments[name].default


def test_a_new_argument_is_one_edit(monkeypatch):
    @dataclass
    class Warmth:
        degrees: float = 1.0

    def train(model, *, rounds: int, colour: str | None = None, warmth: Warmth | None = None, ask: object = None):
        """Train.

        Args:
            rounds: number of rounds.
            colour: a colour such as "blue"; None = grey. It has no use.
            warmth: how warm it is.
        """

    train.__annotations__["warmth"] = Warmth | None
    monkeypatch.setattr(settings, "train", train)
    found = settings._settings()
    assert list(found) == ["rounds", "colour", "warmth"]
    assert found["colour"].description == 'a colour such as "blue"; none = grey'
    assert found["colour"].checked(None) is None
    assert found["warmth"].argument({"degrees": 3.0}) == Warmth(3.0)
    with pytest.raises(InvalidInput, match=r"training\.warmth\.degree is not an argument of Warmth; did you mean"):
        found["warmth"].argument({"degree": 3.0})
    with pytest.raises(InvalidInput, match="rounds='many' is invalid: "):
        found["rounds"].checked("many")


def test_a_setting_reaches_train_as_it_was_written():
    config = resolve(
        settings={"training.guard.quorum": 0.7, "training.local_steps": [3] * 50, "training.epochs": "none"}
    )
    arguments = config.arguments(None)
    assert arguments["guard"] == fs.Guard(quorum=0.7)
    assert (arguments["local_steps"], arguments["epochs"]) == ([3] * 50, None)
    inspect.signature(fs.train).bind(None, None, None, "auto", **arguments)
