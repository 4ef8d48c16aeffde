"""Stores: memory is kept once it is committed, in RAM and in a file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.engine.store import FileStore, Store, store
from tests.problems import classifier, learn, same_bits

X = torch.full((2,), 7.0)  # the model of the round


def control(x):
    return {"control": torch.zeros_like(x)}


@pytest.fixture(params=["RAM", "file", "temporary file"])
def make(request, tmp_path):
    """Return a function that creates empty stores of one kind from a client's initial memory, in the same file."""
    made = []

    def new(fresh=control):
        folder = tmp_path / "clients" if request.param == "file" else None
        made.append(
            Store(fresh, fresh(X), 20) if request.param == "RAM" else FileStore(fresh, fresh(X), 20, folder, "memory")
        )
        return made[-1]

    yield new
    for s in made:
        s.close()


def normalised():
    return classifier(middle=lambda: nn.BatchNorm1d(3))


def row(*values):
    return {"control": torch.tensor([[float(v), float(v)] for v in values])}


def keep(s, clients, rows):
    s.stage(clients, rows)
    s.commit()


def test_a_new_client_starts_from_the_model_of_the_round(make):
    s = make(lambda x: {"previous": x})
    keep(s, [5], {"previous": torch.ones(1, 2)})
    assert torch.equal(s.rows([5, 7], X)["previous"], torch.tensor([[1.0, 1], [7, 7]]))
    assert torch.equal(s.rows([7], 2 * X)["previous"], torch.tensor([[14.0, 14]]))


def test_staged_changes_can_be_read_and_discarded(make):
    s = make()
    s.stage([1, 2], row(10, 20))
    assert torch.equal(s.rows([1, 3], X)["control"], row(10, 0)["control"])
    s.discard()
    assert torch.equal(s.rows([1, 2], X)["control"], row(0, 0)["control"])
    keep(s, [1, 2], row(10, 20))
    s.discard()
    assert torch.equal(s.rows([2, 0, 1], X)["control"], row(20, 0, 10)["control"])
    s.stage([1], row(11))
    s.stage([1], row(12))
    assert torch.equal(s.rows([1], X)["control"], row(12)["control"])
    s.discard()
    assert torch.equal(s.rows([1], X)["control"], row(10)["control"])
    keep(s, [1], row(13))
    assert torch.equal(s.rows([1, 2], X)["control"], row(13, 20)["control"])


def test_memory_is_copied_in_and_out(make):
    s, given = make(), row(10)
    s.stage([1], given)
    given["control"].zero_()
    s.commit()
    s.rows([1], X)["control"].zero_()
    assert torch.equal(s.rows([1], X)["control"], row(10)["control"])


def test_a_client_that_remembers_nothing_is_forgotten(make):
    s = make()
    keep(s, [1, 2], row(10, 20))
    s.stage([1], row(11))
    keep(s, [1], {})
    assert torch.equal(s.rows([1, 2], X)["control"], row(0, 20)["control"])
    keep(s, [2], {})
    assert all(bool((v <= 0).all()) for v in s.state().values())  # no slot, no checksum, nothing held


def test_names_without_an_initial_value_last_for_one_round(make):
    s = make()
    keep(s, [1], row(1))
    s.stage([1, 2], {**row(10, 20), "anchor": torch.ones(2, 2), "anchor_loss": torch.ones(2, 1)})
    found = s.rows([2, 1], X)
    assert {name: tuple(v.shape) for name, v in found.items()} == {
        "control": (2, 2),
        "anchor": (2, 2),
        "anchor_loss": (2, 1),
    }
    s.commit()
    assert list(s.rows([1, 3], X)) == ["control"]
    assert torch.equal(s.rows([1, 2, 3], X)["control"], row(10, 20, 0)["control"])


def test_state_and_restore_are_inverse(make):
    s, other = make(), make()
    keep(s, [3, 11], {**row(1, 2), "anchor": torch.ones(2, 1)})
    if getattr(s, "temporary", None):
        other.file.path = s.file.path  # which ends with the run, and is not meant to be found again
    other.restore(s.state(), lambda v: v.clone())
    assert torch.equal(other.rows([0, 3, 11], X)["control"], row(0, 1, 2)["control"])


@pytest.mark.parametrize(
    "state",
    [
        {"20/control": torch.zeros(2)},
        {"-1/control": torch.zeros(2)},
        {"1/other": torch.zeros(2)},
        {"1/control": torch.zeros(3)},
        {"1/control": torch.zeros(2, dtype=torch.float64)},
        {"control": torch.zeros(2)},
        {"clients": torch.tensor([1]), "other": torch.zeros(1, 2)},
        {"clients": torch.tensor([20]), **row(1)},
        {"clients": torch.tensor([-1]), **row(1)},
        {"clients": torch.tensor([1.0]), **row(1)},
        {"clients": torch.tensor([1, 1]), **row(1, 1)},
        {"clients": torch.tensor([1, 2]), **row(1)},
        {"clients": torch.tensor([1]), "control": torch.tensor(1.0)},
        {"clients": torch.tensor(1), "control": torch.tensor(1.0)},
        {"clients": torch.tensor([[1]]), **row(1)},
        {"clients": torch.tensor([1])},
    ],
)
def test_a_state_of_other_clients_is_refused(make, state):
    with pytest.raises(Corrupt, match="checkpoint: "):
        make().restore(state, lambda v: v)


