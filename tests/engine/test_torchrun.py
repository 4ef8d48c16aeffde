"""Runs on any number of processes match the local engine bitwise, also after a process is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from contextlib import ExitStack

import pytest
import torch
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app.cli import app
from fedstride.engine.torchrun.engine import deal
from tests import kills
from tests.engine import own_models
from tests.engine.many import every_algorithm, here, long
from tests.kills import LAUNCH, torchrun, written
from tests.problems import learn
from tests.ranks import ranks


@pytest.mark.slow
def test_every_algorithm_matches_the_local_engine_bitwise_in_all_processes(tmp_path):
    done = torchrun(3, "-m", "tests.engine.many", tmp_path)
    assert done.returncode == 0, done.stderr
    expected = here(every_algorithm())
    for found in written(tmp_path, 3):
        assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.slow
def test_clients_keep_their_own_models_and_test_sets_in_many_processes(tmp_path):
    done = ranks(2, "tests.engine.own_models", tmp_path)
    assert done.returncode == 0, done.stderr
    leader, follower = written(tmp_path, 2)
    for name in own_models.CASES:
        assert leader[name] == json.loads(json.dumps(own_models.trained(name, fs.engine.Local(chunk=1)))), name
        assert follower[name] == {**leader[name], "own": {}}


@pytest.mark.slow
def test_runs_resume_with_another_number_of_processes(tmp_path):
    for processes, rounds in ((2, 5), (4, 8), (1, 10)):
        done = ranks(processes, "tests.engine.many", tmp_path, "--algorithm=scaffold", f"--rounds={rounds}")
        assert done.returncode == 0, done.stderr
    assert written(tmp_path, 1) == [here(long("scaffold", 10))]
    torch.manual_seed(0)
    local = long("scaffold", 12)["scaffold"].train(tmp_path / "runs" / "scaffold", 1)
    torch.manual_seed(0)
    assert torch.equal(local.x, long("scaffold", 12)["scaffold"].train(None, 1).x)


@pytest.mark.slow
def test_restarted_processes_do_not_change_the_result(tmp_path):
    kills.processes(tmp_path, deaths=2)


@pytest.mark.slow
def test_the_command_line_trains_with_many_processes(tmp_path):
    out, run = tmp_path / "run", ["run", "digits", "--rounds", "3", "--out"]
    done = torchrun(2, "-m", "fedstride", *run, out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round 3/3") == 1
    assert CliRunner().invoke(app, [*run, str(tmp_path / "alone")]).exit_code == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert json.loads((out / "environment.json").read_text())["processes"] == 2
    again = ranks(2, "fedstride", *run, out, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("already finished") == 1


@pytest.mark.slow
def test_an_error_ends_all_processes_and_is_reported_once(tmp_path):
    wrong = ["--set", "training.local_steps=3", "--set", "algorithm.lr=1e9", "--algorithm", "fedavg"]
    done = torchrun(2, "-m", "fedstride", "run", "digits", "--rounds", "3", "--out", tmp_path / "run", *wrong)
    assert done.returncode != 0
    assert done.stderr.count("The run diverged") == 1


def two_machines(stack):
    """Two connected network namespaces: the commands that run a program in each."""

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)

    name = uuid.uuid4().hex[:6]
    spaces, ends = [f"fs{name}a", f"fs{name}b"], [f"v{name}a", f"v{name}b"]
    for space in spaces:
        ip("netns", "add", space)
        stack.callback(ip, "netns", "delete", space)
    ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    for i, (space, end) in enumerate(zip(spaces, ends, strict=True)):
        ip("link", "set", end, "netns", space)
        ip("-n", space, "addr", "add", f"10.77.0.{i + 1}/24", "dev", end)
        for device in (end, "lo"):
            ip("-n", space, "link", "set", device, "up")
    entries = [["ip", "netns", "exec", space] for space in spaces]
    return list(zip(entries, ends, ("10.77.0.1", "10.77.0.2"), strict=True))


def namespaces_allowed():
    """Whether this user may create and connect network namespaces."""
    wire = ["unshare", "--net", "ip", "link", "add", "name", "one", "type", "veth", "peer", "name", "two"]
    return (
        bool(shutil.which("unshare") and shutil.which("ip"))
        and not subprocess.run(wire, capture_output=True).returncode
    )


@pytest.mark.slow
@pytest.mark.skipif(not namespaces_allowed(), reason="needs network namespaces: root, iproute2 and util-linux")
def test_two_machines_match_one_bitwise(tmp_path):
    work = ["-m", "tests.engine.many", str(tmp_path), "--algorithm=scaffold", "--rounds=6"]
    with ExitStack() as stack:
        started = []
        for enter, device, address in two_machines(stack):
            given = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29555"]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
            given.append(f"--rdzv-conf=is_host={address == '10.77.0.1'}")
            command = [*enter, *LAUNCH, *given, f"--local-addr={address}", *work]
            started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
            stack.callback(started[-1].kill)
        for process in started:
            _, said = process.communicate(timeout=200)
            assert process.returncode == 0, said
    assert written(tmp_path, 2) == [here(long("scaffold", 6))] * 2


def test_without_torchrun_there_is_a_clear_error(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        fs.InvalidInput, match=r"engine='torchrun': RANK is not set.*torchrun --nproc-per-node 2 SCRIPT"
    ):
        learn("fedavg", engine="torchrun")


@pytest.mark.parametrize(
    ("costs", "world", "ranks"),
    [
        ([1] * 10, 2, [0] * 5 + [1] * 5),
        ([5, 1, 1, 1, 1, 1], 2, [0, 1, 1, 1, 1, 1]),
        ([1, 1], 4, [1, 3]),
        ([3], 2, [1]),
        ([1, 1, 1], 1, [0, 0, 0]),
        ([], 3, []),
    ],
)
def test_chunks_are_assigned_contiguously_and_balanced_by_cost(costs, world, ranks):
    assert deal(costs, world) == ranks
