"""Recipes: named algorithms, of the five papers and of the methods they are compared with."""

from __future__ import annotations

from typing import Any

from fedstride.algorithm import Algorithm
from fedstride.algorithm.compose import recipe_of
from fedstride.algorithm.parts import PARTS
from fedstride.algorithm.registry import RECIPES as RECIPES
from fedstride.algorithm.registry import get as get
from fedstride.algorithm.registry import recipe
from fedstride.client.drift import GradientCorrection, Scaffold
from fedstride.client.gradient import IAG
from fedstride.client.objective import Ditto, FedDynObjective, FedSplitProx, Moon, Proximal
from fedstride.client.step import (
    NGN,
    AdamW,
    Armijo,
    CappedPolyak,
    Constant,
    DecSPS,
    DeltaSGD,
    Momentum,
    PerStep,
    Polyak,
)
from fedstride.client.step.schedule import Schedule
from fedstride.core.errors import InvalidInput, decay, nearest, positive
from fedstride.core.errors import betas as check_betas
from fedstride.server import (
    AdagradServer,
    AdamServer,
    Auto,
    Average,
    DAdaptation,
    DoG,
    FedDyn,
    FedExP,
    FedExPM,
    FedExProx,
    FedNova,
    FedSplit,
    Hypergradient,
    Prodigy,
    ScheduleFree,
    ServerMomentum,
    YogiServer,
)
from fedstride.wire import Compressor


@recipe
def auto() -> Algorithm:
    """No tuning: Polyak step sizes under an adaptive cap, server momentum of adaptive length, averaged read-out."""
    return Algorithm(CappedPolyak(), Auto(), readout="average", name="auto")


@recipe
def fedavg(lr: float = 0.1, server_lr: float = 1.0, schedule: Schedule | None = None) -> Algorithm:
    """Federated averaging with constant-step SGD on the clients."""
    return Algorithm(Constant(lr, schedule), Average(server_lr), name="fedavg")


@recipe
def fedavgm(lr: float = 0.1, server_lr: float = 1.0, beta: float = 0.9, schedule: Schedule | None = None) -> Algorithm:
    """FedAvg with momentum at the server."""
    return Algorithm(Constant(lr, schedule), ServerMomentum(server_lr, beta), name="fedavgm")


@recipe
def fedprox(lr: float = 0.1, mu: float = 0.01, server_lr: float = 1.0, schedule: Schedule | None = None) -> Algorithm:
    """FedAvg with a proximal term mu/2 |y - x|^2, which keeps clients near the global model."""
    return Algorithm(Constant(lr, schedule), Average(server_lr), Proximal(mu), name="fedprox")


@recipe
def fednova(
    lr: float = 0.1, server_lr: float = 1.0, beta: float = 0.0, mu: float = 0.0, schedule: Schedule | None = None
) -> Algorithm:
    """Updates normalised by each client's effective number of steps; beta is the clients' momentum."""
    decay("fednova", beta=beta)
    step = Momentum(lr, beta, schedule) if beta else Constant(lr, schedule)
    return Algorithm(step, FedNova(server_lr), Proximal(mu), name="fednova")


@recipe
def feddyn(lr: float = 0.1, alpha: float = 0.1, schedule: Schedule | None = None) -> Algorithm:
    """Dynamic regularisation, which aligns the clients' minima with the global one."""
    return Algorithm(Constant(lr, schedule), FedDyn(alpha), FedDynObjective(alpha), name="feddyn")


@recipe
def moon(
    lr: float = 0.1, mu: float = 1.0, temperature: float = 0.5, server_lr: float = 1.0, schedule: Schedule | None = None
) -> Algorithm:
    """Model-contrastive learning; the model needs a `features` method."""
    return Algorithm(Constant(lr, schedule), Average(server_lr), Moon(mu, temperature), name="moon")


@recipe
def ditto(lr: float = 0.1, lam: float = 0.1, server_lr: float = 1.0, schedule: Schedule | None = None) -> Algorithm:
    """FedAvg beside which each client trains a model of its own, near the shared one: lam/2 |v - x|^2."""
    return Algorithm(Constant(lr, schedule), Average(server_lr), Ditto(lam), name="ditto")


@recipe
def scaffold(lr: float = 0.1, server_lr: float = 1.0, schedule: Schedule | None = None) -> Algorithm:
    """Control variates against client drift."""
    return Algorithm(Constant(lr, schedule), Average(server_lr), drift=Scaffold(), name="scaffold")