def test_checkpoints_in_ram_have_few_names_and_older_ones_name_each_client():
    s, other = Store(control, control(X), 20), Store(control, control(X), 20)
    keep(s, [11, 3], row(1, 2))
    assert {name: v.tolist() for name, v in s.state().items()} == {"clients": [3, 11], "control": [[2, 2], [1, 1]]}
    other.restore({"3/control": row(2)["control"][0], "11/control": row(1)["control"][0]}, lambda v: v)
    assert torch.equal(other.rows([3, 4, 11], X)["control"], row(2, 0, 1)["control"])


def test_restoring_replaces_all_memory(make):
    s = make()
    empty = s.state()
    keep(s, [0], row(9))
    s.stage([1], row(8))
    s.restore(empty, lambda v: v)
    s.commit()
    assert torch.equal(s.rows([0, 1], X)["control"], row(0, 0)["control"])


def test_a_store_without_memory_needs_no_space(make):
    s = make(lambda x: {})
    keep(s, [1], {"anchor": torch.ones(1, 2)})
    keep(s, [1], {})
    assert s.rows([1, 2], X) == {}


@pytest.mark.parametrize(("clients", "kind"), [(10, Store), (11, FileStore)])
def test_a_file_is_used_above_the_ram_limit(clients, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("fedstride.engine.store.LIMIT", 160)
    fresh = lambda x: {"control": x, "mean": x[:1].double()}  # noqa: E731  (16 bytes)
    assert type(store(fresh, X, clients, tmp_path, "memory")) is kind
    assert type(store(lambda x: {}, X, clients, tmp_path, "memory")) is Store
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "algorithm", ["scaffold", "feddyn", "moon", "fedlin", fs.recipes.fedlin(up=fs.TopK(5)), fs.recipes.fedavg()]
)
def test_a_run_is_the_same_in_ram_and_in_a_file(algorithm, tmp_path, monkeypatch):
    def go(rounds=4, **options):
        return learn(algorithm, model=normalised(), buffers="local", cohort=2, rounds=rounds, **options)

    want = go()
    monkeypatch.setattr("fedstride.engine.store.LIMIT", 0)
    assert same_bits(go(), want)
    go(rounds=2, checkpoint=tmp_path)
    assert (tmp_path / "clients" / "statistics.bin").is_file()
    assert same_bits(go(checkpoint=tmp_path), want)


MIXED = {
    "model": torch.randn(5),
    "steps": torch.tensor([3]),
    "half": torch.randn(3).bfloat16(),
    "matrix": torch.randn(3, 2, dtype=torch.float64),
    "scalar": torch.tensor(2.5),
    "mask": torch.tensor([True, False, True]),
}


def test_tensors_of_every_kind_come_back_from_a_file(tmp_path):
    s = FileStore(lambda x: MIXED, MIXED, 3, tmp_path, "memory")
    rows = {name: torch.stack([v, v, torch.zeros_like(v)]) for name, v in MIXED.items()}
    keep(s, [2, 0, 1], rows)
    found = s.rows([2, 0, 1], X)
    assert all(torch.equal(found[name], v) and found[name].dtype == v.dtype for name, v in rows.items())
    s.close()


def on_disk(tmp_path, name="memory", keep=1):
    return FileStore(control, control(X), 20, tmp_path, name, keep)


def values(s, clients):
    return s.rows(clients, X)["control"][:, 0].tolist()


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path):
    s = on_disk(tmp_path)
    saved = []
    for t in range(1, 9):
        keep(s, [t % 5, 7, 19 - t], row(t, 10 * t, 100 * t))
        if t == 4:
            saved, want = s.state(), values(s, range(20))
    s.stage([3, 7], row(-1, -1))
    killed = on_disk(tmp_path)  # s is never closed
    killed.restore(saved, lambda v: v)
    assert values(killed, range(20)) == want
    keep(killed, [7, 8, 9, 10], row(1, 2, 3, 4))
    again = on_disk(tmp_path)
    again.restore(saved, lambda v: v)
    assert values(again, range(20)) == want


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_every_kept_checkpoint_stays_intact(keep_last, tmp_path):
    s, saved = on_disk(tmp_path, keep=keep_last), []
    for t in range(1, 12):
        keep(s, [t % 5, 7, 19 - t], row(t, 10 * t, 100 * t))
        saved.append((s.state(), values(s, range(20))))
        for state, want in saved[-keep_last:]:
            other = on_disk(tmp_path, keep=keep_last)
            other.restore(state, lambda v: v)
            assert values(other, range(20)) == want
        if t % 3 == 0:  # go on from the one before
            state, _ = saved[-min(2, keep_last)]
            s = on_disk(tmp_path, keep=keep_last)
            s.restore(state, lambda v: v)
            del saved[-min(2, keep_last) + 1 :]
            saved = saved if keep_last > 1 else []
    assert s.end <= 20 + 3 * keep_last


