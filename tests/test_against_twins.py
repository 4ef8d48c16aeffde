"""Every algorithm against its slow twin: all iterates of ten rounds, the history, the returned model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedstride as fs
from fedstride.algorithm import recipes as R
from tests.problems import Fixed
from tests.reference import clients as c
from tests.reference import twins as T
from tests.reference.problems import LeastSquares, Network, Softmax
from tests.tiers import slow

SIZES = (3, 5, 8, 4)
PROBLEMS = {
    "sum": LeastSquares(SIZES),
    "mean": LeastSquares(SIZES, mean=True),
    "softmax": Softmax(SIZES),
    "network": Network(SIZES),
}
LR = {"sum": 0.02, "mean": 0.05, "softmax": 0.3, "network": 0.4}
COLUMNS = ("server_step", "client_step", "train_loss", "drift", "gradients", "forwards", "trials", "failed")


def setting(name, weights="uniform", tau=(2, 4, 1, 3), **options):
    return T.Setting(PROBLEMS[name], list(tau) if isinstance(tau, tuple) else tau, weights=weights, **options)


EVERY = {
    "sum-samples-unequal": setting("sum", "samples"),
    "softmax-uniform-3": setting("softmax", "uniform", 3),
    "network-samples-3": setting("network", "samples", 3),
    "mean-uniform-unequal": setting("mean", "uniform"),
    "sum-uniform-3": setting("sum", "uniform", 3),
}
SLOW = ("mean-uniform-unequal", "sum-uniform-3")  # the others have both weights, equal and unequal steps
every_setting = pytest.mark.parametrize(
    "S", [slow(S, name=name) if name in SLOW else pytest.param(S, id=name) for name, S in EVERY.items()]
)
some_settings = pytest.mark.parametrize("S", list(EVERY.values())[:3], ids=list(EVERY)[:3])
two_settings = pytest.mark.parametrize("S", list(EVERY.values())[:2], ids=list(EVERY)[:2])


def lr_of(S):
    return next(LR[name] for name, problem in PROBLEMS.items() if problem is S.problem)


def train(S, algorithm, loss=None, clients=None, **options):
    """(iterates by round, run)."""
    iterates = {}
    run = fs.train(
        S.problem.module(),
        loss or S.problem.loss(),
        clients or S.problem.clients(),
        algorithm,
        rounds=S.rounds,
        local_steps=S.tau,
        batch_size=S.batch_size,
        weights=S.weights,
        cohort=None if S.cohorts is None else Fixed(S.cohorts),
        weight_decay=S.weight_decay,
        clip_norm=S.clip,
        callbacks=[lambda event: iterates.update({event.round: event.x.clone().numpy()})],
        **options,
    )
    return iterates, run


def same(ours, twin, tol, what):
    """Relative in the norm of the whole vector."""
    gap = np.linalg.norm(np.asarray(ours) - twin) / max(np.linalg.norm(twin), 1e-300)
    assert gap <= tol, f"{what}: relative gap {gap:.2e}\nlibrary {ours}\ntwin    {twin}"


def agree(S, algorithm, twin, tol=1e-10, columns=COLUMNS, moves=True):
    """moves: False where the rule starts with steps too small to go anywhere in ten rounds."""
    assert not moves or np.linalg.norm(twin["x"][-1] - twin["x"][0]) > 1e-3, "a problem on which nothing moves"
    # clients alone with equal steps, rows of unequal length together with unequal ones
    engine = "auto" if isinstance(S.tau, int) else fs.engine.Local(workers=1, chunk=3)
    iterates, run = train(S, algorithm, engine=engine)
    assert sorted(iterates) == list(range(S.rounds + 1))
    for t in range(S.rounds + 1):
        same(iterates[t], twin["x"][t], tol, f"x after round {t}")
    same(run.x.numpy(), twin["x"][-1], tol, "run.x")
    returned = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().numpy()
    same(returned, twin["output"], tol, "run.model")
    for name in columns:
        if name in ("gradients", "forwards", "failed"):
            assert list(run.history[name]) == twin[name], name
        elif name == "drift":  # the root of a difference: compare the squares on the scale of S
            gap = np.abs(np.square(run.history["drift"]) - twin["drift2"]) / twin["S"]
            assert gap.max() <= max(1e-9, tol), f"drift: {run.history['drift']} against {np.sqrt(twin['drift2'])}"
        else:
            same(run.history[name], twin[name], tol, name)
    return run


def without(*names):
    return tuple(name for name in COLUMNS if name not in names)


# ---------------------------------------------------------------- constant steps, plain averages


@every_setting
def test_fedavg(S):
    lr = lr_of(S)
    agree(S, R.fedavg(lr), T.fedavg(S, c.constant(lr)))


@some_settings
def test_fedavg_server_lr(S):
    lr = lr_of(S)
    agree(S, R.fedavg(lr, server_lr=0.7), T.fedavg(S, c.constant(lr), 0.7))


@some_settings
def test_fedavg_schedules(S):
    lr = lr_of(S)
    agree(S, R.fedavg(lr, schedule=fs.Exponential(0.8)), T.fedavg(S, c.constant(lr, T.exponential(0.8))))
    agree(S, R.fedavg(lr, schedule=fs.Exponential()), T.fedavg(S, c.constant(lr, T.exponential(0.998))))
    agree(S, R.fedavg(lr, schedule=fs.Stepwise()), T.fedavg(S, c.constant(lr, T.stepwise(S.rounds))))


def test_fedavg_steps_by_round_and_client():
    S = setting("mean", "samples", tau=lambda t, i: 1 + (t + 2 * i) % 4)
    agree(S, R.fedavg(0.05), T.fedavg(S, c.constant(0.05)))


def test_fedavg_weights_by_number():
    S = setting("mean", (1.0, 0.5, 2.0, 3.0))
    agree(S, R.fedavg(0.05), T.fedavg(S, c.constant(0.05)))


@some_settings
@pytest.mark.parametrize("beta", [0.9, 0.3])
def test_fedavgm(S, beta):
    lr = lr_of(S)
    twin = T.fedavgm(S, c.constant(lr), 0.5, beta)
    agree(S, R.fedavgm(lr, server_lr=0.5, beta=beta), twin)


@every_setting
def test_fedprox(S):
    lr = lr_of(S)
    agree(S, R.fedprox(lr, mu=0.5), T.fedprox(S, c.constant(lr), 0.5))


@every_setting
def test_fednova(S):
    lr = lr_of(S)
    agree(S, R.fednova(lr), T.fednova(S, c.constant(lr), T.nova_plain), columns=without("drift"))


def test_fednova_with_equal_steps_has_the_drift_of_fedavg():
    """drift is that of the updates Delta_i, not of Delta_i / a_i."""
    S = setting("mean", tau=3)
    agree(S, R.fednova(0.05), T.fednova(S, c.constant(0.05), T.nova_plain), columns=("drift",))


@some_settings
def test_fednova_momentum(S):
    lr = lr_of(S) / 4
    twin = T.fednova(S, c.momentum(lr, 0.7), T.nova_momentum(0.7))
    agree(S, R.fednova(lr, beta=0.7), twin, columns=without("drift"))


@some_settings
def test_fednova_prox_and_server_lr(S):
    lr = lr_of(S)
    twin = T.fednova(S, c.constant(lr), T.nova_prox(lr, 0.8), mu=0.8, server_lr=0.6)
    agree(S, R.fednova(lr, mu=0.8, server_lr=0.6), twin, columns=without("drift"))


# ---------------------------------------------------------------- client optimizers, against torch.optim itself


@two_settings
@pytest.mark.parametrize(
    "step, make",
    [
        (fs.Momentum(0.01, 0.9), lambda q: torch.optim.SGD(q, lr=0.01, momentum=0.9)),
        (fs.Adam(0.02), lambda q: torch.optim.Adam(q, lr=0.02)),
        (fs.Adam(0.02, (0.8, 0.95), 1e-3), lambda q: torch.optim.Adam(q, lr=0.02, betas=(0.8, 0.95), eps=1e-3)),
        (fs.AdamW(0.02, weight_decay=0.5), lambda q: torch.optim.AdamW(q, lr=0.02, weight_decay=0.5)),
        (fs.AdamW(0.02, (0.8, 0.95), 1e-3), lambda q: torch.optim.AdamW(q, lr=0.02, betas=(0.8, 0.95), eps=1e-3)),
        (fs.Adagrad(0.05), lambda q: torch.optim.Adagrad(q, lr=0.05)),
        (fs.Adagrad(0.05, 1e-2), lambda q: torch.optim.Adagrad(q, lr=0.05, eps=1e-2)),
    ],
    ids=["momentum", "adam", "adam-betas", "adamw", "adamw-betas", "adagrad", "adagrad-eps"],
)
def test_client_optimizers(S, step, make):
    agree(S, fs.Algorithm(step), T.fedavg(S, c.torch_optimizer(make)))


def test_client_momentum_with_gradient_correction():
    S = setting("mean", "samples")
    twin = T.fedlin(S, c.momentum(0.01, 0.8))
    agree(S, fs.Algorithm(fs.Momentum(0.01, 0.8), drift=fs.GradientCorrection()), twin)


# ---------------------------------------------------------------- other objectives


@every_setting
def test_feddyn(S):
    lr = lr_of(S)
    agree(S, R.feddyn(lr, alpha=0.7), T.feddyn(S, c.constant(lr), 0.7), columns=without("train_loss", "server_step"))


@pytest.mark.parametrize("algorithm", [R.fedprox(0.3), R.feddyn(0.3), R.moon(0.3)], ids=lambda a: a.name)
def test_train_loss_is_comparable_across_objectives(algorithm):
    """The plain loss of the cohort at x, whatever term an objective adds to it."""
    S = setting("network", "samples")
    iterates, run = train(S, algorithm)
    everything = [np.arange(n) for n in SIZES]
    for t, loss in enumerate(run.history["train_loss"]):
        plain = T.mean(S.pi, [S.problem.value(i, iterates[t], rows) for i, rows in enumerate(everything)])
        assert loss == pytest.approx(plain, rel=1e-10)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("tau", [3, (2, 4, 1, 3)], ids=["3", "unequal"])
def test_moon(weights, tau):
    S = setting("network", weights, tau)
    agree(S, R.moon(0.3), T.moon(S, c.constant(0.3)), columns=without("train_loss", "forwards"))


def test_moon_options():
    S = setting("network")
    twin = T.moon(S, c.constant(0.3), 0.4, 0.2, 0.8)
    agree(S, R.moon(0.3, mu=0.4, temperature=0.2, server_lr=0.8), twin, columns=without("train_loss", "forwards"))


@every_setting
def test_ditto(S):
    lr = lr_of(S)
    twin = T.ditto(S, c.constant(lr), 0.7)
    run = agree(S, R.ditto(lr, lam=0.7), twin)
    for i, model in run.personal.items():
        own = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        same(own, twin["own"][i], 1e-10, f"v of client {i}")


def test_ditto_weight_decay():
    test_ditto(setting("mean", weight_decay=0.3))


@every_setting
def test_fedsplit(S):
    lr = lr_of(S) / 4
    twin = T.fedsplit(S, c.constant(lr), 0.5)
    agree(S, R.fedsplit(prox=0.5, lr=lr), twin, columns=without("train_loss", "server_step"))


# ---------------------------------------------------------------- adaptive servers


@some_settings
@pytest.mark.parametrize("bias_correction", [False, True])
def test_fedadam(S, bias_correction):
    lr = lr_of(S)
    twin = T.fedopt(S, c.constant(lr), "adam", bias_correction=bias_correction)
    agree(S, R.fedadam(lr, bias_correction=bias_correction), twin, columns=without("server_step"))


def test_fedadam_as_in_delta_sgd():
    S = setting("softmax")
    algorithm = R.fedadam(0.3, server_lr=0.05, betas=(0.9, 0.999), tau=1e-8, bias_correction=True)
    twin = T.fedopt(S, c.constant(0.3), "adam", 0.05, (0.9, 0.999), 1e-8, True)
    agree(S, algorithm, twin, columns=without("server_step"))


@some_settings
def test_fedadagrad(S):
    lr = lr_of(S)
    agree(S, R.fedadagrad(lr), T.fedopt(S, c.constant(lr), "adagrad", betas=(0.0, 0.0)), columns=without("server_step"))
    twin = T.fedopt(S, c.constant(lr), "adagrad", 0.2, (0.5, 0.0), 1e-2)
    agree(S, R.fedadagrad(lr, server_lr=0.2, betas=(0.5, 0.0), tau=1e-2), twin, columns=without("server_step"))


@some_settings
def test_fedyogi(S):
    lr = lr_of(S)
    agree(S, R.fedyogi(lr), T.fedopt(S, c.constant(lr), "yogi"), columns=without("server_step"))


# ---------------------------------------------------------------- servers that find their step


@every_setting
@pytest.mark.parametrize("r_eps", [0.1, 1e-6])
def test_feddog(S, r_eps):
    lr = lr_of(S)
    agree(S, R.feddog(lr, r_eps), T.feddog(S, c.constant(lr), r_eps), moves=r_eps == 0.1)


@every_setting
@pytest.mark.parametrize("d0", [0.01, 1e-6])
def test_fedprodigy(S, d0):
    lr = lr_of(S)
    agree(S, R.fedprodigy(lr, d0=d0), T.fedprodigy(S, c.constant(lr), d0=d0), moves=d0 == 0.01)


@some_settings
def test_fedprodigy_options(S):
    lr, rule = lr_of(S), {"betas": (0.5, 0.9), "d0": 0.02, "eps": 1e-3}
    twin = T.fedprodigy(S, c.constant(lr), **rule)
    assert twin["server_step"][-1] > 1.5 * twin["server_step"][0], "an estimate that never grows tests nothing"
    agree(S, R.fedprodigy(lr, **rule), twin)


@every_setting
@pytest.mark.parametrize("d0", [0.05, 1e-6])
def test_feddadapt(S, d0):
    lr = lr_of(S)
    twin = T.feddadapt(S, c.constant(lr), d0)
    assert twin["server_step"][-1] > 1.5 * twin["server_step"][0]
    agree(S, R.feddadapt(lr, d0), twin, moves=d0 == 0.05)


@some_settings
def test_feddadapt_momentum(S):
    lr = lr_of(S)
    agree(S, R.feddadapt(lr, 0.05, beta=0.7), T.feddadapt(S, c.constant(lr), 0.05, 0.7))


@every_setting
def test_fedschedulefree(S):
    lr = lr_of(S)
    agree(S, R.fedschedulefree(lr), T.fedschedulefree(S, c.constant(lr)))
    agree(S, R.fedschedulefree(lr, server_lr=0.7, beta=0.4), T.fedschedulefree(S, c.constant(lr), 0.7, 0.4))


@every_setting
@pytest.mark.parametrize("bound", [3.0, 1.05])
def test_fedhyper(S, bound):
    lr = lr_of(S)
    twin = T.fedhyper(S, c.constant(lr), bound)
    assert len(set(twin["server_step"])) > 1
    agree(S, R.fedhyper(lr, bound), twin)


# ---------------------------------------------------------------- extrapolation


@every_setting
def test_fedexp(S):
    lr = lr_of(S)
    agree(S, R.fedexp(lr), T.fedexp(S, c.constant(lr), 1e-3), tol=1e-9)


@some_settings
def test_fedexp_without_eps(S):
    lr = lr_of(S)
    agree(S, R.fedexp(lr, eps=0.0), T.fedexp(S, c.constant(lr), 0.0), tol=1e-9)


@some_settings
def test_fedexp_exact_and_capped(S):
    lr = lr_of(S)
    agree(S, R.fedexp(lr, exact=True), T.fedexp(S, c.constant(lr), exact=True), tol=1e-9)
    twin = T.fedexp(S, c.constant(lr), 0.0, True, 1.3)
    agree(S, R.fedexp(lr, 0.0, server_lr_max=1.3, exact=True), twin, tol=1e-9)


@pytest.mark.parametrize("exact", [False, True])
def test_fedexp_overparameterised(exact):
    """Where FedExP extrapolates most, its map is chaotic: 20 rounds to 1e-6."""
    S = T.Setting(LeastSquares((2, 3, 2), d=20, mean=True, interpolated=True), 10, rounds=20)
    twin = T.fedexp(S, c.constant(0.01), 0.0, exact)
    assert max(twin["server_step"]) > 1.2
    agree(S, R.fedexp(0.01, 0.0, exact=exact), twin, tol=1e-6)


@some_settings
@pytest.mark.parametrize("eps, beta", [(1e-3, 0.9), (0.0, 0.5)])
def test_fedexpm(S, eps, beta):
    lr = lr_of(S)
    agree(S, R.fedexpm(lr, eps, beta), T.fedexpm(S, c.constant(lr), eps, beta), tol=1e-9)


@every_setting
def test_fedexprox(S):
    lr = lr_of(S)
    agree(S, R.fedexprox(lr, gamma=0.8), T.fedexprox(S, c.constant(lr), 0.8, "grads"), tol=1e-9)
    agree(S, R.fedexprox(lr, gamma=0.8, alpha=1.4), T.fedexprox(S, c.constant(lr), 0.8, 1.4))


def test_fedexprox_where_the_updates_cancel():
    """GraDS takes alpha = 1 if Dbar = 0."""
    P = LeastSquares((3, 3))
    P.A[1], P.b[1], P.x0 = P.A[0], -P.b[0], np.zeros(5)
    iterates, run = train(T.Setting(P, 2, rounds=2), R.fedexprox(0.02))
    assert run.history["server_step"] == [1.0, 1.0]
    assert run.history["drift"][0] > 0.1
    assert not iterates[2].any()


# ---------------------------------------------------------------- line search


def one_client_at_its_minimum():
    """In the first round client 1 has loss and gradient zero, to the bit; the others move x away from there."""
    P = LeastSquares(SIZES)
    P.x0, P.b[1] = np.zeros(5), np.zeros(5)
    return T.Setting(P, [2, 4, 1, 3])


@every_setting
def test_fedsls(S):
    agree(S, R.fedsls(), T.fedavg(S, c.armijo()))


@two_settings
@pytest.mark.parametrize("reset", ["keep", "max", "grow"])
def test_fedsls_resets(S, reset):
    rule = {"c": 0.3, "backtrack": 0.7, "reset": reset}
    agree(S, R.fedsls(**rule), T.fedavg(S, c.armijo(**rule)))


@some_settings
def test_fedsls_options(S):
    rule = {"lr_max": 0.5, "c": 0.5, "backtrack": 0.6, "reset": "grow", "growth": 1.5}
    agree(S, R.fedsls(**rule, server_lr=0.8), T.fedavg(S, c.armijo(**rule), 0.8))


@two_settings
@pytest.mark.parametrize("reset", ["keep", "max", "grow"])
def test_fedexpsls(S, reset):
    rule = {"backtrack": 0.5, "reset": reset}
    twin = T.fedexp(S, c.armijo(**rule), last_two=False)
    agree(S, R.fedexpsls(**rule), twin, tol=1e-9)
    twin = T.fedexp(S, c.armijo(**rule), 0.0, cap=1.1, last_two=False)
    agree(S, R.fedexpsls(**rule, eps=0.0, server_lr_max=1.1), twin, tol=1e-9)


@pytest.mark.parametrize("reset", ["keep", "max", "grow"])
def test_failed_search(reset):
    """Curvature beyond what 100 trials from lr_max can meet: the step is 1e-6, counted as failed."""
    S = T.Setting(LeastSquares(SIZES, scale=200.0), [2, 4, 1, 3], rounds=1)
    twin = T.fedavg(S, c.armijo(reset=reset))
    assert sum(twin["failed"]) > 0
    agree(S, R.fedsls(reset=reset), twin, tol=1e-9)


def test_armijo_stays_where_the_gradient_vanishes():
    """|g| < 1e-8 means no move; here one client starts at its minimum, the others do not."""
    S = one_client_at_its_minimum()
    agree(S, R.fedsls(c=0.3), T.fedavg(S, c.armijo(c=0.3)))


# ---------------------------------------------------------------- Delta-SGD and Polyak


@every_setting
def test_delta_sgd(S):
    agree(S, R.delta_sgd(lr0=0.05), T.fedavg(S, c.delta_sgd(0.05)))


@some_settings
@pytest.mark.parametrize("reuse", [False, True])
def test_delta_sgd_options(S, reuse):
    rule = {"lr0": 0.02, "theta0": 2.0, "gamma": 0.7, "delta": 0.4, "reuse_gradient": reuse}
    agree(S, R.delta_sgd(**rule, server_lr=0.9), T.fedavg(S, c.delta_sgd(**rule), 0.9))


def test_delta_sgd_defaults():
    S = setting("softmax", tau=5)
    twin = T.fedavg(S, c.delta_sgd())
    agree(S, R.delta_sgd(), twin)
    one = setting("softmax", tau=1)
    assert train(one, R.delta_sgd())[1].history["client_step"][0] == pytest.approx(0.20976, abs=1e-5)


@every_setting
def test_fedsps(S):
    agree(S, R.fedsps(lr_max=lr_of(S)), T.fedavg(S, c.polyak(lr_max=lr_of(S))))


@some_settings
def test_fedsps_options(S):
    twin = T.fedavg(S, c.polyak(c=2.0, f_star=0.1), 0.5)
    agree(S, R.fedsps(c=2.0, f_star=0.1, server_lr=0.5), twin)
    twin = T.fedavg(S, c.polyak(c=2.0, growth=1.05, lr_max=5.0))
    agree(S, R.fedsps(c=2.0, growth=1.05, lr_max=5.0), twin)


@every_setting
def test_feddecsps(S):
    agree(S, R.feddecsps(), T.fedavg(S, c.decsps()))


@some_settings
def test_feddecsps_options(S):
    rule = {"c0": 0.7, "lr_max": 0.05, "f_star": 0.1}
    agree(S, R.feddecsps(**rule, server_lr=0.5), T.fedavg(S, c.decsps(**rule), 0.5))


@every_setting
@pytest.mark.parametrize("sigma", [1.0, 0.05])
def test_fedngn(S, sigma):
    agree(S, R.fedngn(sigma, server_lr=0.8), T.fedavg(S, c.ngn(sigma), 0.8))


def test_steps_from_the_loss_where_a_client_has_none():
    """Loss and gradient 0: no NaN, and no bound on what follows."""
    S = one_client_at_its_minimum()
    agree(S, R.feddecsps(), T.fedavg(S, c.decsps()))
    agree(S, R.fedngn(), T.fedavg(S, c.ngn()))


def test_delta_sgd_where_the_gradient_stays():
    """A zero difference of gradients makes its bound infinite, never NaN."""
    S = one_client_at_its_minimum()
    for reuse in (False, True):
        agree(S, R.delta_sgd(lr0=0.01, reuse_gradient=reuse), T.fedavg(S, c.delta_sgd(0.01, reuse_gradient=reuse)))


# ---------------------------------------------------------------- SCAFFOLD


def test_scaffold_where_a_client_takes_no_step():
    """Sum of the steps 0: c_i stays."""
    S = one_client_at_its_minimum()
    agree(S, fs.Algorithm(fs.Polyak(2.0), drift=fs.Scaffold()), T.scaffold(S, c.polyak(2.0)))


@every_setting
def test_scaffold(S):
    lr = lr_of(S) / 2
    agree(S, R.scaffold(lr), T.scaffold(S, c.constant(lr)))


@some_settings
def test_scaffold_server_lr(S):
    lr = lr_of(S) / 2
    agree(S, R.scaffold(lr, server_lr=0.6), T.scaffold(S, c.constant(lr), 0.6))


@every_setting
def test_scaffold_exp(S):
    lr = lr_of(S) / 2
    agree(S, R.scaffold_exp(lr), T.scaffold(S, c.constant(lr), eps=1e-3), tol=1e-9)


@pytest.mark.slow
@two_settings
@pytest.mark.parametrize(
    "step, client",
    [
        (fs.Armijo(c=0.3, backtrack=0.7), c.armijo(c=0.3, backtrack=0.7)),
        (fs.Armijo(c=0.3, backtrack=0.7, reset="keep"), c.armijo(c=0.3, backtrack=0.7, reset="keep")),
        (fs.DeltaSGD(0.05), c.delta_sgd(0.05)),
        (fs.DeltaSGD(0.05, reuse_gradient=True), c.delta_sgd(0.05, reuse_gradient=True)),
        (fs.Polyak(2.0, 0.05), c.polyak(2.0, 0.05)),
        (fs.DecSPS(2.0, 0.05), c.decsps(2.0, 0.05)),
        (fs.NGN(0.05), c.ngn(0.05)),
    ],
    ids=["armijo", "armijo-keep", "delta", "delta-reuse", "polyak", "decsps", "ngn"],
)
def test_corrections_with_adaptive_steps(S, step, client):
    twin = T.scaffold(S, client)
    agree(S, fs.Algorithm(step, drift=fs.Scaffold()), twin, tol=1e-9)
    twin = T.fedlin(S, client)
    agree(S, fs.Algorithm(step, drift=fs.GradientCorrection()), twin, tol=1e-9)


# ---------------------------------------------------------------- FedLin, FedTrack


@every_setting
def test_fedlin(S):
    lr = lr_of(S)
    agree(S, R.fedlin(lr), T.fedlin(S, c.per_step(lr)))


@two_settings
@pytest.mark.parametrize(
    "up, down, error_feedback",
    [
        (2, None, None),
        (None, 2, True),
        (3, 2, None),
        (0.2, 0.4, True),
        (2, None, False),
        (None, 2, False),
        (0.4, 0.2, False),
    ],
)
def test_fedlin_compressed(S, up, down, error_feedback):
    lr = lr_of(S) / 2
    algorithm = R.fedlin(lr, up and fs.TopK(up), down and fs.TopK(down), error_feedback=error_feedback)
    twin = T.fedlin(S, c.per_step(lr), up, down, error_feedback is not False)
    agree(S, algorithm, twin)


@pytest.mark.parametrize("name", ["sum", "softmax"])
@pytest.mark.parametrize(
    "weights, tau, block",
    [
        ("uniform", 3, 1),
        ("samples", (2, 4, 1, 3), 2),
        ("uniform", (9, 6, 10, 7), 1),  # H - 1 > n_i for some: components are visited again
        ("samples", (6, 6, 8, 2), 3),
        ("uniform", 4, 10),  # one component, the full gradient
    ],
)
def test_fedtrack(name, weights, tau, block):
    S = setting(name, weights, tau)
    lr = LR[name] / 8
    agree(S, R.fedtrack(lr, block), T.fedtrack(S, lr, block))


def test_fedtrack_weight_decay():
    """Weight decay is part of f_i, and so of the exchanged gradients, but not of the components."""
    S = setting("mean", "samples", (2, 4, 9, 3), weight_decay=0.3)
    agree(S, R.fedtrack(0.01, 2), T.fedtrack(S, 0.01, 2))


# ---------------------------------------------------------------- weight decay and clipping


REGULARISED = [
    pytest.param(setting(name, weights, weight_decay=decay, clip=clip), id=f"{name}-{weights}-decay{decay}-clip{clip}")
    for name, weights in (("sum", "samples"), ("softmax", "uniform"))
    for decay, clip in ((0.3, None), (0.3, 0.5))
]


@pytest.mark.slow
@pytest.mark.parametrize("S", REGULARISED)
def test_weight_decay_and_clipping(S):
    lr = lr_of(S)
    agree(S, R.fedavg(lr), T.fedavg(S, c.constant(lr)))
    agree(S, R.scaffold(lr), T.scaffold(S, c.constant(lr)))
    agree(S, R.fedlin(lr), T.fedlin(S, c.per_step(lr)))  # the exchanged gradients are not clipped
    agree(S, R.delta_sgd(0.05), T.fedavg(S, c.delta_sgd(0.05)))


@pytest.mark.slow
@pytest.mark.parametrize("S", [s for s in REGULARISED if s.values[0].clip is None])
def test_weight_decay(S):
    agree(S, R.fedsps(2.0, 0.1), T.fedavg(S, c.polyak(2.0, 0.1)))
    agree(S, R.feddecsps(lr_max=0.1), T.fedavg(S, c.decsps(lr_max=0.1)))
    agree(S, R.fedngn(0.1), T.fedavg(S, c.ngn(0.1)))
    agree(S, fs.Algorithm(fs.Polyak(2.0, 0.1), drift=fs.Scaffold()), T.scaffold(S, c.polyak(2.0, 0.1)))
    agree(S, R.fedsls(c=0.3), T.fedavg(S, c.armijo(c=0.3)))
    make = lambda q: torch.optim.Adam(q, lr=0.02)  # noqa: E731
    agree(S, fs.Algorithm(fs.Adam(0.02)), T.fedavg(S, c.torch_optimizer(make)))
    twin = T.fedlin(S, c.per_step(0.01), 2)  # what is compressed has weight decay in it
    agree(S, R.fedlin(0.01, fs.TopK(2)), twin)


# ---------------------------------------------------------------- partial participation


COHORTS = [[1, 3], [0, 2], [3], [0, 1, 2], [2, 1], [3, 0], [1], [2, 3], [0], [1, 2]]
partial = pytest.mark.parametrize(
    "S",
    [
        pytest.param(setting(name, weights, cohorts=COHORTS), id=f"{name}-{weights}")
        for name in ("mean", "network")
        for weights in ("uniform", "samples")
    ],
)


@pytest.mark.slow
@partial
def test_partial_participation(S):
    lr = lr_of(S) / 2
    agree(S, R.fedavg(lr), T.fedavg(S, c.constant(lr)))
    agree(S, R.scaffold(lr), T.scaffold(S, c.constant(lr)))
    agree(S, R.scaffold_exp(lr), T.scaffold(S, c.constant(lr), eps=1e-3), tol=1e-9)
    agree(S, R.feddyn(lr, alpha=0.7), T.feddyn(S, c.constant(lr), 0.7), columns=without("train_loss", "server_step"))
    agree(S, R.fedexp(lr), T.fedexp(S, c.constant(lr)), tol=1e-9)
    agree(S, R.feddog(lr, 0.1), T.feddog(S, c.constant(lr), 0.1))
    agree(S, R.fedschedulefree(lr), T.fedschedulefree(S, c.constant(lr)))
    agree(S, R.feddecsps(), T.fedavg(S, c.decsps()))
    agree(S, R.fednova(lr), T.fednova(S, c.constant(lr), T.nova_plain), columns=without("drift"))
    twin = T.fedlin(S, c.per_step(lr), 3, 2)
    agree(S, R.fedlin(lr, fs.TopK(3), fs.TopK(2)), twin)
    agree(S, R.fedtrack(lr / 4), T.fedtrack(S, lr / 4))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_moon_partial_participation(weights):
    S = setting("network", weights, cohorts=COHORTS)
    agree(S, R.moon(0.3), T.moon(S, c.constant(0.3)), columns=without("train_loss", "forwards"))


# ---------------------------------------------------------------- compressed updates


@some_settings
@pytest.mark.parametrize("error_feedback", [None, False], ids=["feedback", "without"])
def test_compressed_updates(S, error_feedback):
    lr = lr_of(S)
    twin = T.fedavg_compressed(S, c.constant(lr), 3, error_feedback is not False)
    agree(S, fs.Algorithm(step=fs.Constant(lr), up=fs.TopK(3), error_feedback=error_feedback), twin)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_ties_go_to_the_lowest_index(k):
    """Columns in pairs of equal magnitude: only the order of the indices decides."""
    P = LeastSquares((3, 4), d=8, mean=True)
    for i, A in enumerate(P.A):
        P.A[i] = np.repeat(A[:, :4], 2, axis=1) * np.tile([1.0, -1.0], 4)
    P.x0 = np.zeros(9)
    S = T.Setting(P, 1, rounds=1)
    twin = T.fedavg_compressed(S, c.constant(0.05), k, error_feedback=False)
    agree(S, fs.Algorithm(step=fs.Constant(0.05), up=fs.TopK(k), error_feedback=False), twin)
    twin = T.fedlin(S, c.per_step(0.05), k, k, error_feedback=False)
    agree(S, R.fedlin(0.05, fs.TopK(k), fs.TopK(k), error_feedback=False), twin)


# ---------------------------------------------------------------- bytes


def test_bytes():
    """d numbers of 8 bytes per vector on the wire; a TOP-k message has k numbers and k indices of 4 bytes."""
    S, d, sparse = setting("mean", cohorts=COHORTS), 5, 2 * (8 + 4)

    def per_client(algorithm, column):
        history = train(S, algorithm)[1].history
        return [row[column] / row["participants"] for row in history]

    def first_then(first, later):
        """A client's first message is whole; rounds 1 to 3 bring clients 1, 3 and 0, 2 for the first time."""
        return [first, first, later] + [later] * 7

    for algorithm, up, down in (
        (R.fedavg(0.05), d * 8, d * 8),
        (R.fedexp(0.05), d * 8 + 8, d * 8),  # |Delta_i|^2 beside the update
        (R.fednova(0.05), d * 8 + 8, d * 8),  # a_i
        (R.scaffold(0.05), 2 * d * 8, 2 * d * 8),
        (R.fedlin(0.05), 2 * d * 8, 2 * d * 8),  # gradients, then models
        (R.fedtrack(0.01), 2 * d * 8, 2 * d * 8),
    ):
        assert per_client(algorithm, "bytes_up") == [up] * 10, algorithm.name
        assert per_client(algorithm, "bytes_down") == [down] * 10, algorithm.name

    with_feedback = R.fedlin(0.05, fs.TopK(2), fs.TopK(2))
    assert per_client(with_feedback, "bytes_up") == first_then(2 * d * 8, d * 8 + sparse)
    assert per_client(with_feedback, "bytes_down") == [2 * d * 8] + [d * 8 + sparse] * 9
    without_feedback = R.fedlin(0.05, fs.TopK(2), fs.TopK(2), error_feedback=False)
    assert per_client(without_feedback, "bytes_up") == [d * 8 + sparse] * 10
    assert per_client(without_feedback, "bytes_down") == [d * 8 + sparse] * 10
    updates = fs.Algorithm(step=fs.Constant(0.05), up=fs.TopK(2))
    assert per_client(updates, "bytes_up") == first_then(d * 8, sparse)
    assert per_client(updates, "bytes_down") == [d * 8] * 10


