"""The configuration: presets, files, single settings; every mistake is named."""

import pytest

from fedstride import InvalidInput
from fedstride.config import TASKS, parse_setting, resolve, to_toml


def settings(*texts):
    return dict(parse_setting(text) for text in texts)


@pytest.mark.parametrize("task", TASKS)
def test_every_preset_reads_back_what_it_writes(task, tmp_path):
    config = resolve(task)
    for meanings in (False, True):
        (tmp_path / "c.toml").write_text(to_toml(config, meanings))
        assert resolve(file=tmp_path / "c.toml") == config


def test_the_later_wins(tmp_path):
    (tmp_path / "c.toml").write_text('[training]\nrounds = 7\nbatch_size = 3\n[algorithm]\nname = "fedavg"\nlr = 0.5\n')
    config = resolve("mnist", tmp_path / "c.toml", settings("training.rounds=9", "training.cohort=none"))
    assert (config.training.rounds, config.training.batch_size, config.training.cohort) == (9, 3, None)
    assert config.data.source == "mnist"
    assert config.make_algorithm().step.lr == 0.5


def test_a_file_may_name_its_task(tmp_path):
    (tmp_path / "c.toml").write_text('task = "cifar10"\n')
    assert resolve(file=tmp_path / "c.toml").data.source == "cifar10"


def test_values_are_read_as_toml_else_as_text():
    assert settings("a=1", "b=0.5", 'c="x"', "d=x", "e=[1, 2]", "f=true") == {
        "a": 1, "b": 0.5, "c": "x", "d": "x", "e": [1, 2], "f": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.round=5", "training.round is no setting; did you mean 'rounds'"),
        ("training.rounds=0", "training.rounds=0"),
        ("training.rounds=many", "training.rounds='many'"),
        ("trainin.rounds=5", "trainin is no setting; did you mean 'training'"),
        ("data.alpha=-1", "data.alpha=-1"),
        ("data.partition=dirichelt", "data.partition='dirichelt'"),
        ("data=3", "data=3"),
        ("algorithm.name=fedagv", "did you mean 'fedavg'"),
        ("algorithm.lr=0.1", "unknown to auto"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InvalidInput, match=message):
        resolve(settings=settings(text))


def test_unusable_files_and_tasks_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        resolve(file=tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("this is [no toml")
    with pytest.raises(InvalidInput, match="no TOML file"):
        resolve(file=tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match="did you mean 'digits'"):
        resolve("digit")
    with pytest.raises(InvalidInput, match="key=value"):
        parse_setting("rounds")
