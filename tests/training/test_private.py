"""Private runs: secret noise and cohorts, files that only their owner reads, and an extrapolation that survives the noise."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest
import torch

import fedstride as fs
from fedstride.app.report import write
from fedstride.training.personal_report import _rounds
from fedstride.wire import Mean
from tests.hostile.engine import Hostile, times
from tests.problems import classification, learn, same_bits

PRIVACY = fs.Privacy(noise=1.0, clip=0.5, quantile=0.5)
MANY = classification((6,) * 30)
GIVEN = {"clients": MANY, "cohort": fs.Bernoulli(0.4), "rounds": 4}


def private(secret=None, **options):
    privacy = PRIVACY if secret is None else PRIVACY.drawn_from(secret)
    return learn(fs.Algorithm(server=fs.FedExP(), privacy=privacy), **{**GIVEN, **options})


def test_the_seed_does_not_determine_noise_or_cohorts():
    one, other = private(seed=3), private(seed=3)
    assert not torch.isclose(one.x, other.x, rtol=1e-3).all()
    assert same_bits(private("same", seed=3), private("same", seed=3))
    cohorts = {tuple(private(str(i), seed=3).history["participants"]) for i in range(4)}
    assert len(cohorts) > 1


def test_noise_does_not_cancel_between_runs_with_one_secret():
    """Runs that differ in a setting must not differ by exactly what the setting changes."""
    quiet = fs.Algorithm(step=fs.Constant(1e-9), privacy=PRIVACY.drawn_from("one"))
    other = replace(quiet, step=fs.Constant(2e-9))
    one, two = (learn(a, **{**GIVEN, "rounds": 1}) for a in (quiet, other))
    assert float((one.x - two.x).abs().max()) > 1e-3


def test_a_resumed_run_has_the_same_noise(tmp_path):
    private(checkpoint=tmp_path, rounds=2)
    at_once = private(checkpoint=tmp_path)
    (tmp_path / "checkpoint-000004.safetensors").unlink()
    assert torch.equal(private(checkpoint=tmp_path).x, at_once.x)


def test_only_the_owner_reads_the_files(tmp_path):
    run = private("a secret text", checkpoint=tmp_path / "checkpoints")
    run.report(tmp_path / "run")
    for path in [
        *tmp_path.glob("checkpoints/*.safetensors"),
        *map((tmp_path / "run").joinpath, ("run.safetensors", "history.jsonl")),
    ]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert written and not any(b"a secret text" in data for data in written)
    assert not (tmp_path / "run" / "clients.json").exists()  # labels and accuracies of single clients


def test_a_client_that_does_not_clip_is_left_out():
    run = private(
        "secret", engine=Hostile(times(10.0), who=tuple(range(30))), guard=fs.Guard(quorum=1), rounds=1, cohort=None
    )
    assert run.history[0]["refused"]["too long"] > 0


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_the_step_of_fedexp_does_not_drown_in_noise(noise):
    """|Dbar|^2 = 1, S = 20: the step is 10, with and without noise of four times the squared norm."""
    d, rule, source = 20_000, fs.FedExP(eps=0.0), torch.Generator().manual_seed(0)
    x = torch.zeros(d, dtype=torch.float64)
    update = torch.ones_like(x) / d**0.5 + (noise / d) ** 0.5 * torch.randn(d, generator=source, dtype=torch.float64)
    state = rule.init(x)
    rule.step(x, Mean({"update": update, "square": torch.tensor([20.0])}, 1.0, 10, 10, noise=noise), state)
    assert float(state["eta"]) == pytest.approx(10.0, rel=0.1)


def test_noise_alone_is_not_extrapolated():
    d, rule = 5_000, fs.FedExP(eps=0.0)
    x, steps = torch.zeros(d, dtype=torch.float64), []
    for seed in range(20):
        update = d**-0.5 * torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        state = rule.init(x)
        rule.step(x, Mean({"update": update, "square": torch.tensor([20.0])}, 1.0, 10, 10, noise=1.0), state)
        steps.append(float(state["eta"]))
    assert sorted(steps)[17] == 1.0  # two of twenty may stand out by chance


@pytest.mark.parametrize(("name", "longest"), [("auto", True), ("fedexpm", True), ("fedavg", False), ("fedexp", False)])
def test_noise_that_the_server_would_lengthen_is_as_long_as_the_clip(name, longest):
    """Clients that hardly move: the released update is noise, of 5 times the clip's length without damping."""
    d, expected, clip = 1800, 12, 0.5
    privacy = fs.Privacy(noise=5 * expected / d**0.5, clip=clip).drawn_from("long")
    still = fs.CappedPolyak(cap=1e-9) if name == "auto" else fs.Constant(1e-9)
    algorithm = replace(getattr(fs.recipes, name)(), step=still, privacy=privacy)
    clients = [
        (torch.randn(4, 600, generator=torch.Generator().manual_seed(i)), torch.arange(4) % 3) for i in range(12)
    ]
    model = torch.nn.Linear(600, 3, bias=False)
    run = fs.train(model, "cross_entropy", clients, algorithm, rounds=1, local_steps=1)
    assert run.history[0]["update"] == pytest.approx(clip if longest else 5 * clip, rel=0.1)


# what is written about a private run


def test_pages_and_settings_have_neither_seed_nor_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--seed", "424242"])
    run = private(seed=424242)
    run.report(tmp_path)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) >= 6 and not [path for path, data in written.items() if b"424242" in data]
    assert run.settings["training"]["seed"] == "withheld"
    readable = {path.name for path in written if stat.S_IMODE(path.stat().st_mode) != 0o600}
    assert readable == {"model.safetensors"}  # what the run releases


def test_a_loaded_private_run_is_saved_for_its_owner_only(tmp_path):
    fs.load(private().save(tmp_path / "first")).save(tmp_path / "again")
    assert stat.S_IMODE((tmp_path / "again" / "history.jsonl").stat().st_mode) == 0o600


def test_the_scores_of_clients_are_not_in_the_report(tmp_path):
    page = private(rounds=1).report(tmp_path)
    row = {"client": "Ada", "samples": 6, "alone": 0.5, "shared": 0.6, "personalised": 0.7, "gain": 0.2}
    path = fs.PersonalReport([row] * len(MANY), "accuracy").save(tmp_path)
    write(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and "Ada" not in page.read_text()


def test_the_personal_report_does_not_tell_who_was_drawn():
    run = private(rounds=5)
    assert _rounds(run.source.arguments, run, run.source.clients) == [2] * len(MANY)  # 0.4 x 5 for everybody
