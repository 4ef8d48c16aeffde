"""The local engine: results do not depend on threads, and errors name the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.engine import engine
from tests.problems import STEPS, Classifier, classification, classifier, learn, same_bits, seeded
from tests.tiers import slow

MIDDLES = {
    "tanh": nn.Tanh,
    "dropout": nn.Dropout,
    "batch norm": lambda: nn.BatchNorm1d(3),
    "both": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
}
# With the other oracles bits depend on the size of chunks: see test_oracles_in_training.py.
LOCAL = [fs.engine.Local(workers=w, oracle="loop", chunk=c) for w, c in ((1, 1), (3, 1), (2, 3))]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls", slow("fedlin"), slow("moon")])
@pytest.mark.parametrize("buffers", ["average", "local", slow("frozen")])
@pytest.mark.parametrize("middle", MIDDLES)
def test_results_do_not_depend_on_workers_or_chunks_for_any_model(middle, buffers, algorithm):
    options = {"local_steps": STEPS, "batch_size": 2, "rounds": 2, "buffers": buffers}
    if buffers != "local":
        options["test"] = classification((7,))[0]
    sizes = (6, 8, 4, 10)  # no batch of one sample, which BatchNorm cannot take
    runs = [
        learn(algorithm, model=classifier(middle=MIDDLES[middle]), clients=classification(sizes), engine=e, **options)
        for e in LOCAL
    ]
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


def test_results_do_not_depend_on_torch_threads_which_are_restored():
    def wide():
        return seeded(lambda: nn.Linear(40_000, 1), torch.float32)  # torch splits sums of this length over threads

    source = torch.Generator().manual_seed(0)
    clients = [(torch.randn(3, 40_000, generator=source), torch.randn(3, 1, generator=source)) for _ in range(2)]
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            algorithm = fs.Algorithm(fs.Constant(1e-6), fs.FedExP(eps=0.0, exact=True))  # its step comes from long sums
            runs.append(fs.train(wide(), "mse", clients, algorithm, rounds=8))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert same_bits(*runs)


class Touchy(Classifier):
    """A model that fails on large inputs."""

    def forward(self, inputs):
        if inputs.max() > 100:
            raise ArithmeticError("too large")
        return super().forward(inputs)


def test_an_error_in_the_users_model_keeps_its_type_and_names_the_client():
    clients = classification()
    clients[2][0][-1] = 1000
    with pytest.raises(ArithmeticError, match="too large") as caught:
        learn(model=seeded(Touchy), clients=clients)
    assert any("round 1" in note and "[2]" in note for note in caught.value.__notes__)


def test_evaluation_does_not_depend_on_its_chunks(monkeypatch):
    test = classification((10,), seed=7)[0]
    whole = learn(test=test).history
    monkeypatch.setattr("fedstride.engine.evaluation.EVALUATION_CHUNK", 3)
    parts = learn(test=test).history
    assert parts["test_accuracy"] == whole["test_accuracy"]
    assert parts["test_loss"] == pytest.approx(whole["test_loss"], rel=1e-12)


def test_evaluation_keeps_a_loss_that_is_a_sum(monkeypatch):
    monkeypatch.setattr("fedstride.engine.evaluation.EVALUATION_CHUNK", 3)
    test = classification((10,), seed=7)[0]
    run = learn(loss=nn.CrossEntropyLoss(reduction="sum"), test=test)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(run.model(test[0]), test[1], reduction="sum")
    assert run.history[-1]["test_loss"] == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("bad", [{"workers": 0}, {"workers": 1.5}, {"chunk": 0}, {"chunk": True}, {"workers": -1}])
def test_invalid_numbers_are_refused(bad):
    with pytest.raises(fs.InvalidInput, match=next(iter(bad))):
        fs.engine.Local(**bad)


def test_engines_by_name():
    assert engine("auto") == engine("local") == fs.engine.Local()


@pytest.mark.slow
def test_a_script_that_trains_exits_with_code_zero():
    """Worker threads must not outlive the interpreter: its exit code is what make and CI see."""
    script = """if True:
        import os, sys, torch, fedstride as fs
        train, engine = fs.train, fs.engine.Local(workers=3)
        for _ in range(4):
            if child := os.fork():
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
                continue
            data = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(6)]
            train(torch.nn.Linear(5, 3), 'cross_entropy', data, rounds=2, engine=engine)
            sys.exit(0)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["0"] * 4, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the processor time of each thread")
def test_rounds_do_not_wake_the_threads_of_torch():
    """After an operation on several threads, these spin for milliseconds, on the cores that the workers need."""
    script = """if True:
        import os, time, torch, fedstride as fs
        from pathlib import Path
        torch.set_num_threads(2)
        torch.ones(10**6).sum()
        used = []

        def spent():
            tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

        def note(event):
            before = None
            while event.round == 1 and before != spent():  # until all sleep, however busy the machine is
                before = spent()
                time.sleep(0.3)
            used.append(spent())

        data = [(torch.randn(20, 100), torch.randn(20, 500)) for _ in range(4)]
        engine = fs.engine.Local(workers=1)
        fs.train(torch.nn.Linear(100, 500), "mse", data, rounds=4, batch_size=10, engine=engine, callbacks=[note])
        print(used[-1] - used[1])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["0"], (done.stdout, done.stderr)


def test_an_error_of_a_loaded_client_names_the_client():
    data = classification()

    def load(i):
        if i == 2:  # which is not tried out, because it is not the largest
            raise OSError("the disk is gone")
        return data[i]

    clients = fs.data.Lazy([len(inputs) for inputs, _ in data], load)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        learn("fedavg", clients=clients, engine=fs.engine.Local(oracle="loop"), rounds=1)
    assert any("in round 1, while training client(s) [2]" in note for note in caught.value.__notes__)
