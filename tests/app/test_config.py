"""The configuration: presets, files, single settings; every mistake is named."""

import pytest
from typer.testing import CliRunner

import fedstride as fs
from fedstride import InvalidInput
from fedstride.algorithm.text import algorithm_of, parse_setting, split
from fedstride.app.cli import app
from fedstride.app.config import resolve, to_toml
from fedstride.app.presets import TASKS
from fedstride.client.objective import Proximal
from fedstride.client.step import Adam, Polyak


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
        ("training.round=5", "training.round is not a setting; did you mean 'rounds'"),
        ("training.rounds=0", "training.rounds=0"),
        ("training.rounds=many", "training.rounds='many'"),
        ("trainin.rounds=5", "trainin is not a setting; did you mean 'training'"),
        ("training.readout=avarage", "training.readout='avarage' .*'server', 'last' or 'average'"),
        ("training.evaluate_every=0", "training.evaluate_every=0"),
        ("training.evaluate_every=often", "training.evaluate_every='often' .*, or 'auto'"),
        ("data.alpha=-1", "data.alpha=-1"),
        ("data.partition=dirichelt", "data.partition='dirichelt'"),
        ("data=3", "data=3"),
        ("algorithm.name=fedagv", "did you mean 'fedavg'"),
        ("algorithm.lr=0.1", "is not an argument of auto"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InvalidInput, match=message):
        resolve(settings=settings(text))


def test_unusable_files_and_tasks_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        resolve(file=tmp_path / "missing.toml")
    (tmp_path / "digits.toml").write_text("a = " + "9" * 5000)  # more than Python converts
    with pytest.raises(InvalidInput, match="not a valid TOML file"):
        resolve(file=tmp_path / "digits.toml")
    for deep in ("a" + ".a" * 50_000 + "=1", "[" + "a." * 20_000 + "a]", "a=1\n" * 300_000):  # minutes, without a limit
        (tmp_path / "deep.toml").write_text(deep)
        with pytest.raises(InvalidInput, match="expected at most 1048576 characters, and 200 dots in a line"):
            resolve(file=tmp_path / "deep.toml")
    (tmp_path / "bad.toml").write_text("this is [no toml")
    with pytest.raises(InvalidInput, match="not a valid TOML file"):
        resolve(file=tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match="did you mean 'digits'"):
        resolve("digit")
    with pytest.raises(InvalidInput, match="key=value"):
        parse_setting("rounds")


def algorithm(**table):
    return resolve(settings={"algorithm": table}).make_algorithm()


def test_an_algorithm_is_composed_of_parts():
    made = algorithm(
        name="custom",
        step={"part": "Adam", "lr": 0.01, "betas": [0.8, 0.9]},
        server={"part": "FedExP", "eps": 0.5},
        objective={"part": "Proximal", "mu": 0.2},
        readout="average",
    )
    assert made == fs.Algorithm(Adam(0.01, (0.8, 0.9)), fs.FedExP(0.5), Proximal(0.2), readout="average")


def test_a_recipe_takes_parts_too():
    assert algorithm(name="fedlin", lr=0.2, up={"part": "TopK", "k": 5}) == fs.recipes.fedlin(lr=0.2, up=fs.TopK(5))


def test_parts_may_be_set_under_dotted_names():
    given = settings("algorithm.name=custom", "algorithm.step.part=Armijo", "algorithm.step.lr_max=0.5")
    assert resolve(settings=given).make_algorithm() == fs.Algorithm(fs.Armijo(0.5))


def test_parts_read_back_what_they_write(tmp_path):
    table = {"name": "custom", "step": {"part": "Polyak", "c": 0.5, "lr_max": None}, "up": {"part": "TopK", "k": 0.1}}
    config = resolve(settings={"algorithm": table})
    (tmp_path / "c.toml").write_text(to_toml(config))
    again = resolve(file=tmp_path / "c.toml")
    assert again == config
    assert again.make_algorithm() == fs.Algorithm(Polyak(0.5, None), up=fs.TopK(0.1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"step": {"part": "Armio"}}, "'Armio'} does not name a valid part; did you mean 'Armijo'"),
        ({"step": {"lr": 0.1}}, r"algorithm\.step={'lr': 0.1} does not name a valid part; expected one of"),
        ({"step": {"part": "FedExP"}}, "does not name a valid part"),
        ({"step": {"part": "Constant", "lr": 0.1, "schedule": {"part": "Adam"}}}, "does not name a valid part"),
        ({"up": {"part": "TopK"}}, r"algorithm\.up\.k is missing; TopK requires it"),
        ({"step": {"part": "Armijo", "lrmax": 1.0}}, r"algorithm\.step\.lrmax is not an argument of Armijo; did you mean 'lr_max'"),
        ({"drift": {"part": "Scaffold", "lr": 1.0}}, r"algorithm\.drift\.lr is not an argument of Scaffold, which takes none"),
        ({"step": {"part": "Adam", "lr": -1.0}}, "Adam: lr=-1.0 is invalid"),
        ({"step": "Adam"}, "step='Adam' is not a step rule"),
        ({"stepp": {"part": "Adam"}}, r"algorithm\.stepp is not an argument of custom; did you mean 'step'"),
        ({"readout": "mean"}, "readout='mean' is unknown"),
    ],
)  # fmt: skip
def test_mistakes_in_parts_are_named(table, message):
    with pytest.raises(InvalidInput, match=message):
        algorithm(name="custom", **table)


