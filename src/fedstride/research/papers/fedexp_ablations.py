"""Ablations of FedExP: the two steps, the read-out, and eps.

Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023 (FedExP).
Deviations: those of rivals.py. Accuracies are on test data, while the paper's figure 6 and table 4 use training data. In
table 4, eps is in proportion to the squared rate. CIFAR-100 and CINIC-10 are not run.
"""

from __future__ import annotations

import math
from itertools import pairwise, product
from statistics import fmean
from typing import Any

from fedstride.app.sweep import Result
from fedstride.research.papers.experiment import Lab, Outcome, Picture, curves, experiment, heat_map
from fedstride.research.papers.fedexp import CIFAR_100, PLACES, TABLE_3
from fedstride.research.papers.rivals import DATA, TUNED, not_run, points, power, results, trial
from fedstride.research.papers.tasks import ROUNDS, accuracy, cell
from fedstride.research.papers.tuning import tuned

Maps = tuple[dict[tuple[float, float], float], dict[float, float]]  # FedAvg by both steps, FedExP by the client's

CLIENT = (-2, -1.5, -1, -0.5, 0)  # log10 of eta_l
SERVER = (-1, -0.5, 0, 0.5, 1)  # log10 of eta_g


@experiment(
    "fedexp-fig1", "Server step and client step of FedAvg, compared with FedExP's own server step (FedExP, figure 1)"
)
def figure_1(lab: Lab) -> Outcome:
    cells = {
        (a, g, seed): ("fedavg", trial(lab, "emnist", "fedavg", {"lr": power(a), "server_lr": power(g)}, seed=seed))
        for a, g, seed in product(CLIENT, SERVER, range(lab.seeds))
    }
    alone = {
        (a, seed): ("fedexp", trial(lab, "emnist", "fedexp", {"lr": power(a), "eps": 1e-3}, seed=seed))
        for a, seed in product(CLIENT, range(lab.seeds))
    }
    found, found_alone = results(lab, cells), results(lab, alone)
    each = [
        (
            {(a, g): accuracy(found[a, g, seed]) for a, g in product(CLIENT, SERVER)},
            {a: accuracy(found_alone[a, seed]) for a in CLIENT},
        )
        for seed in range(lab.seeds)
    ]
    grid = {at: fmean(one[at] for one, _ in each) for at in product(CLIENT, SERVER)}
    extrapolated = {a: fmean(one[a] for _, one in each) for a in CLIENT}
    ours = grid, extrapolated
    best = max(grid, key=grid.__getitem__)
    small = max(grid[CLIENT[0], g] for g in SERVER)
    untuned = max(grid[a, 0] for a in CLIENT)
    claims = [
        lab.weigh(
            "the best steps are moderate ones, not a corner with the smallest eta_l and the largest eta_g",
            "eta_l = 10^-0.5, eta_g = 10^0 (table 3)",
            f"eta_l = 10^{best[0]:g}, eta_g = 10^{best[1]:g}: {grid[best]:.1f} %",
            _moderate,
            ours,
            each,
            best=[grid[best]],
            strict=False,
        ),
        lab.weigh(
            "a small client step cannot be made up for by a large server step: at least 1 point is lost",
            "severe slowdown, not fully compensated",
            f"eta_l = 10^{CLIENT[0]:g}: at most {small:.1f} % against {grid[best]:.1f} %",
            _lost,
            ours,
            each,
            best=[grid[best]],
            strict=False,
        ),
        lab.weigh(
            "FedExP, which searches no server step, is within 1 point of FedAvg's best pair",
            "FedExP is above the best pair (86.96 % against 85.78 % after 2000 rounds, table 5)",
            f"FedExP {max(extrapolated.values()):.1f} %, FedAvg {grid[best]:.1f} %, with eta_g = 1 {untuned:.1f} %",
            _near,
            ours,
            each,
            best=[grid[best]],
            strict=False,
        ),
    ]
    figures = {
        "fedavg": {f"{a:g} {g:g}": round(v, 2) for (a, g), v in grid.items()},
        "fedexp": {f"{a:g}": round(v, 2) for a, v in extrapolated.items()},
    }
    settings = {"data": DATA["emnist"], "rounds": TUNED, "log10 eta_l": CLIENT, "log10 eta_g": SERVER, "eps": 1e-3}
    return Outcome(claims, [_map(grid, extrapolated)], figures, settings)


def _moderate(of: Maps) -> float:
    inside = [v for (a, g), v in of[0].items() if a > CLIENT[0] and abs(g) < 1]
    return max(inside) - max(v for (a, g), v in of[0].items() if a == CLIENT[0] or abs(g) == 1)


def _lost(of: Maps) -> float:
    return max(of[0].values()) - max(of[0][CLIENT[0], g] for g in SERVER) - 1


