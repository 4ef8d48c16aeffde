"""Counterexamples of FedLin's paper: FedSplit's divergence, and steps that are too long for FedLin.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin).
Deviations: the paper does not state numbers of rounds, so we chose them.
"""

from __future__ import annotations

from functools import partial
from math import exp, sqrt

import torch

from fedstride.algorithm.recipes import fedlin, fedsplit
from fedstride.app.sweep import Cell, Result
from fedstride.research.papers.experiment import Claim, Lab, Outcome, Picture, curves, experiment
from fedstride.research.papers.fedlin import HERE, span
from fedstride.research.verify.fedlin import matrix_57, recurrence
from fedstride.research.verify.problems import LeastSquares, iterates

# App. J: FedSplit.

FIGURE_5 = (1, 2, 40, 41)


def appendix_j(L: float, mu: float = 1.0) -> LeastSquares:
    """f_1 = x'diag(L, mu)x/2 - (1, 1)x, f_2 = mu |x|^2/2 - (-1, 2)x."""
    root = torch.tensor([[sqrt(L), sqrt(mu)], [sqrt(mu), sqrt(mu)]], dtype=torch.float64)
    b = torch.tensor([[1.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    return LeastSquares([r.diag() for r in root], list(b / root))


def split(L: float, e: int, rounds: int) -> Result:
    """Return the spectral radius of the round map, the distance of its fixed point to x*, and that of the iterates."""
    problem, s = appendix_j(L), 1 / sqrt(L)
    algorithm = fedsplit(prox=s, lr=s / (1 + s * (L + 1) / 2))  # Pathak and Wainwright, corollary 1
    xs, _ = iterates(problem, torch.zeros(2, dtype=torch.float64), algorithm, rounds, local_steps=e, engine=HERE)
    star = problem.minimiser
    radius, fixed = zip(*(recurrence(torch.stack(xs[:7])[:, j]) for j in range(2)), strict=True)
    bias = float((torch.tensor(fixed) - star).norm())
    return {"radius": max(radius), "bias": bias, "distance": [float((x - star).norm()) for x in xs]}


@experiment("fedlin-J", "FedSplit on two quadratics: odd numbers of local steps diverge (FedLin, figure 5)")
def fedsplit_diverges(lab: Lab) -> Outcome:
    ours, steeper = _by_steps(lab, 1000.0, range(1, 42)), _by_steps(lab, 2000.0, range(42, 62))
    calm = _calm(ours)
    figures = {"radius": {str(e): ours[e]["radius"] for e in ours}, "bias": {str(e): ours[e]["bias"] for e in calm}}
    about = {"L": 1000, "mu": 1, "s": "1 / sqrt(L mu)", "inner step": "s / (1 + s (L + mu) / 2)", "start": "0"}
    return Outcome(_divergence(lab, ours, steeper), _radii(ours), figures, about)


def _by_steps(lab: Lab, L: float, es: range) -> dict[int, Result]:
    cells = {
        e: Cell(f"fedlin-J L={L:g} e={e}", split, {"L": L, "e": e, "rounds": 60 if e in FIGURE_5 else 6}) for e in es
    }
    found = lab.run(list(cells.values()), workers=1)
    return {e: found[cell.name] for e, cell in cells.items()}


def _calm(ours: dict[int, Result]) -> list[int]:
    """Return the even numbers of local steps with which runs converge."""
    return [e for e in ours if e % 2 == 0 and ours[e]["radius"] < 1]


def _divergence(lab: Lab, ours: dict[int, Result], steeper: dict[int, Result]) -> list[Claim]:
    judge = partial(lab.judge, full=True)
    odd, calm = [e for e in ours if e % 2], _calm(ours)
    wild = [e for e in odd if ours[e]["radius"] > 1]
    later = [e for e in steeper if steeper[e]["radius"] > 1]
    biased = [ours[e]["bias"] for e in calm]
    return [
        judge(
            "odd e from 1 to 41",
            "all diverge",
            f"{len(wild)} of {len(odd)} diverge (spectral radius {span([ours[e]['radius'] for e in odd])})",
            wild == odd,
        ),
        judge(
            "even e from 2 to 40",
            "some converge",
            f"{len(calm)} of {len(ours) - len(odd)} converge",
            bool(calm),
        ),
        judge(
            "even e: where to",
            "a neighbourhood of the minimum",
            f"a point {span(biased)} away from x*" if calm else "nowhere",
            bool(calm) and min(biased) > 1e-6 and max(biased) < 1,
        ),
        judge(
            "kappa beyond 1000",
            "values of e above 41 diverge, too",
            f"with kappa = 2000, e = {', '.join(map(str, later)) or 'none'} of 42 to 61",
            bool(later),
        ),
    ]


def _radii(ours: dict[int, Result]) -> list[Picture]:
    odd, even = ([e for e in ours if e % 2 == k] for k in (1, 0))
    return [
        curves(
            "FedSplit",
            "Distance to x*.",
            {f"e = {e}": (range(61), ours[e]["distance"]) for e in FIGURE_5},
            y="|x - x*|",
            log=True,
        ),
        curves(
            "Spectral radius of a round",
            "Above 1 a run diverges. kappa = 1000.",
            {name: (es, [ours[e]["radius"] for e in es]) for name, es in (("odd e", odd), ("even e", even))},
            x="e, local steps",
            y="spectral radius",
        ),
    ]


# App. E: why the step must shrink with H.


def appendix_e(L: float) -> LeastSquares:
    """f_1 = |x|^2/2 + b'x, f_2 = x'diag(L, 1)x/2 - b'x; x* = 0 for any b."""
    b = torch.tensor([3.0, -2.0], dtype=torch.float64)
    root = torch.tensor([sqrt(L), 1.0], dtype=torch.float64)
    return LeastSquares([torch.eye(2, dtype=torch.float64), root.diag()], [-b, b / root])


def round_map(L: float, H: int, eta: float) -> Result:
    """Return the spectral radius, the second eigenvalue and the distance to eq. (57) of M in x_t+1 = M x_t."""
    problem, unit = appendix_e(L), torch.eye(2, dtype=torch.float64)
    columns = [iterates(problem, e, fedlin(lr=eta * H), 1, local_steps=H, engine=HERE)[0][-1] for e in unit]
    M = torch.stack(columns, 1)
    radius, known = float(torch.linalg.eigvals(M).abs().max()), matrix_57(eta, H, L)
    wrong = float(((M - known).abs() / known.abs().clamp(min=1)).max())
    return {"radius": radius, "second": float(M[1, 1]), "wrong": wrong}


@experiment(
    "fedlin-E", "FedLin on two quadratics: the step must be shorter than 1/H (FedLin, theorem 5 and appendix E)"
)
def lower_bound(lab: Lab) -> Outcome:
    judge = partial(lab.judge, full=True)
    grid = [(L, H) for L in (14.0, 100.0) for H in (2, 10, 30)]
    shares = [k / 10 for k in range(1, 16)]
    cells = {
        (L, H, share): Cell(f"fedlin-E L={L:g} H={H} eta H={share:.6g}", round_map, {"L": L, "H": H, "eta": share / H})
        for L, H in grid
        for share in (*shares, 1 / (6 * L))
    }
    found = lab.run(list(cells.values()), workers=1)
    maps = {key: found[cell.name] for key, cell in cells.items()}
    long = [m["radius"] for (_, _, share), m in maps.items() if share >= 1]
    short = [m["radius"] for (L, _, share), m in maps.items() if share == 1 / (6 * L)]
    stable = [m["second"] ** 2 for m in maps.values() if m["radius"] < 1]
    wrong = max(m["wrong"] for m in maps.values())
    claims = [
        judge("matrix of a round", "eq. (57)", f"at most {wrong:.1g} away", wrong < 1e-10),
        judge(
            "eta >= 1/H, L >= 14, H >= 2",
            "not Schur stable",
            f"spectral radius {span(long)}",
            min(long) > 1,
        ),
        judge("eta = 1/(6LH)", "Schur stable", f"spectral radius {span(short)}", max(short) < 1),
        judge(
            "factor of f in a round from (0, beta), for every stable eta",
            f"at least exp(-4) = {exp(-4):.3g}",
            f"at least {min(stable):.3g}",
            min(stable) >= exp(-4),
        ),
    ]
    lines = {f"L = {L:g}, H = {H}": (shares, [maps[L, H, share]["radius"] for share in shares]) for L, H in grid}
    range_of = {"range": [-0.5, 1.5], "dtick": "D2", "tickformat": "~g"}  # log10
    words = "Above 1 a run diverges.", lines
    picture = curves("Spectral radius of a round", *words, x="eta H", y="spectral radius", log=True, yaxis=range_of)
    figures = {"least radius with eta >= 1/H": min(long), "largest radius with eta = 1/(6LH)": max(short)}
    return Outcome(claims, [picture], figures, {"L": (14, 100), "H": (2, 10, 30)})