def test_parts_that_make_no_sense_together_are_refused_at_once():
    with pytest.raises(fs.Refused, match="Scaffold with client Adam"):
        algorithm(name="custom", step={"part": "Adam"}, drift={"part": "Scaffold"})


MLP = '[model]\nname = "mlp"\noptions = {hidden = [7]}\n'


@pytest.mark.parametrize(
    ("task", "file", "texts", "expected"),
    [
        ("mnist", "", (), {"dropout": 0}),
        ("mnist", "", ("model.name=small_cnn",), {"dropout": 0}),
        ("mnist", "", ("model.options.width=4",), {"dropout": 0, "width": 4}),
        ("mnist", "", ("model.name=softmax",), {}),
        ("mnist", MLP, (), {"hidden": [7]}),  # without the preset's dropout
        ("mnist", MLP, ("model.name=mlp",), {"hidden": [7]}),
        ("mnist", MLP, ("model.name=softmax",), {}),
        ("mnist", MLP, ("model.name=small_cnn", "model.options.width=4"), {"width": 4}),
    ],
)
def test_another_model_drops_the_options_of_the_one_before(task, file, texts, expected, tmp_path):
    (tmp_path / "c.toml").write_text(file)
    assert resolve(task, tmp_path / "c.toml", settings(*texts)).model.options == expected
    assert resolve("mnist").model.options == {"dropout": 0}, "the preset itself stays as it is"


def test_another_model_keeps_its_seed(tmp_path):
    (tmp_path / "c.toml").write_text(MLP + "seed = 3\n")
    assert resolve(file=tmp_path / "c.toml", settings=settings("model.name=softmax")).model.seed == 3


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), {"name": "fedexp", "lr": 0.5, "eps": 0.1}),
        (("algorithm.lr=0.2",), {"name": "fedexp", "lr": 0.2, "eps": 0.1}),
        (("algorithm.name=fedexp",), {"name": "fedexp", "lr": 0.5, "eps": 0.1}),
        (("algorithm.name=auto",), {"name": "auto"}),
        (("algorithm.name=fedavg", "algorithm.server_lr=0.9"), {"name": "fedavg", "server_lr": 0.9}),
    ],
)
def test_another_algorithm_drops_the_arguments_of_the_one_before(texts, expected, tmp_path):
    (tmp_path / "c.toml").write_text('[algorithm]\nname = "fedexp"\nlr = 0.5\neps = 0.1\n')
    assert resolve(file=tmp_path / "c.toml", settings=settings(*texts)).algorithm == expected


def test_another_algorithm_than_the_presets_drops_its_arguments(monkeypatch):
    monkeypatch.setitem(TASKS, "breast_cancer", {"algorithm": {"name": "fedprox", "mu": 0.1}})
    assert resolve("breast_cancer").algorithm == {"name": "fedprox", "mu": 0.1}
    given = settings("algorithm.name=fedavg")
    assert resolve("breast_cancer", settings=given).algorithm == {"name": "fedavg"}


@pytest.mark.parametrize("value", ["fedavg", 3])
def test_an_algorithm_that_is_no_table_is_named(value):
    with pytest.raises(InvalidInput, match=r"expected a table of settings, as in algorithm.name=auto"):
        resolve(settings={"algorithm": value})


def test_naming_the_usual_model_keeps_its_options(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[model]\noptions = {hidden = [5]}\n")
    assert resolve(file=file, settings={"model.name": "mlp"}).model.options == {"hidden": [5]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", fs.recipes.auto()),
        ("fedexp(lr=0.1)", fs.recipes.fedexp(lr=0.1)),
        (" fedadam ( betas=[0.5, 0.6], tau = 0.1 ) ", fs.recipes.fedadam(betas=(0.5, 0.6), tau=0.1)),
        ("fedexp(server_lr_max=none, lr=1)", fs.recipes.fedexp(lr=1)),
        ('fedlin(up={part="TopK", k=5}, lr=0.2)', fs.recipes.fedlin(up=fs.TopK(5), lr=0.2)),
        ('custom(step={part="DeltaSGD", lr0=0.1})', fs.Algorithm(step=fs.DeltaSGD(0.1))),
    ],
)
def test_an_algorithm_in_one_line(text, expected):
    assert algorithm_of(text) == expected


@pytest.mark.parametrize("text", ["fedavgg", "fedavg(lrr=1)", "fedavg(0.1)", "fedavg(lr=0.1", ""])
def test_a_line_that_is_no_algorithm_is_refused(text):
    with pytest.raises(InvalidInput):
        algorithm_of(text)


def test_commas_in_brackets_do_not_split():
    assert split("a(b=1, c=[2, 3]), d,, {e=4, f=5} ") == ["a(b=1, c=[2, 3])", "d", "{e=4, f=5}"]


def test_errors_about_a_file_of_somebody_else_have_no_control_characters(tmp_path):
    (tmp_path / "c.toml").write_text('"\\u001b[31m" = 1\n')
    done = CliRunner().invoke(app, ["run", "--config", str(tmp_path / "c.toml")])
    assert done.exit_code == 2 and "\\x1b[31m is not a setting" in done.stderr and "\x1b[31m is" not in done.stderr