def _near(of: Maps) -> float:
    return max(of[1].values()) - max(of[0].values()) + 1


def _map(grid: dict[tuple[float, float], float], extrapolated: dict[float, float]) -> Picture:
    rows = [*([grid[a, g] for a in CLIENT] for g in SERVER), [extrapolated[a] for a in CLIENT]]
    servers = [*(f"10^{g:g}" for g in SERVER), "FedExP"]
    shown = [[f"{v:.1f}" for v in row] for row in rows]
    trace = heat_map([f"10^{a:g}" for a in CLIENT], servers, rows, shown, "eta_l %{x}, eta_g %{y}: %{text} %")
    axes = {
        "xaxis": {"type": "category", "title": {"text": "client step"}, "showgrid": False},
        "yaxis": {"type": "category", "title": {"text": "server step"}, "showgrid": False},
    }
    note = f"Test accuracy in per cent after {TUNED} rounds of FedAvg; FedExP chooses its own server step."
    return Picture("Two steps", note, {"data": [trace], "layout": {**axes, "hovermode": "closest"}})


FEW: dict[str, dict[str, Any]] = {  # ten clients, all of them in every round (FedExP app. D.1)
    "small": {"data__samples": 500, "training__batch_size": 20, "training__local_steps": 10},
    "paper": {
        "data__samples": 5000,
        "training__batch_size": 50,
        "training__local_steps": 20,
        "model__name": "mcmahan_cnn",
    },
}
FEW["medium"] = FEW["paper"]
ONE = {"name": "fedexp", "lr": 0.1, "server_lr_max": 1.0}  # FedAvg with FedExP's read-out
ITERATES = {"last_accuracy": "last iterate", "test_accuracy": "mean of two"}