# ---------------------------------------------------------------- minibatches


class Watched(LeastSquares):
    """Each target carries the number of its sample, so that the loss sees which batch it is given."""

    batches = None

    def clients(self):
        return [
            (torch.tensor(A), torch.tensor(np.stack([b, np.arange(len(b)) + 100 * i], 1)))
            for i, (A, b) in enumerate(zip(self.A, self.b, strict=True))
        ]

    def loss(self):
        def value(output, target):
            if self.batches is not None:
                client, rows = divmod(target[:, 1].numpy().astype(int), 100)
                self.batches.setdefault(client[0], []).append(rows)
            each = (output[:, 0] - target[:, 0]) ** 2
            return each.mean() if self.mean else 0.5 * each.sum()

        return value


def minibatches(mean, tau=(4, 5, 3, 2), batch_size=3, weights="samples"):
    """The batches of the clients, seen by the loss of a FedAvg run: they depend on seed, round and client alone."""
    P = Watched(SIZES, mean=mean)
    S = T.Setting(P, list(tau), weights=weights, batch_size=batch_size)

    def watch(event):
        P.batches = {} if event.round == 0 else P.batches

    fs.train(
        P.module(),
        P.loss(),
        P.clients(),
        R.fedavg(0.01),
        rounds=S.rounds,
        local_steps=S.tau,
        batch_size=batch_size,
        engine=fs.engine.Local(workers=1),
        callbacks=[watch],
    )
    seen, P.batches = P.batches, None
    assert [len(seen[i]) for i in range(S.N)] == [S.rounds * n for n in tau]
    S.batches = lambda t, i, k: seen[i][t * tau[i] + k]
    return S


@pytest.mark.slow
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_minibatches(mean):
    S = minibatches(mean)
    for i, n in enumerate(SIZES):
        epoch = np.concatenate([S.batches(3, i, k) for k in range(-(-n // 3)) if k < S.tau[i]])
        assert sorted(epoch) == list(range(n)), "an epoch visits every sample once"
    lr = 0.02
    agree(S, R.fedavg(lr), T.fedavg(S, c.constant(lr)))
    agree(S, R.scaffold(lr), T.scaffold(S, c.constant(lr)))
    agree(S, R.fedlin(lr), T.fedlin(S, c.per_step(lr)))
    for reset in ("keep", "max", "grow"):
        rule = {"c": 0.3, "backtrack": 0.7, "reset": reset}
        agree(S, R.fedsls(**rule), T.fedavg(S, c.armijo(**rule)))
    for reuse in (False, True):
        agree(S, R.delta_sgd(lr0=0.02, reuse_gradient=reuse), T.fedavg(S, c.delta_sgd(0.02, reuse_gradient=reuse)))
    twin = T.fedavg(S, c.polyak(2.0, growth=1.5, lr_max=0.2))
    agree(S, R.fedsps(2.0, growth=1.5, lr_max=0.2), twin)