def test_files_and_checkpoints_grow_with_the_clients_that_took_part(tmp_path):
    s = FileStore(control, control(X), 1_000_000, tmp_path, "memory")
    for first in (0, 500_000):
        keep(s, range(first, first + 10), row(*range(10)))
    saved = s.state()
    assert s.file.path.stat().st_size == 20 * s.file.stride
    assert sum(v.nbytes for v in saved.values()) == 20 * (8 + 4 + 8)
    again = FileStore(control, control(X), 1_000_000, tmp_path, "memory")
    again.restore(saved, lambda v: v)
    assert values(again, [9, 10, 500_001, 999_999]) == [9.0, 0.0, 1.0, 0.0]


def test_older_checkpoints_that_list_all_clients_are_read(tmp_path):
    s = on_disk(tmp_path)
    keep(s, [3, 1], row(3, 1))
    saved = s.state()
    del saved["clients"]
    saved |= {s.file.kind: s.slots.clone(), "sums": s.sums.clone()}
    keep(s, [1, 5], row(7, 7))
    s.restore(saved, lambda v: v)
    assert values(s, range(6)) == [0.0, 1.0, 0.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("clients", [[3, 1], [1, 1], [-1, 1], [1, 20], [1], [[1, 3]]])
def test_slots_of_other_clients_are_refused(clients, tmp_path):
    s = on_disk(tmp_path)
    keep(s, [3, 1], row(3, 1))
    saved = s.state() | {"clients": torch.tensor(clients)}
    with pytest.raises(Corrupt, match="are not those of 20 clients"):
        s.restore(saved, lambda v: v)


def test_a_damaged_slot_is_detected(tmp_path):
    s = on_disk(tmp_path)
    keep(s, [1, 2], row(1, 2))
    saved = s.state()
    with s.file.path.open("r+b") as file:
        file.seek(s.file.stride + 1)
        file.write(b"x")
    with pytest.raises(Corrupt, match=r"memory\.bin: the memory of client 2 is damaged"):
        on_disk(tmp_path).restore(saved, lambda v: v)


@pytest.mark.parametrize(("checkpoints", "slots"), [(True, 2), (False, 11)])
def test_slots_are_reused_once_no_checkpoint_needs_them(checkpoints, slots, tmp_path):
    s = on_disk(tmp_path)
    for t in range(11):
        keep(s, [4], row(t))
        if checkpoints:
            s.state()
    assert s.end == slots
    assert s.file.path.stat().st_size == slots * s.file.stride


def test_without_checkpoints_a_slot_is_free_at_once(tmp_path):
    s = FileStore(control, control(X), 20, None, "memory")
    for t in range(11):
        s.stage([4], row(-t))
        keep(s, [4], row(t))
    assert (s.end, values(s, [4])) == (2, [10.0])
    folder = s.file.path.parent
    s.close()
    assert not folder.exists()


def test_opening_a_store_changes_no_file(tmp_path):
    first = on_disk(tmp_path)
    keep(first, [1], row(1))
    saved, before = first.state(), first.file.path.read_bytes()
    second = on_disk(tmp_path)
    second.rows([1, 2], X)
    second.close()
    second.restore(saved, lambda v: v)
    assert values(second, [1]) == [1.0]
    assert second.file.path.read_bytes() == before


def test_two_stores_share_a_folder(tmp_path):
    memory, statistics = on_disk(tmp_path), on_disk(tmp_path, "statistics")
    keep(memory, [1], row(1))
    keep(statistics, [1], row(2))
    assert (values(memory, [1]), values(statistics, [1])) == ([1.0], [2.0])


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"short")])
def test_a_checkpoint_whose_file_is_missing_or_short_is_refused(damage, tmp_path):
    s = on_disk(tmp_path)
    keep(s, [1], row(1))
    saved = s.state()
    s.close()
    damage(s.file.path)
    with pytest.raises(InvalidInput, match=r"checkpoint: .*memory\.bin.* bytes"):
        on_disk(tmp_path).restore(saved, lambda v: v)


def test_a_checkpoint_of_another_layout_is_refused(tmp_path):
    saved = on_disk(tmp_path).state()
    other = FileStore(lambda x: {"control": x.double()}, {"control": X.double()}, 20, tmp_path, "memory")
    with pytest.raises(
        InvalidInput, match=r"checkpoint: .*control:torch.float32:\[2\].*expected.*control:torch.float64"
    ):
        other.restore(saved, lambda v: v)


@pytest.mark.parametrize("rows", [{"control": torch.ones(1, 3)}, {"control": torch.ones(1, 2).double()}])
def test_a_state_that_changes_its_shape_is_refused(rows, tmp_path):
    with pytest.raises(InvalidInput, match="memory: a client returned"):
        on_disk(tmp_path).stage([1], rows)
