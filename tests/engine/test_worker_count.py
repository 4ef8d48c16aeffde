"""The number of workers: tried out in the first rounds, from times that are made up here."""

from __future__ import annotations

import pytest

from fedstride.engine.worker_count import TRIALS, WorkerCount


def drive(pace, seconds, rounds=20, first=0, exchanges=1, steps=10):
    """Rounds that take seconds(workers) per local step; the workers of each."""
    seen = []
    for round in range(first, first + rounds):
        workers = pace.workers
        seen.append(workers)
        for _ in range(exchanges):
            pace.record(round, seconds(pace.workers) * steps, steps)
    return seen


def costs(table):
    return lambda workers: table[workers]


@pytest.mark.parametrize("exchanges", [1, 2])
@pytest.mark.parametrize(
    ("table", "best"),
    [
        ({8: 1.0, 4: 2.0}, 8),
        ({8: 2.0, 4: 1.0, 2: 3.0}, 4),
        ({8: 4.0, 4: 3.0, 2: 2.0, 1: 1.0}, 1),
        ({8: 4.0, 4: 3.0, 2: 2.0, 1: 5.0}, 2),
        ({8: 1.0, 4: 0.98}, 8),  # not worth it
    ],
)
def test_the_fastest_number_stays(table, best, exchanges):
    pace = WorkerCount(8, fixed=False)
    seen = drive(pace, costs(table), exchanges=exchanges)
    assert pace.settled
    assert seen[-1] == pace.workers == pace.about()["workers"] == best
    assert all(seen.count(w) == TRIALS + 1 for w in table if w not in (8, best))  # its trials, and what began with it


def test_halves_of_odd_numbers():
    assert drive(WorkerCount(6, fixed=False), costs({6: 3.0, 3: 2.0, 1: 1.0}))[-1] == 1


@pytest.mark.parametrize(("most", "fixed"), [(8, True), (1, False)])
def test_what_is_fixed_stays(most, fixed):
    pace = WorkerCount(most, fixed)
    assert set(drive(pace, lambda workers: float(workers))) == {most}
    assert pace.settled


def test_the_first_round_does_not_count():
    pace = WorkerCount(2, fixed=False)
    pace.record(0, 1e-6, 1)  # as if it had been fast
    for round in range(1, 20):
        pace.record(round, {2: 2.0, 1: 1.0}[pace.workers], 1)
    assert pace.workers == 1


def test_a_round_that_began_with_the_old_number_does_not_count():
    """The change comes in the middle of a round: neither of its exchanges says anything of either number."""
    pace = WorkerCount(2, fixed=False)
    for round in range(20):
        for _ in range(2):
            pace.record(round, 1e-6 if round == TRIALS + 1 else {2: 1.0, 1: 2.0}[pace.workers], 1)
    assert pace.workers == 2


def test_exchanges_of_a_round_count_together():
    """One exchange is fast and one is slow: only both tell how long a round takes."""
    pace, one, two = WorkerCount(2, fixed=False), (0.1, 1.9), (0.7, 0.7)  # two workers: 1.4 seconds a round, one: 2
    for round in range(20):
        for part in range(2):
            pace.record(round, (two if pace.workers == 2 else one)[part], 10)
    assert pace.workers == 2


def test_the_better_of_the_trials_counts():
    """A round that something else disturbed does not decide."""
    pace = WorkerCount(2, fixed=False)
    for round in range(20):
        disturbed = round == 1
        pace.record(round, 100.0 if disturbed else {2: 1.0, 1: 2.0}[pace.workers], 1)
    assert pace.workers == 2


def test_times_are_per_local_step():
    """Cohorts that do less work are no faster for that."""
    pace = WorkerCount(2, fixed=False)
    for round in range(20):
        steps = 100 if pace.workers == 2 else 10
        pace.record(round, {2: 1.0, 1: 2.0}[pace.workers] * steps, steps)
    assert pace.workers == 2


def test_a_run_that_goes_on_later_has_a_first_round_too():
    pace = WorkerCount(2, fixed=False)
    seen = drive(pace, costs({2: 1.0, 1: 2.0}), first=7)
    assert seen[-1] == 2
    assert 1 in seen
