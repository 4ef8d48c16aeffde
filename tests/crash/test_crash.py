"""A few kills; `python -m tests.crash` has more. Then proof that they would tell."""

from __future__ import annotations

import os
import re
from random import Random

import pytest

from fedstride.core import files
from fedstride.engine.store import FileStore
from fedstride.training.resume import Recorder
from tests.crash.child import ANY_TIME, CHECKPOINT, EVENTS, SLOT, Moment
from tests.crash.harness import endure
from tests.crash.scenario import Scenario

pytestmark = pytest.mark.slow

ON_DISK = Scenario("scaffold", on_disk=True, rounds=6, every=2)


def kill(scenario, home, *moments, prepare=None):
    """The moments' numbers are shares of what happens, or of the time that passes, in a run that is left alone."""
    left = iter(moments)

    def choose(rehearsal, to_go):
        kind, share = next(left, (None, 0))
        if kind == ANY_TIME:
            return Moment(kind, share * rehearsal.seconds)
        return kind and Moment(kind, max(1, int(share * to_go * rehearsal.events[kind])))

    return endure(scenario, home, Random(0), choose, prepare)


KILLS = {
    "memory": (Scenario("auto", rounds=6), [(CHECKPOINT, 0.5), (ANY_TIME, 0.3), (ANY_TIME, 0.3)]),
    "disk": (ON_DISK, [(SLOT, 0.6), ("before replace", 0.5), ("after unlink", 0.5)]),
    "statistics": (
        Scenario("fedexp", statistics=True, on_disk=True, rounds=6, every=2, keep=1),
        [("after replace", 0.7), ("before fsync", 0.9)],
    ),
}


@pytest.mark.parametrize("where", KILLS)
def test_a_run_that_was_killed_and_resumed_has_the_bits_of_one_that_was_not(where, tmp_path):
    scenario, moments = KILLS[where]
    trial = kill(scenario, tmp_path, *moments)
    assert trial.failures == []
    assert [k for k, _ in trial.kills if k in EVENTS] == [k for k, _ in moments if k in EVENTS]


def write_in_place():
    files.replace_file = lambda path, content, private=False: path.write_bytes(content)


def reuse_slots_at_once():
    commit = FileStore.commit

    def hasty(store):
        commit(store)
        store.free += store.replaced
        store.replaced = []

    FileStore.commit = hasty


def name_before_flushing():
    def hasty(path, content, private=False):
        new = path.with_name(path.name + files.NEW)
        new.write_bytes(content)
        os.replace(new, path)

    files.replace_file = hasty


def forget_clients():
    FileStore.restore = lambda store, state, place: None


def write_elsewhere():
    save = Recorder.save

    def talkative(recorder, state):
        save(recorder, state)
        recorder.when.path.with_name("log").write_text("saved")

    Recorder.save = talkative


@pytest.mark.parametrize(
    ("mistake", "moment", "found"),
    [
        (write_in_place, (CHECKPOINT, 0.7), "not readable"),
        (reuse_slots_at_once, (SLOT, 0.95), "the memory of client . is damaged"),
        (name_before_flushing, (CHECKPOINT, 1.0), "got its name before"),
        (forget_clients, ("after replace", 0.7), "bits of x differ"),
        (write_elsewhere, (CHECKPOINT, 1.0), "outside of the run's folder"),
    ],
)
def test_mistakes_are_found(mistake, moment, found, tmp_path):
    assert re.search(found, "\n".join(kill(ON_DISK, tmp_path, moment, prepare=mistake).failures))
