"""Two clients in the plane: the toy examples of FedSLS (line search) and FedExP (extrapolation).

Deviations: FedExP does not state the start of figure 2; we start at (1, -1), which is nearer to S_1* than to S_2*.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector

from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import fedavg, fedexp, fedexpsls, fedsls
from fedstride.app.report import theme
from fedstride.app.report.charts import line
from fedstride.app.sweep import Cell, Result
from fedstride.client.step import Polyak
from fedstride.engine import Local
from fedstride.research.papers.experiment import Lab, Outcome, Picture, curves, experiment
from fedstride.research.verify import fedexp as eq12
from fedstride.research.verify import fedsls as fig1
from fedstride.research.verify.problems import LeastSquares, iterates
from fedstride.server import Average, FedExP

PROJECTION = Polyak(c=0.5)  # one such step minimises a client's loss: tau -> infinity in FedExP sec. 5
PROBLEMS = {"fig1": fig1.toy, "eq12": eq12.toy}
METHODS: dict[str, dict[str, Algorithm]] = {
    "fig1": {
        "FedExpSLS": fedexpsls(lr_max=1.0, c=0.1, eps=0.0),
        "FedExP": fedexp(lr=0.01, eps=0.0),
        "FedSLS": fedsls(lr_max=1.0, c=0.1),
        "FedAvg": fedavg(lr=0.01),
    },
    "eq12": {
        "FedExP": Algorithm(PROJECTION, FedExP(eps=0.0, exact=True)),
        "FedAvg": Algorithm(PROJECTION, Average()),
    },
}


def path(toy: str, method: str, start: list[float], rounds: int, steps: int) -> Result:
    """Return the iterates, F at each, F at the returned model, and the server's steps."""
    problem = PROBLEMS[toy]()
    x0 = torch.tensor(start, dtype=torch.float64)
    xs, run = iterates(problem, x0, METHODS[toy][method], rounds, local_steps=steps, engine=Local(chunk=2))
    final = problem.gap(parameters_to_vector(run.model.parameters()).detach())
    steps_taken = [row["server_step"] for row in run.history]
    return {
        "x": [x.tolist() for x in xs],
        "F": [problem.gap(x) for x in xs],
        "final": final,
        "server_step": steps_taken,
    }


@experiment("fedsls-fig1", "Two clients in the plane: line search and extrapolation together (FedSLS, figure 1)")
def figure_1(lab: Lab) -> Outcome:
    judge = partial(lab.judge, full=True)
    setting: dict[str, Any] = {"toy": "fig1", "start": [0.24, 1.0], "rounds": 50, "steps": 10}
    found = lab.run([Cell(f"fedsls-fig1 {m}", path, {**setting, "method": m}) for m in METHODS["fig1"]], workers=1)
    runs = {m: found[f"fedsls-fig1 {m}"] for m in METHODS["fig1"]}
    final = {m: run["final"] for m, run in runs.items()}
    ranked, others = sorted(final, key=final.__getitem__), [m for m in final if m != "FedExpSLS"]
    order = " < ".join(f"{m} {final[m]:.2g}" for m in ranked)
    lowest = min(final[m] for m in others)
    claims = [
        judge("final F, in order", " < ".join(final), order, ranked == list(final)),
        judge(
            "line search and extrapolation together against either alone, final F",
            "lower",
            f"{final['FedExpSLS']:.2g} against {lowest:.2g}",
            final["FedExpSLS"] < lowest,
        ),
    ]
    rounds = list(range(setting["rounds"] + 1))
    pictures = [
        curves(
            "F over the rounds",
            "Mean of the two clients' losses.",
            {m: (rounds, r["F"]) for m, r in runs.items()},
            y="F",
            log=True,
        ),
        _paths(
            "The way to the minimum",
            "Iterates over the lines of equal F; the cross is where both losses vanish.",
            fig1.toy(),
            runs,
        ),
    ]
    about = {
        "F_1": "(w1 + w2 - 3)^2",
        "F_2": "(w1 + 2 w2 - 3)^2",
        **setting,
        "lr": 0.01,
        "eps": 0,
        "c": 0.1,
        "lr_max": 1,
    }
    return Outcome(claims, pictures, {"final": final}, about)