@recipe
def fedadam(
    lr: float = 0.1,
    server_lr: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.99),
    tau: float = 1e-3,
    bias_correction: bool = False,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Adam at the server."""
    return Algorithm(Constant(lr, schedule), AdamServer(server_lr, betas, tau, bias_correction), name="fedadam")


@recipe
def fedadagrad(
    lr: float = 0.1,
    server_lr: float = 0.1,
    betas: tuple[float, float] = (0.0, 0.0),
    tau: float = 1e-3,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Adagrad at the server; only the first of the betas, the momentum, is used."""
    check_betas("fedadagrad", betas)
    return Algorithm(Constant(lr, schedule), AdagradServer(server_lr, betas[0], tau), name="fedadagrad")


@recipe
def fedyogi(
    lr: float = 0.1,
    server_lr: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.99),
    tau: float = 1e-3,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Yogi at the server."""
    return Algorithm(Constant(lr, schedule), YogiServer(server_lr, betas, tau), name="fedyogi")


@recipe
def fedexp(
    lr: float = 0.1,
    eps: float = 1e-3,
    server_lr_max: float | None = None,
    exact: bool = False,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Server extrapolation by the diversity of the updates; returns the mean of the last two iterates."""
    return Algorithm(Constant(lr, schedule), FedExP(eps, server_lr_max, exact), name="fedexp")


@recipe
def fedexpm(lr: float = 0.1, eps: float = 1e-3, beta: float = 0.9, schedule: Schedule | None = None) -> Algorithm:
    """FedExP with server momentum; returns the mean of the last two iterates."""
    return Algorithm(Constant(lr, schedule), FedExPM(eps, beta), name="fedexpm")


@recipe
def scaffold_exp(
    lr: float = 0.1, eps: float = 1e-3, server_lr_max: float | None = None, schedule: Schedule | None = None
) -> Algorithm:
    """FedExP's server on SCAFFOLD's clients."""
    return Algorithm(Constant(lr, schedule), FedExP(eps, server_lr_max), drift=Scaffold(), name="scaffold_exp")


@recipe
def fedexprox(
    lr: float = 0.1, gamma: float = 1.0, alpha: float | str = "grads", schedule: Schedule | None = None
) -> Algorithm:
    """Extrapolated proximal steps: clients approach the minimum of f_i + |y - x|^2 / (2 gamma)."""
    positive("fedexprox", gamma=gamma)
    return Algorithm(Constant(lr, schedule), FedExProx(alpha), Proximal(1 / gamma), name="fedexprox")


@recipe
def fedsls(
    lr_max: float = 1.0,
    c: float = 0.1,
    backtrack: float = 0.9,
    reset: str = "grow",
    growth: float = 2.0,
    server_lr: float = 1.0,
) -> Algorithm:
    """Armijo line search on the clients; a server step of at most 1."""
    positive("fedsls", server_lr=server_lr)
    if server_lr > 1:
        raise InvalidInput(f"fedsls: server_lr={server_lr!r} is above 1; FedSLS does not extrapolate; use fedexpsls.")
    return Algorithm(Armijo(lr_max, c, backtrack, reset, growth), Average(server_lr), name="fedsls")


@recipe
def fedexpsls(
    lr_max: float = 1.0,
    c: float = 0.1,
    backtrack: float = 0.9,
    reset: str = "grow",
    growth: float = 2.0,
    eps: float = 1e-3,
    server_lr_max: float | None = None,
) -> Algorithm:
    """Armijo line search on the clients, extrapolation at the server; returns the last iterate."""
    server = FedExP(eps, server_lr_max, last_two=False)
    return Algorithm(Armijo(lr_max, c, backtrack, reset, growth), server, name="fedexpsls")


@recipe
def delta_sgd(
    lr0: float = 0.2,
    theta0: float = 1.0,
    gamma: float = 2.0,
    delta: float = 0.1,
    reuse_gradient: bool = False,
    server_lr: float = 1.0,
) -> Algorithm:
    """Client step sizes that adapt to the local smoothness."""
    return Algorithm(DeltaSGD(lr0, theta0, gamma, delta, reuse_gradient), Average(server_lr), name="delta_sgd")