@experiment("fedexp-fig6", "The mean of the last two iterates against the last one (FedExP, figure 6)")
def figure_6(lab: Lab) -> Outcome:
    size = {**FEW[lab.scale], "data__clients": 10, "data__alpha": 0.3, "training__evaluate_every": 1}
    rounds = 40 if lab.small else ROUNDS[lab.scale]
    algorithms: dict[str, dict[str, Any]] = {"FedExP": {"name": "fedexp", "lr": 0.1}, "FedAvg": ONE}
    cells = {
        (name, seed): cell(lab, "cifar10", algorithm, rounds=rounds, seed=seed, **size)
        for name, algorithm in algorithms.items()
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    runs = {name: [found[cells[name, seed].name] for seed in range(lab.seeds)] for name in algorithms}
    swing = {(n, c): fmean(_swing(run, c) for run in runs[n]) for n in runs for c in ITERATES}
    final = {(n, c): fmean(accuracy(run, c, last=10) for run in runs[n]) for n in runs for c in ITERATES}
    gain = {n: final[n, "test_accuracy"] - final[n, "last_accuracy"] for n in runs}
    gains = [
        {n: accuracy(runs[n][i], last=10) - accuracy(runs[n][i], "last_accuracy", last=10) for n in runs}
        for i in range(lab.seeds)
    ]
    best = [max(final.values())]
    swings = ", ".join(f"{n}, {word} {swing[n, c]:.2f}" for n in runs for c, word in ITERATES.items())
    finals_ = ", ".join(f"{word} {final['FedExP', c]:.1f} %" for c, word in ITERATES.items())
    claims = [
        lab.weigh(
            "change of accuracy from round to round, points: largest for FedExP's last iterate",
            "FedExP's last iterate oscillates, the mean of two is more stable",
            swings,
            _restless,
            swing,
            [{(n, c): _swing(runs[n][i], c) for n in runs for c in ITERATES} for i in range(lab.seeds)],
            best=best,
            strict=False,
        ),
        lab.weigh(
            "FedExP: the mean of two gains at least 1 point",
            "a considerable improvement",
            finals_,
            lambda of: of["FedExP"] - 1,
            gain,
            gains,
            best=best,
            strict=False,
        ),
        lab.weigh(
            "FedAvg: the mean of two changes less than 1 point",
            "no significant difference",
            f"{gain['FedAvg']:+.2f} points",
            lambda of: 1 - abs(of["FedAvg"]),
            gain,
            gains,
            best=best,
        ),
    ]
    series = {f"{n}, {word}": points(runs[n][0], c) for n in runs for c, word in ITERATES.items()}
    picture = curves("Two read-outs", "Ten clients, all of them in every round; first seed.", series, y="accuracy, %")
    keys = {f"{n}, {word}": (n, c) for n in runs for c, word in ITERATES.items()}
    figures = {
        "swing": {key: round(swing[at], 3) for key, at in keys.items()},
        "final": {key: round(final[at], 2) for key, at in keys.items()},
    }
    return Outcome(claims, [picture], figures, {"rate": 0.1, "rounds": rounds, "accuracy": "on test data"})


def _restless(swing: dict[tuple[str, str], float]) -> float:
    """Return by how much FedExP's last iterate swings more than all others."""
    ours = "FedExP", "last_accuracy"
    return swing[ours] - max(v for at, v in swing.items() if at != ours)


def _swing(run: Result, column: str) -> float:
    """Return the mean change from one round to the next in the second half, in points."""
    values = points(run, column)[1]
    return fmean([abs(b - a) for a, b in pairwise(values[len(values) // 2 :])] or [0.0])


TABLE_4 = {  # training accuracy by log10 of eps
    "cifar10": {-3: 84.79, -2.5: 77.82, -2: 77.63, -1.5: 77.66, -1: 77.64},
    "emnist": {-3: 85.40, -2.5: 86.26, -2: 85.73, -1.5: 85.49, -1: 84.90},
}


@experiment("fedexp-table4", "FedExP with five values of eps (FedExP, table 4)")
def table_4(lab: Lab) -> Outcome:
    best = tuned(lab, [(place, "fedexp") for place in PLACES])
    powers = (-3, -2, -1) if lab.small else (-3, -2.5, -2, -1.5, -1)
    cells = {}
    for place, seed in product(PLACES, range(lab.seeds)):
        lr = best[place, "fedexp"]["lr"]
        for e in powers:
            options = {"lr": lr, "eps": power(e + _shift(place, lr))}
            cells[place, e, seed] = "fedexp", trial(lab, place, "fedexp", options, ROUNDS[lab.scale], seed)
        plain = {"lr": lr, "server_lr": 1.0}
        cells[place, 0, seed] = "fedavg", trial(lab, place, "fedavg", plain, ROUNDS[lab.scale], seed)
    found = results(lab, cells)
    each = {
        place: [
            {e: accuracy(found[place, e, seed], "pair_accuracy") for e in (*powers, 0)} for seed in range(lab.seeds)
        ]
        for place in PLACES
    }
    ours = {place: {e: fmean(one[e] for one in each[place]) for e in (*powers, 0)} for place in PLACES}
    cifar, emnist = (ours[place] for place in PLACES)
    known: dict[str, Any] = {place: {"best": [max(ours[place].values())]} for place in PLACES}
    claims = [
        lab.weigh(
            "CIFAR-10: the smallest eps is the best",
            _by_eps(TABLE_4["cifar10"]),
            _by_eps({e: cifar[e] for e in powers}),
            lambda of: of[-3] - max(of[e] for e in powers[1:]) or of[-3] - min(of.values()),  # ties, but not of all
            cifar,
            each["cifar10"],
            **known["cifar10"],
        ),
        lab.weigh(
            "CIFAR-10: with the largest eps about as FedAvg with the same rate, within 1 point",
            "behaviour similar to FedAvg",
            f"FedExP {cifar[-1]:.1f}, FedAvg {cifar[0]:.1f}, both by the mean of two",
            lambda of: 1 - abs(of[-1] - of[0]),
            cifar,
            each["cifar10"],
            **known["cifar10"],
            strict=False,
        ),
        lab.weigh(
            f"{DATA['emnist']}: eps matters little, at most 2 points",
            _by_eps(TABLE_4["emnist"]),
            _by_eps({e: emnist[e] for e in powers}),
            lambda of: 2 - (max(of[e] for e in powers) - min(of[e] for e in powers)),
            emnist,
            each["emnist"],
            **known["emnist"],
            strict=False,
        ),
        not_run(f"{CIFAR_100}", "10^-3: 59.01, others 44.21 to 44.76"),
        not_run("CINIC-10", "10^-3: 66.31, others 60.47 to 61.05"),
    ]
    series = {DATA[p]: ([10.0**e for e in powers], [ours[p][e] for e in powers]) for p in PLACES}
    picture = curves("Accuracy by eps", "", series, x="the paper's eps", y="test accuracy, %", xaxis={"type": "log"})
    figures = {p: {f"10^{e:g}" if e else "fedavg": round(v, 2) for e, v in ours[p].items()} for p in PLACES}
    rates = {DATA[p]: best[p, "fedexp"]["lr"] for p in PLACES}
    shifts = {DATA[p]: f"10^{_shift(p, best[p, 'fedexp']['lr'])} times the paper's" for p in PLACES}
    return Outcome(claims, [picture], figures, {"rate": rates, "eps": shifts, "rounds": ROUNDS[lab.scale]})


def _shift(place: str, lr: float) -> int:
    """Return by how many powers of ten eps moves with the rate: it is added to |Dbar|^2, which grows as the rate squared."""
    return round(2 * math.log10(lr / TABLE_3[place]["lr"]))


def _by_eps(values: dict[float, float] | dict[int, float]) -> str:
    return ", ".join(f"10^{e:g}: {v:.1f}" for e, v in values.items())
