"""Every finding comes when its reason is in the history, and does not when it is not."""

from __future__ import annotations

import math

import pytest

import fedstride as fs
from tests.app.diagnose.histories import GOOD, HALF, SMALL, STUCK, N, causes, judged, severities

SKEWED = {"sizes": [10] * 4, "labels": [[10, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0], [0, 0, 0, 10]]}
EVEN = {"sizes": [10] * 4, "labels": [[3, 3, 2, 2]] * 4}
ZIGZAG = [v * (1.2 if t % 2 else 0.8) for t, v in enumerate(STUCK)]


def swing(loss, by):
    return [v * (1 + (by if t % 2 else -by)) for t, v in enumerate(loss)]


@pytest.mark.parametrize(
    ("loss", "outcome"),
    [
        (GOOD, "converged"),
        (HALF, "still improving"),
        (STUCK, "plateau"),
        (SMALL, "slow"),
        ([2.0, 1.5, 1.0] + [1.0 + 0.05 * t for t in range(N - 3)], "rising"),
        ([2.0 * 1.2**t for t in range(N)], "diverged"),
        ([2.0, 1.0, None, None], "diverged"),
        ([2.0, 1.5, 1.2], "too short"),
    ],
)
def test_the_outcome(loss, outcome):
    assert judged(loss, test_loss=None, test_accuracy=None).outcome.name == outcome


def test_a_healthy_run_is_clean():
    assert set(severities(judged(GOOD, clients=EVEN)).values()) == {"fine"}


def test_steps_too_small():
    found = judged(SMALL)
    assert causes(found) == ["steps too small"]
    assert found.findings[0].advice[0].startswith("lr=") and "instead of 0.1" in found.findings[0].advice[0]
    assert "steps too small" not in severities(judged(GOOD, turn=0.9))
    assert severities(judged(HALF, turn=0.9))["steps too small"] == "watch"


def test_momentum_makes_moves_agree_and_is_no_sign():
    assert "steps too small" not in severities(judged(HALF, "fedadam", turn=0.9))
    assert causes(judged(SMALL, "fedadam", turn=0.9)) == ["steps too small"]  # the smooth slow fall is one
    assert "server_lr=" in judged(SMALL, "fedadam", turn=0.9).findings[0].advice[0]


def test_steps_too_large():
    slow = swing([2.0] * N, 0.1)
    assert causes(judged(slow, turn=-0.3)) == ["steps too large"]
    assert "lr=0.01 instead of 0.1" in judged(slow, turn=-0.3).findings[0].advice
    assert causes(judged([2.0, 2e6, *[2.3] * (N - 2)], turn=0.0)) == ["steps too large"]
    assert "steps too large" not in severities(judged(HALF, turn=-0.3))


def test_a_run_that_diverges_has_steps_too_large():
    assert causes(judged([2.0, 4.0, 100.0], planned=30)) == ["steps too large", "diverged"]


def test_noise():
    assert causes(judged(ZIGZAG, turn=-0.2)) == ["noise"]
    assert "readout" in judged(ZIGZAG, turn=-0.2).findings[0].advice[0]
    averaged = fs.Algorithm(fs.Constant(0.1), readout="average")
    assert not any("readout" in a for a in judged(ZIGZAG, averaged, turn=-0.2).findings[0].advice)
    assert severities(judged(swing(GOOD, 0.2), turn=-0.2))["noise"] == "watch"
    assert severities(judged(HALF, turn=-0.5))["noise"] == "watch"
    assert severities(judged(STUCK))["noise"] == "fine"


def test_heterogeneity():
    apart = {"drift": 0.5 * math.sqrt(9), "update": 0.5}  # as if nothing were in common
    assert causes(judged(STUCK, clients=SKEWED, **apart)) == ["heterogeneity"]
    assert severities(judged(STUCK, clients=EVEN, **apart))["heterogeneity"] == "fine"
    assert severities(judged(STUCK, clients=SKEWED))["heterogeneity"] == "fine"
    assert severities(judged(HALF, clients=SKEWED, **apart))["heterogeneity"] == "watch"
    assert severities(judged(ZIGZAG, turn=-0.2, **apart))["heterogeneity"] == "watch"  # or noise: who knows
    said = next(f for f in judged(STUCK, clients=SKEWED, **apart).findings if f.name == "heterogeneity").says
    assert "3 times" in said and "diversity 10" in said and "75 %" in said