@experiment(
    "fedexp-eq12", "Two clients in the plane: F oscillates while the distance falls (FedExP, equation 12 and figure 2)"
)
def equation_12(lab: Lab) -> Outcome:
    judge = partial(lab.judge, full=True)
    setting: dict[str, Any] = {"toy": "eq12", "rounds": 10, "steps": 1}
    cells = [Cell(f"fedexp-eq12 {m}", path, {**setting, "method": m, "start": [1.0, -1.0]}) for m in METHODS["eq12"]]
    cells.append(Cell("fedexp-eq12 from S_1", path, {**setting, "method": "FedExP", "start": [1.0, 0.0], "rounds": 1}))
    found = lab.run(cells, workers=1)
    runs = {m: found[f"fedexp-eq12 {m}"] for m in METHODS["eq12"]}
    problem, solution = eq12.toy(), torch.tensor([0.0, 3.0], dtype=torch.float64)
    points = {m: torch.tensor(run["x"], dtype=torch.float64) for m, run in runs.items()}
    square = {m: (x - solution).square().sum(1).tolist() for m, x in points.items()}
    ours, F = square["FedExP"], runs["FedExP"]["F"]
    x = points["FedExP"]
    means = [problem.gap(w) for w in (x[1:] + x[:-1]) / 2]
    rises = sum(new > old for old, new in pairwise(F))
    falls = sum(new < old for old, new in pairwise(ours))
    better = sum(mean < last for mean, last in zip(means[1:], F[2:], strict=True))
    rounds, first = len(ours) - 1, found["fedexp-eq12 from S_1"]["server_step"][0]
    claims = [
        judge(
            "|w - w*|^2 under FedExP",
            "decreases monotonically",
            f"falls in {falls} of {rounds} rounds",
            falls == rounds,
        ),
        judge("F under FedExP", "oscillates", f"rises in {rises} of {rounds} rounds", 0 < rises < rounds),
        judge(
            "F at the mean of the last two iterates, against the last",
            "lower",
            f"{sum(means[1:]):.2g} against {sum(F[2:]):.2g}, summed over the rounds; lower in {better} of {rounds - 1}",
            sum(means[1:]) < sum(F[2:]) and better > (rounds - 1) / 2,
        ),
        judge("eta_g where Delta_1 = 0", "2", f"{first:.6g}", abs(first - 2) < 1e-9),
        judge(
            f"|w - w*|^2 after {rounds} rounds, against FedAvg",
            "decreases faster",
            f"{ours[-1]:.2g} against {square['FedAvg'][-1]:.2g}",
            ours[-1] < square["FedAvg"][-1],
        ),
    ]
    at = list(range(rounds + 1))
    losses = {**{m: (at, run["F"]) for m, run in runs.items()}, "FedExP, mean of the last two": (at[1:], means)}
    pictures = [
        curves("F over the rounds", "The last iterate oscillates.", losses, y="F", log=True),
        curves(
            "Distance to the minimum", "|w - w*|^2.", {m: (at, v) for m, v in square.items()}, y="|w - w*|^2", log=True
        ),
        _paths("Path to the minimum", "Iterates over contour lines of F; the cross is w* = (0, 3).", problem, runs),
    ]
    about = {
        "F_1": "(3 w1 + w2 - 3)^2",
        "F_2": "(w1 + w2 - 3)^2",
        "start": (1, -1),
        "clients": "minimise their loss exactly",
    }
    return Outcome(claims, pictures, {"F": F, "mean of two": means, "distance squared": square}, about)


def _paths(title: str, note: str, problem: LeastSquares, runs: dict[str, Result], lines: int = 41) -> Picture:
    """Draw the iterates over contour lines of log10 F."""
    goal = problem.minimiser.tolist()
    every = [point for run in runs.values() for point in run["x"]] + [goal]
    grid = [_around([point[axis] for point in every], lines) for axis in (0, 1)]
    F = [[problem.gap(torch.tensor([x, y], dtype=torch.float64)) for x in grid[0]] for y in grid[1]]
    contour = {
        "type": "contour",
        "x": grid[0],
        "y": grid[1],
        "z": torch.tensor(F).clamp(min=1e-6).log10().tolist(),
        "contours": {"coloring": "lines"},
        "colorscale": [[0, theme.PAGE["rule"][0]], [1, theme.PAGE["muted"][0]]],
        "line": {"width": 1},
        "showscale": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    paths = [
        {
            **line([p[1] for p in run["x"]], name, i, x=[p[0] for p in run["x"]]),
            "mode": "lines+markers",
            "marker": {"size": 5},
        }
        for i, (name, run) in enumerate(runs.items())
    ]
    cross = {
        "type": "scatter",
        "mode": "markers",
        "x": goal[:1],
        "y": goal[1:],
        "showlegend": False,
        "hoverinfo": "skip",
    }
    cross["marker"] = {"symbol": "x", "size": 9, "color": theme.PAGE["ink"][0]}
    layout = {"xaxis": {"title": {"text": "w1"}}, "yaxis": {"title": {"text": "w2"}}, "hovermode": "closest"}
    return Picture(title, note, {"data": [contour, *paths, cross], "layout": layout})


def _around(values: list[float], count: int) -> list[float]:
    """Return a grid over the range of the values, extended by a tenth on either side."""
    low, high = min(values), max(values)
    margin = (high - low) / 10
    points: list[float] = torch.linspace(low - margin, high + margin, count, dtype=torch.float64).tolist()
    return points
