"""Secure sums with a hostile node: it costs itself, or one node, but never the run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from unittest.mock import patch

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

from fedstride.engine import flower
from fedstride.engine.flower import secure, shares
from tests.engine.grid import Grid
from tests.engine.test_flower import PROJECT, a_grid, folder, load_data, make_model, settings  # noqa: F401 (a fixture)
from tests.tiers import slow

pytestmark = pytest.mark.usefixtures("folder")

HOSTILE = 102
MOD = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # its package has a function of this name
SETUP, SHARE, MASKED, UNMASK = Key.PUBLIC_KEY_1, Key.CIPHERTEXT_LIST, Key.MASKED_PARAMETERS, Key.SHARE_LIST
Change = Callable[[ConfigRecord], None]


def seven() -> Grid:
    """Seven nodes; some have the same data."""
    return Grid(flower.client_app(MANY), {100 + client: {"client": client} for client in range(7)})


MANY = flower.Project(make_model, "cross_entropy", lambda s, node: load_data(s, {"client": node["client"] % 4}))


def hostile(
    stage: str, change: Change | None, grid: Grid | None = None, whole: Callable[[Message], None] | None = None
) -> Grid:
    """Change the replies of one node in one stage: their record of SecAgg+, or the whole message."""
    grid = grid or a_grid()

    def spoil(reply: Message) -> Message:
        record = reply.content.config_records.get(RECORD_KEY_CONFIGS, {}) if reply.has_content() else {}
        if reply.metadata.src_node_id == HOSTILE and stage in record:
            whole(reply) if change is None else change(record)
        return reply

    grid.spoil = spoil
    return grid


def sets(key: str, value) -> Change:
    def change(record):
        record[key] = value(record[key]) if callable(value) else value

    return change


def other_curve(old: bytes) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def masked(change):
    """Change the masked vector."""
    return sets(MASKED, lambda old: [old[0], ndarray_to_bytes(change(bytes_to_ndarray(old[1])))])


def garbage(old: bytes) -> bytes:
    return np.random.default_rng(len(old)).bytes(len(old))


def keeps_padding(old: bytes) -> bytes:
    """A false share of a secret whose padding is right."""
    return old[:4] + garbage(old[4:20]) + old[20:]


def dealing(change) -> Grid:
    """A node that gives out false shares of its own secrets."""
    grid, real, split = a_grid(), flower.client_app(PROJECT), MOD.create_shares

    def app(message, context):
        with patch.object(MOD, "create_shares", lambda *given: list(map(change, split(*given)))):
            return real(message, context)

    grid.apps[HOSTILE] = app
    return grid


def random_vector(v):
    return np.random.default_rng(0).integers(0, 2**32, v.shape)


def junk(reply: Message) -> None:
    reply.content["more"] = ArrayRecord({"junk": Array(torch.zeros(10**6).numpy())})


ATTACKS: dict[str, tuple[Callable[[], Grid], dict[str, int]]] = {
    "keys of random bytes": (lambda: hostile(SETUP, sets(SETUP, garbage)), {"corrupt": 1}),
    "keys of another curve": (lambda: hostile(SETUP, sets(SETUP, other_curve)), {"corrupt": 1}),
    "one key twice": (lambda: hostile(SETUP, lambda r: sets(SETUP, r[Key.PUBLIC_KEY_2])(r)), {"corrupt": 1}),
    "no keys": (lambda: hostile(SETUP, None, whole=lambda reply: reply.content.clear()), {"corrupt": 1}),
    "4 MB beside its keys": (lambda: hostile(SETUP, None, whole=junk), {"corrupt": 1}),
    "unreadable shares for all": (
        lambda: hostile(SHARE, sets(SHARE, lambda v: list(map(garbage, v)))),
        {"false share": 1},
    ),
    "an unreadable share for one": (
        lambda: hostile(SHARE, sets(SHARE, lambda v: [garbage(v[0]), *v[1:]])),
        {"false share": 1},
    ),
    "shares for nobody": (lambda: hostile(SHARE, sets(Key.DESTINATION_LIST, [1, 2, 3])), {"corrupt": 1}),
    "no shares": (lambda: hostile(SHARE, sets(SHARE, [])), {"corrupt": 1}),
    "false shares of its own seed": (lambda: dealing(lambda share: share[:4] + garbage(share[4:])), {"false share": 1}),
    "a vector of another length": (lambda: hostile(MASKED, masked(lambda v: v[1:])), {"corrupt": 1}),
    "a vector of floats": (lambda: hostile(MASKED, masked(lambda v: v.astype(float))), {"corrupt": 1}),
    "a vector that is not an array": (lambda: hostile(MASKED, sets(MASKED, [b"x", b"y"])), {"corrupt": 1}),
    "false shares of others' seeds": (lambda: hostile(UNMASK, sets(UNMASK, lambda v: list(map(garbage, v)))), {}),
    "false shares with valid padding": (
        lambda: hostile(UNMASK, sets(UNMASK, lambda v: list(map(keeps_padding, v)))),
        {},
    ),
    "shares of nobody": (lambda: hostile(UNMASK, sets(Key.NODE_ID_LIST, [1, 2, 3, 4])), {}),
}
FALSE = {
    "a random vector": lambda: hostile(MASKED, masked(random_vector), seven()),
    "a false weight": lambda: hostile(MASKED, sets(MASKED, lambda v: [ndarray_to_bytes(np.array([7])), v[1]]), seven()),
}
FAST = ("unreadable shares for all", "false shares of others' seeds")


def trained(grid: Grid, **more) -> fs.Run:
    given = {"secure": 10, "rounds": 2, "local_steps": 2, "deadline": 30, **more}
    return flower.train(PROJECT, grid, settings(**given))


@pytest.mark.filterwarnings("ignore::fedstride.FedstrideWarning")
@pytest.mark.parametrize("case", [case if case in FAST else slow(case, name=case) for case in ATTACKS])
def test_a_hostile_node_costs_one_node(case):
    grid, refused = ATTACKS[case]
    run = trained(grid())
    assert [row["refused"] for row in run.history] == [refused] * 2
    assert [row["attempts"] for row in run.history] == [1, 1]
    without = a_grid()
    expected = trained(without) if not refused else None
    if expected is not None:  # the vector of the hostile node is in the sum, and its shares are not needed
        torch.testing.assert_close(run.x, expected.x, rtol=0, atol=1e-6)
    assert float(run.x.norm()) < 10


@pytest.mark.slow
def test_the_node_is_named():
    with pytest.warns(fs.FedstrideWarning, match="client 2 sent false shares"):
        trained(ATTACKS["false shares of others' seeds"][0]())


@pytest.mark.slow
@pytest.mark.parametrize("case", FALSE)
def test_a_false_vector_costs_one_group_of_three(case):
    """Three nodes are left out together, because the difference of two sums reveals what they sent."""
    given = settings(secure=10, rounds=2, local_steps=2, deadline=30, clients=7, cohort="none")
    with pytest.warns(fs.FedstrideWarning, match="repeated without client 0, client 1, client 2"):
        run = flower.train(MANY, FALSE[case](), given)
    assert [row["refused"] for row in run.history] == [{"false vector": 3}] * 2
    assert float(run.x.norm()) < 10


@pytest.mark.parametrize(("nodes", "sizes"), [(3, [3]), (5, [5]), (6, [3, 3]), (7, [3, 4]), (11, [3, 4, 4])])
def test_groups_hide_their_members(nodes, sizes):
    found = secure.groups(range(nodes))
    assert [len(group) for group in found] == sizes
    assert [node for group in found for node in group] == list(range(nodes))


@pytest.mark.parametrize(
    ("accusations", "found"),
    [
        ({}, set()),
        ({1: [2]}, {2}),
        ({1: [2], 3: [2]}, {2}),
        ({2: [1, 3, 4]}, {2}),  # who accuses everybody is the liar
        ({2: [1, 3], 1: [2]}, {2}),
        ({1: [2], 3: [4]}, {2, 4}),
    ],
)
def test_the_culprit_is_in_most_accusations(accusations, found):
    assert shares.culprits(accusations) == found
