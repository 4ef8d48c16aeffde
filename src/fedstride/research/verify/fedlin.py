"""Laws of FedLin, and of the other algorithms that its paper shows to fail.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin).
Deviations: for appendix K the law uses etabar = 1/L, about 1/260 for the sum loss printed there, which the theorems
cover. The appendix's 0.15 and 0.1 are far longer, and also converge (`fedstride reproduce fedlin-K`).
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, sqrt

import torch
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedlin, fednova, fedprox, fedsplit
from fedstride.client.gradient import Noisy
from fedstride.core.rows import Vec, sq
from fedstride.research.verify.law import Measured, law
from fedstride.research.verify.problems import (
    LeastSquares,
    descended,
    descent,
    hard_start,
    iterates,
    least_curvature,
    near,
    random_least_squares,
    ratios,
    robust,
    slowest,
)
from fedstride.wire import TopK

Recipe = Callable[..., Algorithm]
Compress = Callable[[Tensor, int], Tensor]


@law("FedLin Thm 9")
def heterogeneous(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(condition=5)
    for H in (1, 4, 16):
        factor = slowest(p, make(lr=1 / (6 * p.L)), 10, local_steps=H)
        yield f"FedLin, H = {H}: factor of f - f* per round", factor, "<=", 1 - p.mu / (6 * p.L)


@law("FedLin Prop 3")
def identical_clients(make: Recipe = fedlin) -> Iterator[Measured]:
    one = random_least_squares(clients=1)
    p = LeastSquares([*one.A] * 3, [*one.b] * 3)
    for H in (1, 4):
        factor = slowest(p, make(lr=H / p.L), 10, local_steps=H) ** (1 / H)
        yield f"FedLin, 3 equal clients, H = {H}: factor of f - f* per step", factor, "<=", 1 - p.mu / p.L


@law("FedLin Thm 1")
def unequal_work(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(condition=5)
    factor = slowest(p, make(lr=1 / (6 * p.L)), 10, local_steps=[1, 2, 5, 15, 40])
    yield "FedLin, 1 to 40 local steps: factor of f - f* per round", factor, "<=", 1 - p.mu / (6 * p.L)


@law("FedLin Thm 3")
def non_convex(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(d=4, mean=True)
    afar, T = near(p.minimiser), 20
    yield "robust regression: least curvature at the start", least_curvature(p, robust, afar), "<", 0
    for name, x0 in (("", afar), (", nearly stationary", descended(p, robust, afar, 1e-5))):
        xs, _ = iterates(p, x0, make(lr=1 / (26 * p.L)), T, loss=robust, local_steps=[1, 2, 5, 10, 20])
        f, g = descent(p, robust, xs)
        yield f"FedLin, non-convex{name}: min |grad f|^2", min(g[:-1]), "<=", 52 * p.L * (f[0] - f[T]) / T
        least = p.L * min((f[t] - f[t + 1]) / g[t] for t in range(T))
        yield f"FedLin, non-convex{name}: L decrease / |grad f|^2", least, ">=", 1 / 52  # eq. (87)


@law("FedLin Thm 4")
def noisy_gradients(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(d=4)
    star, eta, small, large = p.minimiser, 1 / (12 * p.L), 1.0, 100.0

    def errors(x: Vec, sigma: float, rounds: int, seeds: int) -> Tensor:
        """Return |x_t - x*|^2 averaged over the seeds; sigma^2 = E|noise|^2 is d times the variance of a coordinate."""
        noisy = replace(make(lr=eta), gradient=Noisy(sigma / sqrt(len(x))))
        runs = [iterates(p, x, noisy, rounds, seed=s, local_steps=[1, 2, 3, 2, 1])[0] for s in range(seeds)]
        return torch.stack([torch.stack([sq(x - star) for x in xs]) for xs in runs]).mean(0)

    for sigma in (small, large):
        e = errors(near(star), sigma, rounds=5, seeds=10)
        worst = float((e[1:] / ((1 - eta * p.mu / 2) * e[:-1] + 25 * eta**2 * sigma**2)).max())
        yield f"FedLin, noise {sigma:g}: mean of |x - x*|^2, share of its bound", worst, "<=", 1  # eq. (109)
    floor = {sigma: float(errors(star, sigma, rounds=40, seeds=2)[20:].mean()) for sigma in (small, large)}
    yield f"FedLin, noise {large:g}: floor of |x - x*|^2", floor[large], "<=", 50 * eta * large**2 / p.mu
    growth = floor[large] / floor[small]  # linear in sigma^2
    yield f"FedLin, noise {large:g} over noise {small:g}: floor of |x - x*|^2", growth, ">", (large / small) ** 2 / 2


@law("FedLin Thm 5, App. E")
def lower_bound(make: Recipe = fedlin) -> Iterator[Measured]:
    L, b = 14.0, torch.tensor([3.0, -2.0], dtype=torch.float64)
    root = torch.tensor([sqrt(L), 1.0], dtype=torch.float64)
    p = LeastSquares([torch.eye(2, dtype=torch.float64), root.diag()], [-b, b / root])  # f_1, f_2 of app. E, x* = 0

    def round_map(eta: float, H: int) -> Tensor:
        """Return the matrix M of x_t+1 = M x_t, computed column by column."""
        algorithm = make(lr=eta * H)
        return torch.stack([iterates(p, e, algorithm, 1, local_steps=H)[0][-1] for e in torch.eye(2).double()], 1)

    for H in (2, 10, 30):
        long, short = 1 / H, 1 / (6 * L * H)
        wrong = max(float((round_map(eta, H) - matrix_57(eta, H, L)).abs().max()) for eta in (long, short))
        yield f"FedLin on app. E, H = {H}: distance to the matrix of eq. (57)", wrong, "<=", 1e-12
        radius = [float(torch.linalg.eigvals(round_map(eta, H)).abs().max()) for eta in (long, short)]
        yield f"FedLin on app. E, H = {H}, eta = 1/H: spectral radius", radius[0], ">", 1
        yield f"FedLin on app. E, H = {H}, eta = 1/(6LH): spectral radius", radius[1], "<", 1
        factor = float(round_map(long, H)[1, 1]) ** 2
        yield f"FedLin on app. E, H = {H}, eta = 1/H: factor of f from (0, 1)", factor, ">=", exp(-4)  # eq. (60)


def matrix_57(eta: float, H: int, L: float) -> Tensor:
    first = ((1 - eta) ** H + (1 - eta * L) ** H / L) * (L + 1) / 4 - (L - 1) ** 2 / (4 * L)
    return torch.tensor([[first, 0], [0, (1 - eta) ** H]], dtype=torch.float64)


@law("FedLin Lemma 14")
def top_k(compress: Compress = lambda V, k: TopK(k).compress(V)) -> Iterator[Measured]:
    d = 12
    source = torch.Generator().manual_seed(0)
    V = torch.randn(100, d, generator=source, dtype=torch.float64)
    V[50:] = V[50:].sign()  # ties, where properties 2 and 3 hold with equality
    pairs = [(k, compress(V, k)) for k in range(1, d + 1)]
    first = max(float(((C * V).sum(1, keepdim=True) - sq(C)).abs().max()) for _, C in pairs)
    yield "TOP-k: |<C(x), x> - |C(x)|^2|", first, "<=", 1e-12
    yield "TOP-k: d |C(x)|^2 - k |x|^2", min(float((d * sq(C) - k * sq(V)).min()) for k, C in pairs), ">=", 0
    third = max(float((d * sq(V - C) - (d - k) * sq(V)).max()) for k, C in pairs)
    yield "TOP-k: d |x - C(x)|^2 - (d - k) |x|^2", third, "<=", 0


@law("FedLin Thm 6")
def server_top_k(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(d=8, condition=5)
    for k in (4, 1):
        delta = 8 / k
        slow = 2 * (2 + sqrt(delta))
        algorithm = make(lr=1 / (slow * p.L), down=TopK(k), error_feedback=False)
        factor, bound = slowest(p, algorithm, 20, local_steps=[1, 2, 3, 4, 5]), 1 - p.mu / (slow * delta * p.L)
        yield f"FedLin, server TOP-{k} of 8: factor of f - f* per round", factor, "<=", bound


@law("FedLin Thm 7")
def server_top_k_with_feedback(make: Recipe = fedlin) -> Iterator[Measured]:
    p = random_least_squares(clients=3, samples=2000, d=4)  # well conditioned: the rate is slow, 1 - 1/(96 delta kappa)
    delta, T = 2, 200
    algorithm = make(lr=1 / (72 * p.L * delta), down=TopK(4 // delta))
    xs, _ = iterates(p, hard_start(p), algorithm, T, local_steps=[1, 2, 3])
    e = [float(sq(x - p.minimiser)) for x in xs]
    rate = 1 - p.mu / (96 * delta * p.L)
    worst = max(e[t] / (2 * rate**t * e[0]) for t in range(1, T + 1))
    yield "FedLin, server TOP-2 of 4 with feedback: |x - x*|^2, share of its bound", worst, "<=", 1
    yield f"FedLin, server TOP-2 of 4 with feedback: the same after {T} rounds", e[T] / (2 * rate**T * e[0]), "<=", 1


@law("FedLin Thm 8")
def client_top_k(make: Recipe = fedlin) -> Iterator[Measured]:
    one = random_least_squares(clients=1, samples=200, d=4)
    source = torch.Generator().manual_seed(2)
    b = [one.b[0] + torch.randn(200, generator=source, dtype=torch.float64) for _ in range(4)]
    p = LeastSquares(
        [*one.A] * 4, b
    )  # one Hessian, so that mean |grad f_i|^2 = |grad f|^2 + D: assumption 1 with C = 1
    delta, T = 2, 100
    D = float(sum(sq(A.T @ (A @ p.minimiser - b)) for A, b in p.clients)) / len(b)
    eta = 1 / (72 * p.L * delta)
    xs, _ = iterates(p, hard_start(p), make(lr=eta, up=TopK(4 // delta)), T, local_steps=[1, 2, 3, 4])
    e = [float(sq(x - p.minimiser)) for x in xs]
    floor = 16 / 3 * eta * (6 / delta + delta) * D / p.mu
    shares = [e[t] / (2 * (1 - 0.75 * eta * p.mu) ** t * e[0] + floor) for t in range(1, T + 1)]  # eq. (141)
    yield "FedLin, client TOP-2 of 4: |x - x*|^2, share of its bound", max(shares), "<=", 1
    yield f"FedLin, client TOP-2 of 4: the same after {T} rounds", shares[-1], "<=", 1


def logistic_sum(output: Tensor, target: Tensor) -> Tensor:
    """sum log(1 + exp(-b a'x)), eq. (156); logaddexp, because softplus is linear beyond 20."""
    margin = -output * target
    return torch.logaddexp(margin, torch.zeros_like(margin)).sum()


@law("FedLin App. K")
def logistic_regression(make: Recipe = fedlin) -> Iterator[Measured]:
    p, tau = appendix_k()
    A, b = torch.cat(list(p.A)), torch.cat(list(p.b))
    star, slope = newton(A, b)
    yield "logistic regression: |grad f| at the minimiser found", slope, "<=", 1e-10
    L = p.L / 4  # the logistic loss is 1/4-smooth

    def gap(x: Vec) -> float:
        """Return f(x) - f*."""
        return float(logistic_sum(A @ x, b) - logistic_sum(A @ star, b)) / len(p.A)

    def floor(k: int, rounds: int) -> float:
        xs, _ = iterates(p, star, make(lr=1 / L, up=TopK(k)), rounds, loss=logistic_sum, local_steps=tau)
        return sum(map(gap, xs[rounds // 2 :])) / len(xs[rounds // 2 :])

    yield "FedLin from x*, clients send all of 100: f - f*", floor(100, 2), "<=", 1e-10
    most = floor(80, 10)
    yield "FedLin from x*, client TOP-80 of 100: floor of f - f*", most, ">", 1e-5
    yield "FedLin from x*, floor with TOP-60 over floor with TOP-80", floor(60, 10) / most, ">", 1.5
    algorithm = make(lr=1 / L, down=TopK(25), error_feedback=False)
    xs, _ = iterates(p, near(star), algorithm, 8, loss=logistic_sum, local_steps=tau)
    yield "FedLin near x*, server TOP-25 of 100: factor of f - f* per round", max(ratios([*map(gap, xs)])), "<", 1


def appendix_k() -> tuple[LeastSquares, list[int]]:
    """Return 10 clients with 500 x 100 Gaussian features and labels of a logistic model, and 2 to 50 local steps."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(100, generator=source, dtype=torch.float64)
    A = [torch.randn(500, 100, generator=source, dtype=torch.float64) for _ in range(10)]
    luck = [torch.rand(500, generator=source, dtype=torch.float64) for _ in A]
    b = [2.0 * (u < torch.sigmoid(a @ x)) - 1 for a, u in zip(A, luck, strict=True)]  # eq. (155)
    tau: list[int] = torch.randint(2, 51, (10,), generator=source).tolist()
    return LeastSquares(A, [labels.double() for labels in b]), tau


def newton(A: Tensor, b: Tensor) -> tuple[Vec, float]:
    """Return the minimiser of logistic_sum and the gradient's norm there; steps that do not descend are halved."""
    x = A.new_zeros(A.shape[1])
    for _ in range(50):
        s = torch.sigmoid(-b * (A @ x))
        g, H = -A.T @ (b * s), (A.T * (s * (1 - s))) @ A
        step = torch.linalg.solve(H, g)
        if float(g.norm()) < 1e-11:
            break
        while logistic_sum(A @ (x - step), b) > logistic_sum(A @ x, b):
            step = step / 2
        x = x - step
    return x, float(g.norm())


@law("FedLin Prop 1")
def fedavg_and_fedprox(make_fedavg: Recipe = fedavg, make_fedprox: Recipe = fedprox) -> Iterator[Measured]:
    p, H, beta = random_least_squares(), 5, 20.0
    eta = 1 / p.L
    yield from _surrogate("FedAvg", p, make_fedavg(lr=eta), eta, 0.0, [H] * 5, [1.0] * 5)
    eta = 1 / (p.L + beta)
    yield from _surrogate("FedProx", p, make_fedprox(lr=eta, mu=beta), eta, beta, [H] * 5, [1.0] * 5)


@law("FedLin Prop 2")
def fednova_too(make: Recipe = fednova) -> Iterator[Measured]:
    p, tau = random_least_squares(), [1, 2, 4, 8, 16]
    alpha = [sum(tau) / len(tau) / t for t in tau]  # tau_eff / tau_i
    eta = 1 / (3 * p.L)
    yield from _surrogate("FedNova", p, make(lr=eta), eta, 0.0, tau, alpha)


def _surrogate(
    name: str, p: LeastSquares, algorithm: Algorithm, eta: float, beta: float, tau: list[int], alpha: list[float]
) -> Iterator[Measured]:
    """The run is gradient descent on the surrogate sum |(Q_i A_i)^(1/2) (x - c_i)|^2 / 2m (FedLin app. B)."""
    eye = torch.eye(p.A[0].shape[1], dtype=torch.float64)
    H, c = [], []
    for i, (A, b) in enumerate(p.clients):
        Ai, shrink = p.hessian(i), eye - eta * (p.hessian(i) + beta * eye)
        Q = alpha[i] * sum(torch.linalg.matrix_power(shrink, l) for l in range(tau[i]))  # eq. (19), (27)
        H.append(Q @ Ai)
        c.append(torch.linalg.solve(Ai, A.T @ b))
    M, r = torch.stack(H).mean(0), torch.stack([h @ x for h, x in zip(H, c, strict=True)]).mean(0)
    goal, star = torch.linalg.solve(M, r), p.minimiser
    xs, _ = iterates(p, hard_start(p), algorithm, 60, local_steps=tau)
    wrong = max(float((xs[t + 1] - (xs[t] - eta * (M @ xs[t] - r))).norm()) for t in range(5))
    yield f"{name}: distance of a round to a gradient step on the surrogate", wrong, "<=", 1e-12  # eq. (25)
    yield f"{name}: distance to the surrogate's minimiser in the end", float((xs[-1] - goal).norm()), "<=", 1e-9
    yield f"{name}: distance to x* in the end", float((xs[-1] - star).norm()), ">", 1e-2


@law("FedLin App. J")
def fedsplit_diverges(make: Recipe = fedsplit) -> Iterator[Measured]:
    L, mu = 1000.0, 1.0
    root = torch.tensor([[sqrt(L), sqrt(mu)], [sqrt(mu), sqrt(mu)]], dtype=torch.float64)
    b = torch.tensor([[1.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    p = LeastSquares([r.diag() for r in root], list(b / root))
    s = 1 / sqrt(L * mu)
    algorithm = make(prox=s, lr=s / (1 + s * (L + mu) / 2))  # Pathak and Wainwright, corollary 1

    def limit(e: int) -> tuple[float, float]:
        """Return the spectral radius of the round map, and the distance of its fixed point to x*."""
        xs, _ = iterates(p, torch.zeros(2, dtype=torch.float64), algorithm, 6, local_steps=e)
        radius, fixed = zip(*(recurrence(torch.stack(xs)[:, j]) for j in range(2)), strict=True)
        return max(radius), float((torch.tensor(fixed) - p.minimiser).norm())

    for e, known in ((1, 1.658), (41, 1.011)):
        yield f"FedSplit, e = {e}: spectral radius", limit(e)[0], ">", 1
        yield f"FedSplit, e = {e}: spectral radius - {known}", abs(limit(e)[0] - known), "<=", 5e-4
    yield "FedSplit, every odd e to 43: least spectral radius", min(limit(e)[0] for e in range(1, 44, 2)), ">", 1
    yield "FedSplit, every even e to 44: largest spectral radius", max(limit(e)[0] for e in range(2, 45, 2)), "<", 1
    for e, error, digits in ((2, 0.026, 5e-4), (40, 0.0025, 5e-5)):
        radius, bias = limit(e)
        yield f"FedSplit, e = {e}: spectral radius", radius, "<", 1
        yield f"FedSplit, e = {e}: distance of the limit to x*, minus {error}", abs(bias - error), "<=", digits


def recurrence(x: Tensor) -> tuple[float, float]:
    """Return the largest root in modulus and the fixed point of x_t+2 = a x_t+1 + b x_t + c.

    The Hessians of app. J are diagonal, so a coordinate depends only on its own (z_1, z_2): a 2 x 2 round map,
    whose characteristic polynomial the iterates satisfy.
    """
    known = torch.stack([x[1:-1], x[:-2], torch.ones_like(x[2:])], 1)
    a, b, c = torch.linalg.lstsq(known, x[2:, None], driver="gelsd").solution[:, 0].tolist()
    root = cmath.sqrt(a**2 + 4 * b)
    return max(abs(a + root), abs(a - root)) / 2, c / (1 - a - b)
