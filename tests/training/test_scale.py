"""A million clients: a round takes memory, time and disk for its cohort only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ALL, COHORT, PARAMETERS, TOUCHED = 1_000_000, 10_000, 10_000, 100
PROGRAM = f"""
import json, sys, torch, fedstride as fs
from pathlib import Path
loaded = []
def clients(features):
    def load(i):
        loaded.append(i)
        return torch.full((2, features), i / {ALL}), torch.tensor([i % 10, 3])
    return fs.data.Lazy([2] * {ALL}, load)
def train(features, algorithm, **options):
    loaded.clear()
    fs.train(torch.nn.Linear(features, 10, bias=False), "cross_entropy", clients(features), algorithm, rounds=2, **options)
    return len(loaded)
wide = train(8, "fedavg", cohort={COHORT})
kept = train({PARAMETERS // 10}, "scaffold", cohort={TOUCHED}, checkpoint=sys.argv[1])
lines = Path("/proc/self/status").read_text().splitlines()  # getrusage() counts the memory of the parent before exec
peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps([wide, kept, peak]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_million_clients(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=True)
    wide, kept, peak = json.loads(done.stdout)
    some = 20  # loaded for checks before the first round
    assert 2 * COHORT <= wide <= 2 * COHORT + some
    assert 2 * TOUCHED <= kept <= 2 * TOUCHED + some
    assert peak < 2 * 2**30
    sizes = {path.relative_to(tmp_path): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    memory = sizes.pop(Path("clients/memory.bin"))
    assert 4 * PARAMETERS * TOUCHED < memory <= 2 * TOUCHED * (4 * PARAMETERS + 4096)
    assert sum(sizes.values()) < 2**20