@recipe
def fedsps(
    c: float = 0.5,
    lr_max: float | None = None,
    f_star: float = 0.0,
    growth: float | None = None,
    server_lr: float = 1.0,
) -> Algorithm:
    """Stochastic Polyak step sizes on the clients."""
    return Algorithm(Polyak(c, lr_max, f_star, growth), Average(server_lr), name="fedsps")


@recipe
def fedlin(
    lr: float = 0.1,
    up: Compressor | None = None,
    down: Compressor | None = None,
    error_feedback: bool | None = None,
    server_lr: float = 1.0,
) -> Algorithm:
    """Gradient correction with steps lr / tau_i; exchanged gradients can be compressed."""
    drift = GradientCorrection()
    return Algorithm(
        PerStep(lr), Average(server_lr), drift=drift, up=up, down=down, error_feedback=error_feedback, name="fedlin"
    )


@recipe
def fedtrack(lr: float = 0.01, block: int = 1, server_lr: float = 1.0) -> Algorithm:
    """Gradient correction with incrementally aggregated gradients, `block` samples per component."""
    return Algorithm(Constant(lr), Average(server_lr), gradient=IAG(block), drift=GradientCorrection(), name="fedtrack")


@recipe
def fedsplit(prox: float = 0.1, lr: float = 0.05) -> Algorithm:
    """Operator splitting with `prox` = s and inner gradient steps of size lr; full participation only."""
    return Algorithm(Constant(lr), FedSplit(), FedSplitProx(prox), name="fedsplit")


@recipe
def feddog(lr: float = 0.1, r_eps: float = 1e-6, schedule: Schedule | None = None) -> Algorithm:
    """DoG at the server: step from the distance to the start over the size of past updates; averaged read-out."""
    return Algorithm(Constant(lr, schedule), DoG(r_eps), readout="average", name="feddog")


@recipe
def fedprodigy(
    lr: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    d0: float = 1e-6,
    eps: float = 1e-8,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Prodigy at the server: Adam whose rate is an estimate of the distance to the solution."""
    return Algorithm(Constant(lr, schedule), Prodigy(betas, d0, eps), name="fedprodigy")


@recipe
def feddadapt(lr: float = 0.1, d0: float = 1e-6, beta: float = 0.0, schedule: Schedule | None = None) -> Algorithm:
    """D-Adaptation of SGD at the server; beta is the momentum."""
    return Algorithm(Constant(lr, schedule), DAdaptation(d0, beta), name="feddadapt")


@recipe
def fedschedulefree(
    lr: float = 0.1, server_lr: float = 1.0, beta: float = 0.9, schedule: Schedule | None = None
) -> Algorithm:
    """Schedule-free SGD at the server; returns the mean of its iterates."""
    return Algorithm(Constant(lr, schedule), ScheduleFree(server_lr, beta), name="fedschedulefree")


@recipe
def fedhyper(lr: float = 0.1, bound: float = 3.0, schedule: Schedule | None = None) -> Algorithm:
    """FedHyper-G: a server step between 1/bound and bound that follows the agreement of successive updates."""
    return Algorithm(Constant(lr, schedule), Hypergradient(bound), name="fedhyper")


@recipe
def feddecsps(c0: float = 1.0, lr_max: float = 10.0, f_star: float = 0.0, server_lr: float = 1.0) -> Algorithm:
    """Stochastic Polyak step sizes on the clients that decrease over the run."""
    return Algorithm(DecSPS(c0, lr_max, f_star), Average(server_lr), name="feddecsps")


@recipe
def fedngn(sigma: float = 1.0, server_lr: float = 1.0) -> Algorithm:
    """Non-negative Gauss-Newton step sizes on the clients, at most sigma."""
    return Algorithm(NGN(sigma), Average(server_lr), name="fedngn")


@recipe
def fedadamw(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    server_lr: float = 1.0,
    schedule: Schedule | None = None,
) -> Algorithm:
    """Federated averaging with AdamW on the clients, whose moments restart in every round."""
    return Algorithm(AdamW(lr, betas, eps, weight_decay, schedule), Average(server_lr), name="fedadamw")


for _part in (part for parts in PARTS.values() for part in parts.values() if vars(part).get("recipe")):
    recipe(recipe_of(_part))


def __getattr__(name: str) -> Any:
    if name in RECIPES:
        return RECIPES[name]
    raise AttributeError(f"fedstride.recipes has no recipe {name!r}; {nearest(name, RECIPES)}")