def test_clients_that_cancel_hold_the_model_between_their_minima():
    still = {"update": [0.5 * 0.5**t for t in range(N)], "drift": 0.5}
    assert causes(judged(STUCK, single=False, **still)) == ["client drift"]
    assert severities(judged(STUCK, **still))["client drift"] == "watch"
    assert "client drift" not in severities(judged(STUCK, single=True, **still))
    assert "client drift" not in severities(judged(STUCK, "scaffold", single=False, **still))
    assert "client drift" not in severities(judged(GOOD, single=False, **still))


@pytest.mark.parametrize("rule", [fs.Armijo(lr_max=0.1), fs.Polyak(lr_max=0.1)])
def test_a_cap_that_binds(rule):
    assert causes(judged(SMALL, fs.Algorithm(rule))) == ["step cap binds"]
    assert severities(judged(HALF, fs.Algorithm(rule)))["step cap binds"] == "watch"
    assert severities(judged(GOOD, fs.Algorithm(rule)))["step cap binds"] == "fine"
    assert "step cap binds" not in severities(judged(SMALL, fs.Algorithm(rule), client_step=0.05))


def test_delta_sgd_at_its_growth_bound():
    assert causes(judged(SMALL, "delta_sgd", client_step=0.22)) == ["growth bound binds"]
    assert causes(judged(SMALL, "delta_sgd", client_step=0.1)) == ["steps too small"]


def test_polyak_without_a_cap():
    assert "Polyak without a cap" in causes(judged(STUCK, "fedsps"))
    assert "Polyak without a cap" not in severities(judged(GOOD, "fedsps"))
    assert "Polyak without a cap" not in severities(judged(STUCK, fs.recipes.fedsps(lr_max=1.0)))


BELOW = [2.0 * 0.7**t - 0.5 for t in range(N)]  # ends at -0.5
ZERO = [0.1] * 10 + [0.0] * (N - 10)


@pytest.mark.parametrize("rule", ["fedsps", "auto", None])
def test_polyak_steps_clamped_by_a_loss_below_the_assumed_minimum(rule):
    found = judged(BELOW, rule, client_step=ZERO)
    assert causes(found) == ["Polyak steps clamped"] and found.outcome.severity != "fine"
    assert "below 0" in found.findings[0].says and "fedsls" in found.findings[0].advice[0]
    for steps in (0.1, [0.1] * 10 + [1e-9] * (N - 10), [0.1] * 25 + [0.0] * 5):  # none, short, and half of the last ten
        near = judged(BELOW, rule, client_step=steps)
        assert "Polyak steps clamped" not in severities(near) and near.outcome.name == "converged"


def test_polyak_steps_clamped_while_the_loss_is_high():
    assert "Polyak steps clamped" in causes(judged(STUCK, "fedsps", client_step=ZERO))
    assert "Polyak steps clamped" in causes(judged(STUCK, fs.recipes.fedsps(f_star=1.0), client_step=ZERO))
    done = [2.0 * 0.5**t for t in range(N)]  # nothing is left of the loss, nor of the steps
    assert "Polyak steps clamped" not in severities(judged(done, "fedsps", client_step=ZERO))
    assert "Polyak steps clamped" not in severities(judged(STUCK, "fedavg", client_step=ZERO))


def test_the_advised_minimum_is_below_all_losses():
    found = judged(BELOW, "fedsps", client_step=ZERO).findings[0]
    assert "f_star=-2 instead of 0" in found.advice


def test_line_searches_that_fail_or_cost():
    assert causes(judged(STUCK, "fedsls", failed=9, client_step=1e-6)) == ["line search fails"]
    assert severities(judged(STUCK, "fedsls", failed=9))["line search fails"] == "watch"
    assert severities(judged(GOOD, "fedsls", failed=9, client_step=1e-6))["line search fails"] == "fine"
    assert "line search fails" not in severities(judged(GOOD, "fedsls"))
    assert severities(judged(GOOD, "fedsls", trials=9.0))["line search costs"] == "watch"
    assert severities(judged(GOOD, "fedsls", trials=2.0))["line search"] == "fine"


