"""The number of workers, chosen from simulated times of the first rounds."""

from __future__ import annotations

import pytest

from fedstride.engine.worker_count import TRIALS, WorkerCount


def drive(count, seconds, rounds=20, first=0, exchanges=1, steps=10):
    """Simulate rounds that take seconds(workers) per local step; return the workers of each."""
    seen = []
    for round in range(first, first + rounds):
        workers = count.workers
        seen.append(workers)
        for _ in range(exchanges):
            count.record(round, seconds(count.workers) * steps, steps)
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
def test_the_fastest_number_is_kept(table, best, exchanges):
    count = WorkerCount(8, fixed=False)
    seen = drive(count, costs(table), exchanges=exchanges)
    assert count.settled
    assert seen[-1] == count.workers == count.about()["workers"] == best
    assert all(seen.count(w) == TRIALS + 1 for w in table if w not in (8, best))  # its trials, and what began with it


def test_odd_numbers_are_halved():
    assert drive(WorkerCount(6, fixed=False), costs({6: 3.0, 3: 2.0, 1: 1.0}))[-1] == 1


@pytest.mark.parametrize(("most", "fixed"), [(8, True), (1, False)])
def test_a_fixed_number_is_kept(most, fixed):
    count = WorkerCount(most, fixed)
    assert set(drive(count, lambda workers: float(workers))) == {most}
    assert count.settled


def test_the_first_round_is_not_timed():
    count = WorkerCount(2, fixed=False)
    count.record(0, 1e-6, 1)  # as if it had been fast
    for round in range(1, 20):
        count.record(round, {2: 2.0, 1: 1.0}[count.workers], 1)
    assert count.workers == 1


def test_a_round_that_began_with_the_old_number_is_not_timed():
    """The number changes in the middle of a round, so its time belongs to neither number."""
    count = WorkerCount(2, fixed=False)
    for round in range(20):
        for _ in range(2):
            count.record(round, 1e-6 if round == TRIALS + 1 else {2: 1.0, 1: 2.0}[count.workers], 1)
    assert count.workers == 2


def test_exchanges_of_a_round_are_timed_together():
    """One exchange is fast and one is slow; only their sum is the time of a round."""
    count, one, two = WorkerCount(2, fixed=False), (0.1, 1.9), (0.7, 0.7)  # two workers: 1.4 seconds a round, one: 2
    for round in range(20):
        for part in range(2):
            count.record(round, (two if count.workers == 2 else one)[part], 10)
    assert count.workers == 2


def test_the_fastest_trial_counts():
    """A round that was slow for another reason does not decide."""
    count = WorkerCount(2, fixed=False)
    for round in range(20):
        disturbed = round == 1
        count.record(round, 100.0 if disturbed else {2: 1.0, 1: 2.0}[count.workers], 1)
    assert count.workers == 2


def test_times_are_per_local_step():
    """Cohorts with less work do not count as faster."""
    count = WorkerCount(2, fixed=False)
    for round in range(20):
        steps = 100 if count.workers == 2 else 10
        count.record(round, {2: 1.0, 1: 2.0}[count.workers] * steps, steps)
    assert count.workers == 2


def test_the_first_round_of_a_resumed_run_is_not_timed():
    count = WorkerCount(2, fixed=False)
    seen = drive(count, costs({2: 1.0, 1: 2.0}), first=7)
    assert seen[-1] == 2
    assert 1 in seen
