"""bfloat16 on processors that announce unsupported instructions; child processes are killed by the real signal."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.engine import processor
from tests.problems import classification, seeded

pytestmark = pytest.mark.slow

# A child for which bfloat16 works only with one of these limits.
CHILD = """
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") not in {works!r}:
    os.kill(os.getpid(), signal.{signal})
"""


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Simulate another processor; works: limits with which bfloat16 works; late: oneDNN was used before."""

    def on(works, late=False, how="SIGILL"):
        child = tmp_path / "child.py"
        child.write_text(CHILD.format(works=works, signal=how))
        monkeypatch.setattr(processor, "__file__", str(child))
        monkeypatch.setattr(processor, "exercise", lambda: os.kill(os.getpid(), signal.SIGILL) if late else None)

    monkeypatch.setenv(processor.LIMIT, "")  # so that it is restored
    monkeypatch.delenv(processor.LIMIT)
    processor.outcome.cache_clear()
    yield on
    processor.outcome.cache_clear()


def train():
    model, clients = seeded(lambda: nn.Linear(4, 3), torch.float32), classification(dtype=torch.float32)
    return fs.train(model, "cross_entropy", clients, "fedavg", rounds=1, precision="bfloat16")


def test_no_limit_is_set_if_bfloat16_works(pretend):
    pretend(works=[None])
    assert processor.bfloat16_limit() is None
    assert processor.LIMIT not in os.environ


@pytest.mark.parametrize("how", ["SIGILL", "SIGSEGV"])
def test_the_highest_working_instruction_set_is_used(pretend, how, caplog):
    pretend(works=["AVX512_CORE", "AVX2"], how=how)
    with caplog.at_level(logging.WARNING, "fedstride"):
        assert processor.bfloat16_limit() == "AVX512_CORE"
    assert os.environ[processor.LIMIT] == "AVX512_CORE"
    assert "kills a process" in caplog.text and "limited to AVX512_CORE" in caplog.text


def test_the_test_of_bfloat16_runs_once(pretend, tmp_path):
    pretend(works=["AVX2"])
    assert processor.bfloat16_limit() == "AVX2"
    (tmp_path / "child.py").unlink()
    assert processor.bfloat16_limit() == "AVX2"


def test_the_error_gives_the_reason_if_no_instruction_set_works(pretend):
    pretend(works=[])
    with pytest.raises(fs.Refused, match=r"bfloat16.*Illegal instruction.*SSE41.*leave precision out"):
        train()


def test_the_error_gives_the_variable_if_onednn_was_used_before(pretend):
    pretend(works=["AVX512_CORE_BF16"], late=True)
    with pytest.raises(fs.Refused, match=r"has used oneDNN already.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python"):
        train()


def test_the_run_records_the_limit(bfloat16, pretend):
    pretend(works=["AVX2"])
    assert train().engine[processor.LIMIT] == "AVX2"
    processor.outcome.cache_clear()
    pretend(works=[None, "AVX2"])
    assert processor.LIMIT not in train().engine


def test_the_trial_uses_bfloat16():
    """A child process that does not compute in bfloat16 would always succeed."""
    code = (
        "import torch; from fedstride.engine import processor\n"
        "with torch.profiler.profile(record_shapes=True) as seen: processor.exercise()\n"
        "print(sorted({e.key for e in seen.key_averages()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode < 0 or "could not create a primitive" in done.stderr:
        pytest.skip("this processor has no bfloat16 kernels for every operation")
    assert done.returncode == 0, done.stderr
    for kernel in ("aten::addmm", "aten::convolution", "aten::bmm", "AddmmBackward0", "ConvolutionBackward0"):
        assert kernel in done.stdout
    assert "aten::_to_copy" in done.stdout