def test_a_server_step_that_explodes():
    wild = {"server_step": [1.0] * 20 + [50.0] * 10}
    assert causes(judged(STUCK, fs.recipes.fedexp(eps=0), **wild)) == ["server step explodes"]
    assert judged(STUCK, fs.recipes.fedexp(eps=0), **wild).findings[0].advice[0] == "eps=0.03 instead of 0"
    assert severities(judged(GOOD, fs.recipes.fedexp(eps=0), **wild))["server step"] == "fine"  # it interpolates
    assert "server step explodes" not in severities(judged(STUCK, "fedavg", **wild))


def test_a_server_that_extrapolates_noise():
    noise = {"server_step": 2.0, "turn": 0.0}
    hardly = [2.0 - 0.02 * (t % 5) for t in range(N)]
    found = judged(hardly, "fedexp", **noise)
    assert causes(found)[0] == "server extrapolates noise" and "fedavgm" in found.findings[0].advice[0]
    assert any(a.startswith("server_lr_max=1 instead of") for a in found.findings[0].advice)
    assert severities(judged(STUCK, "fedexp", **noise))["server extrapolates noise"] == "watch"
    assert causes(judged(ZIGZAG, "fedexp", **noise))[0] == "server extrapolates noise"
    for near in ({"server_step": 1.4}, {"turn": 0.2}, {"server_step": [2.0] * 15 + [1.0] * 15}):
        assert "server extrapolates noise" not in severities(judged(hardly, "fedexp", **{**noise, **near}))
    for falls in (GOOD, HALF):
        assert "server extrapolates noise" not in severities(judged(falls, "fedexp", **noise))
    assert "server extrapolates noise" not in severities(judged(hardly, fs.recipes.fedavg(server_lr=2.0), **noise))


def test_momentum_alone_makes_moves_of_noise_agree():
    noise = {"server_step": 2.0, "turn": 0.8}  # auto has beta = 0.8
    hardly = [2.0 - 0.02 * (t % 5) for t in range(N)]
    assert "server extrapolates noise" in causes(judged(hardly, "auto", **noise))
    assert "server extrapolates noise" not in severities(judged(hardly, "auto", **{**noise, "turn": 0.9}))


def test_a_server_step_held_back():
    apart = {"drift": 3.0, "update": 0.01}
    assert severities(judged(SMALL, "fedexp", **apart))["server step hidden by eps"] in ("cause", "watch")
    falls = [2.0 - 0.012 * t for t in range(N)]
    assert causes(judged(falls, "fedexp", **apart)) == ["server step hidden by eps"]
    capped = fs.recipes.fedexp(eps=0, server_lr_max=2.0)
    assert causes(judged(falls, capped, server_step=2.0, **apart)) == ["server step at its cap"]
    assert severities(judged(HALF, capped, server_step=2.0))["server step at its cap"] == "watch"
    assert severities(judged(HALF, capped, server_step=1.5))["server step"] == "fine"
    assert severities(judged(HALF, "fedexp"))["server step"] == "fine"


@pytest.mark.parametrize(("feedback", "error"), [(False, 0.7), (True, 0.97)])
def test_compression(feedback, error):
    algorithm = fs.Algorithm(fs.Constant(0.1), up=fs.TopK(0.01), error_feedback=feedback)
    assert causes(judged(STUCK, algorithm, compression=error))[0] == "compression"
    assert severities(judged(GOOD, algorithm, compression=error))["compression"] == "watch"
    assert severities(judged(STUCK, algorithm, compression=0.3))["compression"] == "fine"
    assert "compression" not in severities(judged(STUCK))


def test_error_feedback_is_advised_where_there_is_none():
    without = fs.Algorithm(fs.Constant(0.1), up=fs.TopK(0.01), error_feedback=False)
    assert "error_feedback=True" in judged(STUCK, without, compression=0.9).findings[0].advice[0]


def test_few_participants_and_lost_ones():
    few = {"participants": 1, "clients": {"sizes": [5] * 50}}
    assert causes(judged(STUCK, **few)) == ["few participants"]
    assert severities(judged(GOOD, **few))["few participants"] == "watch"
    assert "few participants" not in severities(judged(STUCK, clients={"sizes": [5] * 50}))
    assert severities(judged(GOOD, lost=2))["lost clients"] == "watch"
    assert "lost clients" not in severities(judged(GOOD, lost=[1] + [0] * (N - 1)))


