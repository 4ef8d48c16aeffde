"""A real federation with a node whose uploads never end, and a run that is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

import fedstride as fs
from tests.deployment import Deployment

pytestmark = pytest.mark.slow

DEADLINE = 60  # seconds; the first answer of a node starts a process, which takes long on a busy machine

STUCK = """
import os, sys
if os.environ.get("STUCK") and any("supernode" in part for part in sys.orig_argv):
    import time
    from flwr.supercore.inflatable import inflatable_utils
    push, calls = inflatable_utils.push_object_contents_from_iterable, []

    def stuck(*given, **more):
        calls.append(1)
        if len(calls) > 1:  # after the roll call
            time.sleep(3600)
        return push(*given, **more)

    inflatable_utils.push_object_contents_from_iterable = stuck
"""


class WithStuck(Deployment):
    """Node 2 announces its answers to orders, and never uploads them."""

    def launch_node(self, number: int) -> None:
        self.environment.pop("STUCK", None)
        if number == 2:
            self.environment["STUCK"] = "1"
        super().launch_node(number)


@pytest.fixture(scope="module")
def it(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operators")
    deployment = WithStuck(folder, nodes=3, config='partition-id={0} name="Ward {0}"'.format, heartbeat=60)
    with (folder / "site" / "sitecustomize.py").open("a") as file:
        file.write(STUCK)
    with deployment:
        yield deployment


def test_a_refused_run_prints_no_traceback(it):
    run = it.run(clients=3, rounds=1, algorithm="fedavgg")
    assert "fedavgg" in it.wait(run)
    said = it.log(run)
    assert "InvalidInput" in said and "fedavgg" in said
    assert "Traceback" not in said


def test_the_deadline_holds_while_an_upload_is_stuck(it):
    """Flower itself would wait three more minutes."""
    run = it.run(clients=3, rounds=1, algorithm="fedavg(lr=0.05)", deadline=DEADLINE, out="runs/stuck", batch_size=64)
    assert it.wait(run, 900) == "finished:completed"
    (row,) = fs.load(it.server / "runs" / "stuck").history
    assert row["refused"] == {"late": 1}
    assert row["seconds"] < DEADLINE + 30
    assert "client 2 (Ward 2): late" in it.log(run)
