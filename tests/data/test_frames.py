"""Tables made of pandas frames: names, the same tables as those of CSV files, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedstride as fs


def patients(n: int = 60) -> pd.DataFrame:
    source = np.random.default_rng(0)
    age, pressure = source.normal(50, 10, n).round(2), source.normal(120, 15, n).round(2)
    sick = np.where(age + pressure > 170, "ill", "well")
    return pd.DataFrame(
        {"age": age, "pressure": pressure, "diagnosis": sick, "hospital": ["north", "south", "east"] * (n // 3)}
    )


def test_names_travel_from_the_frame_to_the_run(tmp_path):
    table = fs.data.from_frame(patients(), label="diagnosis", client="hospital")
    clients = fs.data.federate(table)
    run = fs.train(nn.Linear(2, 2), "cross_entropy", clients, rounds=2, test=table.test, normalise=True)
    assert (table.columns, table.class_names, table.classes) == (("age", "pressure"), ("ill", "well"), 2)
    assert table.client_names == clients.names == ("east", "north", "south")
    assert clients.classes == ("ill", "well") and clients.columns == table.columns
    assert run.facts["names"] == ["east", "north", "south"] and run.facts["classes"] == ["ill", "well"]


def test_a_frame_and_its_csv_file_give_the_same_table(tmp_path):
    frame, path = patients(), tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    mine = fs.data.from_frame(frame, "diagnosis", "hospital", seed=3, test=0.25)
    file = fs.data.load(path, label="diagnosis", client="hospital", seed=3, test=0.25)
    for a, b in zip((*mine.train, *mine.test, mine.groups), (*file.train, *file.test, file.groups), strict=True):
        assert torch.equal(a, b)
    assert (mine.columns, mine.class_names, mine.client_names) == (file.columns, file.class_names, file.client_names)


def test_another_frame_may_be_the_test_set_and_columns_can_be_chosen():
    frame = patients()
    table = fs.data.from_frame(frame[:45], "diagnosis", test=frame[45:], features=["pressure"])
    assert (len(table.train[1]), len(table.test[1]), table.columns, table.groups) == (45, 15, ("pressure",), None)


@pytest.mark.parametrize("labels", [[3, 7], [False, True], pd.array([3, 7], dtype="Int64"), pd.Categorical(["a", "b"])])
def test_labels_of_any_kind_become_class_numbers(labels):
    frame = pd.DataFrame({"x": np.arange(20.0), "label": pd.Series(labels).repeat(10).to_numpy()})
    frame["label"] = pd.Series(labels).repeat(10).reset_index(drop=True)
    table = fs.data.from_frame(frame)
    assert table.class_names == tuple(map(str, labels)) and set(table.train[1].tolist()) == {0, 1}


def test_regression_keeps_numbers():
    table = fs.data.from_frame(patients().drop(columns=["diagnosis", "hospital"]), label="pressure", regression=True)
    assert table.classes is None and table.train[1].dtype == torch.float32 and table.class_names == ()


def holes() -> pd.DataFrame:
    frame = patients()
    frame.loc[3:5, "age"] = np.nan
    return frame


BAD = {
    "no frame": ([[1, 2]], {}, "frame: got list; expected a pandas DataFrame"),
    "no such label": (patients(), {"label": "diagnose"}, "label='diagnose' is not a column; did you mean 'diagnosis'"),
    "no such client": (
        patients(),
        {"label": "diagnosis", "client": "ward"},
        "client='ward' is not a column; expected one of",
    ),
    "text": (
        patients(),
        {"label": "diagnosis"},
        "column 'hospital' contains 'north'; expected numbers. Use encode=True",
    ),
    "missing values": (
        holes(),
        {"label": "diagnosis", "client": "hospital"},
        r"column 'age' is empty in row 3, and in 2 more; .*dropna\(\)",
    ),
    "no rows": (patients()[:0], {"label": "diagnosis"}, "there are no rows"),
    "a column twice": (pd.concat([patients(), patients()], axis=1), {"label": "diagnosis"}, "two columns 'age'"),
    "test": (
        patients(),
        {"label": "diagnosis", "client": "hospital", "test": 2},
        "test=2; expected another frame, or a share",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case):
    frame, options, message = BAD[case]
    with pytest.raises(fs.InvalidInput, match=message):
        fs.data.from_frame(frame, **options)


def test_a_frame_or_a_table_as_clients_is_told_what_to_use():
    with pytest.raises(fs.InvalidInput, match=r"fs\.data\.from_frame"):
        fs.train(nn.Linear(2, 2), "cross_entropy", patients(), rounds=1)
    with pytest.raises(fs.InvalidInput, match=r"fs\.data\.federate"):
        fs.train(nn.Linear(2, 2), "cross_entropy", fs.data.load("digits"), rounds=1)


def test_clients_that_are_not_natural_ones_have_no_names():
    table = fs.data.from_frame(patients(), "diagnosis", "hospital")
    assert fs.data.federate(table, fs.data.partition.iid(table.train[1], 4, seed=0)).names == ()
    assert fs.data.federate(table, fs.data.partition.natural(table.groups, 2, seed=0)).names != ()
    with pytest.raises(fs.InvalidInput, match="no groups"):
        fs.data.federate(fs.data.from_frame(patients().drop(columns="hospital"), "diagnosis"))


def test_errors_name_a_client_that_has_a_name():
    bad = {"north": (torch.ones(3, 2), torch.ones(3)), "south": (torch.full((3, 2), torch.nan), torch.ones(3))}
    with pytest.raises(fs.InvalidInput, match=r"clients\['south'\]: inputs contain NaN"):
        fs.data.Federation(bad)


def test_tables_and_federations_describe_themselves():
    table = fs.data.from_frame(patients(), "diagnosis", "hospital", name="patients")
    assert repr(table).splitlines() == [
        "Table 'patients': 48 training and 12 test samples",
        "  inputs   [2] float32 (age, pressure)",
        "  classes  2 (ill, well)",
        "  clients  3 (east, north, south)",
    ]
    lines = repr(fs.data.federate(table)).splitlines()
    assert lines[0] == "Federation of 3 clients: east, north, south"
    assert lines[2:] == ["  sample   inputs [2] float32, targets [] int64", "  classes  2 (ill, well)"]
    assert lines[1] == "  samples  16 each, in total 48"  # a fifth of every client is held out
    many = fs.data.Lazy([20] * 1000, lambda i: 1 / 0)
    assert repr(many).splitlines()[1:] == ["  samples  20 each, in total 20,000", "  clients are loaded on demand"]