def test_clients_left_behind():
    behind, equal = [0.3] * 2 + [0.9] * 18, [0.85] * 2 + [0.9] * 18
    sizes = {"sizes": [5] * 20}
    assert severities(judged(GOOD, clients={**sizes, "accuracy": behind}))["clients left behind"] == "watch"
    assert severities(judged(GOOD, clients={**sizes, "accuracy": equal}))["clients left behind"] == "fine"
    assert severities(judged(GOOD, clients={**sizes, "loss": [9.0] * 2 + [1.0] * 18}))["clients left behind"] == "watch"
    assert "clients left behind" not in severities(judged(SMALL, clients={**sizes, "accuracy": behind}))


def test_overfitting():
    rises = [2.0 - 0.1 * t for t in range(10)] + [1.0 + 0.03 * t for t in range(N - 10)]
    assert causes(judged(GOOD, test_loss=rises)) == ["overfitting"]
    assert severities(judged(GOOD))["overfitting"] == "fine"
    assert "overfitting" not in severities(judged(rises))  # the training loss rises as well


def test_overfitting_comes_first_even_if_the_test_loss_ends_above_its_start():
    worse = [1.0 - 0.05 * t for t in range(6)] + [0.7 + 0.1 * t for t in range(N - 6)]
    noisy = judged(GOOD, fs.recipes.fedexp(lr=0.1), test_loss=worse, server_step=[3.0] * N, turn=[-0.4] * N)
    assert causes(noisy)[0] == "overfitting"


def test_a_test_loss_that_rises_from_zero_is_overfitting_too():
    rising = [0.0] * 10 + [0.1 * t for t in range(N - 10)]
    assert "overfitting" in causes(judged([2.0 - 0.06 * t for t in range(N)], test_loss=rising))


def test_client_steps_that_are_no_numbers_are_not_judged():
    odd = [[["a"] * 5, [None] * 5, [-1.0] * 5, [float("nan")] * 5, [True] * 5][t % 5] for t in range(N)]
    assert "step cap binds" not in severities(judged(GOOD, fs.recipes.fedsls(), client_steps=odd))


def test_a_run_that_stopped_early():
    assert severities(judged(HALF, planned=100))["unfinished"] == "watch"
    assert "unfinished" not in severities(judged(HALF, planned=N))


def test_rounds_without_evaluation_are_no_gap():
    seldom = [v if t % 3 == 2 else None for t, v in enumerate(GOOD)]
    accuracy = [None if v is None else 0.9 - v / 10 for v in seldom]
    assert judged(GOOD, test_loss=seldom, test_accuracy=accuracy).outcome.name == "converged"
    lost = [v if t < 9 else None for t, v in enumerate(GOOD)]
    assert judged(GOOD, test_loss=lost, test_accuracy=0.1).outcome.name == "diverged"  # a loss that is no number


def test_what_old_histories_lack_is_said():
    found = judged(STUCK, update=..., turn=..., compression=...)
    assert severities(found)["heterogeneity"] == severities(found)["step length"] == "unknown"
    assert "The history shows no cause" in found.outcome.says
    compressed = judged(STUCK, fs.Algorithm(up=fs.TopK(0.1)), compression=...)
    assert severities(compressed)["compression"] == "unknown"


def test_an_average_that_was_never_evaluated_is_said():
    nothing = {"test_loss": None, "test_accuracy": None}
    assert severities(judged(GOOD, "auto", **nothing))["returned model not evaluated"] == "unknown"
    assert "returned model not evaluated" not in severities(judged(GOOD, "auto"))


def test_no_advice_to_take_what_it_is():
    slow = judged(SMALL, "auto", turn=0.5)
    assert slow.findings and not any("--algorithm auto" in a for f in slow.findings for a in f.advice)


@pytest.mark.parametrize(
    "loss", [GOOD, SMALL, STUCK, HALF, [2.0], [None], [2.0, None, 3.0], [2.0 * 3**t for t in range(9)], [0.0] * 9]
)
@pytest.mark.parametrize("algorithm", [None, "auto", "fedexp", "fedsls", "fedsps", "delta_sgd", "fedadam", "fedlin"])
def test_a_history_of_losses_alone_can_be_judged(loss, algorithm):
    names = ("test_loss", "test_accuracy", "server_step", "client_step", "trials", "failed", "update", "turn", "drift")
    found = judged(loss, algorithm, **dict.fromkeys((*names, "compression", "participants", "lost"), ...))
    assert found.outcome in found.findings and all(f.says.endswith(".") for f in found.findings)
