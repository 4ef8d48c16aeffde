"""The numerical tests as other processors would compute them: python -m tests.processors [--short] [NAME=VALUE ...].

torch, oneDNN and MKL choose their kernels by the instructions of the processor, and kernels round differently. Limiting
these instructions, or changing the number of threads, is as near to another processor as one machine comes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

SETTINGS = (
    "ATEN_CPU_CAPABILITY=default",  # torch's own kernels without vectors, which also draw other float32 normals
    "ATEN_CPU_CAPABILITY=avx2",
    "ONEDNN_MAX_CPU_ISA=AVX2",  # convolutions
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "MKL_ENABLE_INSTRUCTIONS=AVX2",  # matrix products
    "OMP_NUM_THREADS=1",
    "OMP_NUM_THREADS=2",
)
TESTS = (
    "tests/research/bench/test_parity.py::test_two_recipes_have_the_same_bits_under_torchrun",
    "tests/research/bench/test_speed.py::test_by_hand_and_fedstride_train_the_same_model",
    "tests/client",
    "tests/crash",
    "tests/data/test_federation.py",
    "tests/app/diagnose/test_runs.py",
    "tests/engine/test_flower.py",
    "tests/engine/test_flower_secure.py",
    "tests/engine/test_local.py",
    "tests/engine/test_oracles_in_training.py",
    "tests/engine/test_store.py::test_a_run_is_the_same_in_ram_and_in_a_file",
    "tests/engine/test_torchrun.py::test_every_algorithm_matches_the_local_engine_bitwise_in_all_processes",
    "tests/models",
    "tests/oracle",
    "tests/research/papers",
    "tests/server",
    "tests/research/verify",
    "tests/wire",
    "tests/test_against_twins.py",
    "tests/training/test_checkpoint.py",
    "tests/test_conformance.py",
    "tests/test_contributing.py",
    "tests/test_docs.py",
    "tests/engine/test_faults.py",
    "tests/training/test_guard.py",
    "tests/training/test_history.py",
    "tests/core/test_losses.py",
    "tests/core/test_model.py",
    "tests/test_optim.py",
    "tests/algorithm/test_privacy.py",
    "tests/training/test_readout.py",
    "tests/algorithm/test_recipes.py",
    "tests/core/test_rows.py",
    "tests/training/test_train.py",
    "tests/client/test_exchange.py",
)
# On an Intel Xeon with AVX-512 these two changed bits of float64 runs; those of oneDNN changed convolutions only, the rest none.
# They concern different libraries, so one run can have both.
SHORT_SETTINGS = ("ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=AVX2",)
SHORT_TESTS = (
    *("-m", "not slow"),
    "tests/client",
    "tests/engine/test_oracles_in_training.py",
    "tests/oracle",
    "tests/server",
    "tests/test_conformance.py",
    "tests/test_optim.py",
    "tests/core/test_rows.py",
    "tests/training/test_train.py",
)


def passes(setting: str, tests: tuple[str, ...]) -> bool:
    """Run the tests under one setting, or under several that are separated by spaces."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(one.split("=") for one in setting.split())}
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", "-n", "2", *tests], env=environment)
    said = "passed" if done.returncode == 0 else "FAILED"
    print(f"{setting}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="instead of all settings")
    parser.add_argument("--short", action="store_true", help="fewer tests, under two settings at once")
    asked = parser.parse_args()
    settings = asked.settings or (SHORT_SETTINGS if asked.short else SETTINGS)
    failed = [s for s in settings if not passes(s, SHORT_TESTS if asked.short else TESTS)]
    print(f"failed under: {', '.join(failed)}" if failed else f"passed under all {len(settings)} settings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
