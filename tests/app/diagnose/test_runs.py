"""Real runs: the first cause is the one that was put there, and taking the advice helps."""

from __future__ import annotations

import re

import pytest

import fedstride as fs
from fedstride import InvalidInput
from fedstride.app.diagnose import findings
from tests.app.diagnose.histories import causes, digits, learned, least_squares, of, severities

pytestmark = pytest.mark.slow


def test_a_rate_that_is_far_too_small_and_the_one_that_is_advised():
    slow = of(digits(fs.recipes.fedavg(lr=1e-4)))
    assert causes(slow) == ["steps too small"]
    lr = float(re.match(r"lr=(\S+) instead of 0.0001", slow.findings[0].advice[0])[1])
    assert lr >= 1e-3
    assert of(digits(fs.recipes.fedavg(lr=lr))).outcome.name == "still improving"


def test_a_rate_that_is_too_large():
    assert causes(of(learned(fs.recipes.fedavg(lr=0.2), least_squares())))[0] == "steps too large"


def test_fedexp_without_eps_and_without_interpolation():
    wild = of(learned(fs.recipes.fedexp(lr=0.02, eps=0.0), least_squares(apart=3.0, n=40)))
    assert causes(wild) == ["server step explodes"]
    tame = of(learned(fs.recipes.fedexp(lr=0.02, eps=0.0), least_squares()))  # which interpolates
    assert causes(tame) == [] and tame.outcome.name == "converged"


def test_top_k_without_error_feedback():
    data = least_squares(apart=3.0, n=40)
    lossy = fs.Algorithm(fs.Constant(0.02), up=fs.TopK(1), error_feedback=False)
    assert causes(of(learned(lossy, data)))[0] == "compression"
    assert "compression" not in causes(of(learned(fs.Algorithm(fs.Constant(0.02), up=fs.TopK(1)), least_squares())))


def test_armijo_under_a_low_cap():
    assert causes(of(learned(fs.recipes.fedsls(lr_max=1e-4), least_squares()))) == ["step cap binds"]
    assert causes(of(learned(fs.recipes.fedsls(), least_squares()))) == []


def test_delta_sgd_that_starts_too_low():
    assert causes(of(digits(fs.recipes.delta_sgd(lr0=1e-5)))) == ["growth bound binds"]


def test_a_healthy_run_is_clean():
    for run in (digits("auto", rounds=40), learned("auto", least_squares(), test=least_squares()[0])):
        found = of(run)
        assert causes(found) == [] and found.outcome.name in ("still improving", "converged")


def test_drift_that_fedavg_leaves_and_scaffold_does_not():
    data = least_squares(apart=3.0, n=40)
    assert severities(of(learned(fs.recipes.fedavg(0.02), data)))["client drift"] == "watch"
    assert "client drift" not in severities(of(learned(fs.recipes.scaffold(0.02), data)))


def test_a_run_and_its_folder_say_the_same(tmp_path):
    run = learned(fs.recipes.fedsls(lr_max=1e-4), least_squares())
    assert findings(run.save(tmp_path)) == findings(run)
    assert findings(str(tmp_path)) == findings(run)


def test_what_cannot_be_judged_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"expected an fs\.Run or the folder"):
        findings(3)
    with pytest.raises(InvalidInput, match=r"the folder .* does not exist"):
        findings(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"neither history\.jsonl nor"):
        findings(tmp_path)
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(InvalidInput, match=r"diagnose: the history in .* is empty"):
        findings(tmp_path)
    run = learned("fedavg", least_squares(), rounds=1)
    run.history.lines.clear()
    with pytest.raises(InvalidInput, match="the history is empty"):
        findings(run)
