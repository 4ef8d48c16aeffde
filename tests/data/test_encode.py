"""Features made of text columns and of columns with missing values, and the split of every client."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import fedstride as fs


def visits(n: int = 120) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "visit": np.arange(n) + 1000,
            "who": [f"patient {i}" for i in range(n)],
            "age": [float(i % 50) for i in range(n)],
            "sex": ["F", "M"] * (n // 2),
            "when": pd.date_range("2024-01-01", periods=n),
            "ill": ["yes", "no", "no"] * (n // 3),
            "ward": ["A", "B", "C", "D"] * (n // 4),
        }
    )


def encoded(frame, **options):
    return fs.data.from_frame(frame, "ill", "ward", encode=True, **options)


def test_text_becomes_one_input_per_value_and_useless_columns_are_named():
    with pytest.warns(
        fs.FedstrideWarning, match=r"visit \(row numbers\); who \(text with 96 .*when \(dates and times\)"
    ):
        table = encoded(visits())
    assert table.columns == ("age", "sex=F", "sex=M")
    assert bool((table.train[0][:, 1:].sum(1) == 1).all())


def test_missing_numbers_become_the_median_of_the_training_rows_and_are_marked():
    frame = visits()[["age", "ill", "ward"]]
    frame.loc[::10, "age"] = np.nan
    table = encoded(frame)
    assert table.columns == ("age", "age missing")
    rows, empty = table.train[0], table.train[0][:, 1] == 1
    known = rows[~empty, 0]
    assert 0 < int(empty.sum()) < len(rows)
    assert set(rows[empty, 0].tolist()) == {float(np.median(known.numpy()))}


def test_missing_text_is_no_value_and_is_marked():
    frame = visits()[["sex", "ill", "ward"]].astype(object)
    frame.loc[::10, "sex"] = None
    table = encoded(frame)
    assert table.columns == ("sex=F", "sex=M", "sex missing")
    assert bool((table.train[0].sum(1) == 1).all())


def test_values_that_only_the_test_rows_have_are_no_input():
    held = visits()[["age", "sex", "ill"]].assign(sex="X")
    table = encoded(visits()[["age", "sex", "ill", "ward"]], test=held)
    assert table.columns == ("age", "sex=F", "sex=M") and not bool(table.test[0][:, 1:].any())


def test_rows_without_label_or_client_are_left_out():
    frame = visits()[["age", "ill", "ward"]].astype({"ill": object, "ward": object})
    frame.loc[:2, "ill"], frame.loc[5, "ward"] = None, None
    with pytest.warns(fs.FedstrideWarning) as said:
        table = encoded(frame)
    assert len(table.train[1]) + len(table.test[1]) == 116
    assert [str(w.message) for w in said] == [
        "frame: 3 of 120 rows have no ill and are left out.",
        "frame: 1 of 117 rows have no ward and are left out.",
    ]


@pytest.mark.filterwarnings("ignore::fedstride.FedstrideWarning")
def test_a_table_without_usable_columns_is_refused():
    with pytest.raises(fs.InvalidInput, match="no column is usable"):
        encoded(visits()[["who", "ill", "ward"]])
    with pytest.raises(fs.InvalidInput, match="column 'ill' is empty"):
        encoded(visits()[["age", "ill", "ward"]].assign(ill=np.nan))


@pytest.mark.parametrize("sizes", [[40, 20, 5, 2, 1], [3] * 100])
def test_every_client_is_split_and_keeps_training_rows(sizes):
    wards = [f"w{i:03}" for i, n in enumerate(sizes) for _ in range(n)]
    frame = pd.DataFrame({"age": np.arange(len(wards)) / 7, "ill": np.arange(len(wards)) % 2, "ward": wards})
    table = fs.data.from_frame(frame, "ill", "ward")
    kept = torch.bincount(table.groups, minlength=len(sizes)).tolist()
    assert len(table.client_names) == len(sizes) and min(kept) >= 1
    assert all(abs((n - k) - n / 5) <= 1 for n, k in zip(sizes, kept, strict=True))
    again, other = (fs.data.from_frame(frame, "ill", "ward", seed=seed) for seed in (0, 1))
    assert torch.equal(again.test[0], table.test[0]) and not torch.equal(other.test[0], table.test[0])


def test_a_class_with_one_sample_stays_in_the_training_set():
    for seed in range(10):
        frame = pd.DataFrame({"age": np.arange(10.0), "ill": ["yes", "no"] * 4 + ["maybe", "perhaps"]})
        assert fs.data.from_frame(frame, "ill", seed=seed, test=0.5).classes == 4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["a", "b"] * 30, 2),
        ([0, 1, 1] * 20, 2),
        (list(range(1, 31)) * 2, 30),  # counts from 1: codes
        (list(range(18, 78)), None),  # ages
        ([0.5, 1.0, 2.0] * 20, None),
        ([True, False] * 30, 2),
    ],
)
def test_labels_decide_between_classes_and_regression(labels, classes):
    frame = pd.DataFrame({"x": np.arange(60.0), "y": labels})
    assert fs.data.from_frame(frame, "y", regression=None).classes == classes
