"""Delta-SGD's step: its constant delta, and its two conditions (Delta-SGD B.1 and B.8, figures 4 and 7).

Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD).
Deviations: as in delta_sgd.py. The paper does not state the task of figure 7; we use the task of its search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fedstride.app import run_folder
from fedstride.app.config import Config
from fedstride.app.sweep import Cell, Result
from fedstride.client.context import Context
from fedstride.client.step import DeltaSGD
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.engine import Local
from fedstride.oracle import Oracle
from fedstride.research.papers.delta_sgd import (
    OURS,
    POOR,
    RULES,
    TUNED,
    Place,
    Runs,
    about,
    finals,
    label,
    not_run,
    paths,
    rounded,
    seed_by_seed,
    trial,
)
from fedstride.research.papers.experiment import Lab, Outcome, curves, experiment
from fedstride.training.train import train

Pair = tuple[float, float]  # step sizes allowed by the first and the second condition
ALONE = 1e30  # a delta (or gamma) for which only the other condition binds


@experiment("delta-sgd-B1", "Delta-SGD's delta (Delta-SGD B.1, figure 4)")
def ease_of_tuning(lab: Lab) -> Outcome:
    places: list[Place] = [("mnist", 0.1), TUNED]
    deltas = {0.1: {}, 0.01: {"delta": 0.01}, 1.0: {"delta": 1.0}}  # 0.1 is the default, as in table 1
    cells = {
        (p, d, seed): trial(lab, p, {"part": RULES[OURS], **given}, seed=seed)
        for p in places
        for d, given in deltas.items()
        for seed in range(lab.seeds)
    }
    found = lab.run(list(cells.values()))
    runs: dict[Place, Runs] = {
        p: {f"delta = {d:g}": [found[cells[p, d, seed].name] for seed in range(lab.seeds)] for d in sorted(deltas)}
        for p in places
    }
    ours = {p: finals(some) for p, some in runs.items()}
    claims = [
        lab.weigh(
            f"{label(p)}: delta from 0.01 to 1 has little effect (no more than {POOR:g} points)",
            "very little effect (figure 4)",
            ", ".join(f"{v:.1f} %" for v in c.values()),
            lambda column: POOR - (max(column.values()) - min(column.values())),
            c,
            [one[p] for one in seed_by_seed({p: runs[p]})],
            best=[max(c.values())],
            strict=False,
        )
        for p, c in ours.items()
    ]
    pictures = [paths(label(p), "Delta-SGD's test accuracy for three values of delta.", runs[p]) for p in places]
    return Outcome(claims, pictures, {"accuracy": rounded(ours)}, about(lab))


@dataclass(frozen=True)
class RecordedDelta:
    """Delta-SGD that also records the step allowed by each of its two conditions, for all clients of a chunk."""

    rule: DeltaSGD
    seen: list[dict[str, Any]]  # one per chunk and round: its round, and the conditions step by step

    def init(self, x: Vec, context: Context) -> State:
        self.seen.append({"round": context.round, "first": [], "second": []})
        return self.rule.init(x, context)

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        alone = {"first": replace(self.rule, delta=ALONE), "second": replace(self.rule, gamma=ALONE)}
        for name, rule in alone.items() if "y" in state else ():  # the first step has no quotient
            copy = dict(state)
            rule.step(W, L, G, copy, oracle)
            self.seen[-1][name].append(copy["eta"][:, 0].tolist())
        return self.rule.step(W, L, G, state, oracle)


def watched(config: dict[str, Any]) -> Result:
    """Return the two conditions in the order of rounds, chunks, steps and clients."""
    wanted = Config.model_validate(config)
    prepared, seen = run_folder.prepare(wanted), list[dict[str, Any]]()
    algorithm = replace(wanted.make_algorithm(), step=RecordedDelta(DeltaSGD(), seen))
    rest = {**wanted.arguments(None), "engine": Local(workers=1)}
    train(prepared.model, prepared.loss, prepared.clients, algorithm, **rest)
    return {"chunks": [chunk for chunk in seen if chunk["first"]]}


@experiment("delta-sgd-fig7", "The two conditions of Delta-SGD's step (Delta-SGD B.8, figure 7)")
def step_conditions(lab: Lab) -> Outcome:
    rounds = None if lab.small else 300  # as in the paper's figure
    cells = []
    for seed in range(lab.seeds):
        plain = trial(lab, TUNED, {"part": RULES[OURS]}, rounds=rounds, seed=seed)
        cells.append(Cell(f"delta-sgd-fig7 {plain.name}", watched, plain.arguments))
    found = lab.run(cells)
    each = [_seen(found[cell.name]["chunks"]) for cell in cells]
    ours = {key: statistics.fmean(one[key] for one in each) for key in each[0]}
    claims = [
        lab.weigh(
            "both conditions are necessary: each of them decides at least a twentieth of the steps",
            "both are (figure 7)",
            f"the first {100 * ours['share']:.0f} %, the second {100 * (1 - ours['share']):.0f} %",
            lambda of: min(of["share"] - 0.05, 0.95 - of["share"]),
            ours,
            each,
            strict=False,
        ),
        lab.weigh(
            "the first alone oscillates: its typical change from step to step is larger than the taken step's",
            "quite oscillatory",
            f"by a factor of {ours['restless first']:.2f} against {ours['restless']:.2f}",
            lambda of: of["restless first"] - of["restless"],
            ours,
            each,
        ),
        lab.weigh(
            "the second keeps the first from too large values: what one step in twenty exceeds is at least halved",
            "it does",
            f"{ours['large first']:.3g} by the first alone, {ours['large']:.3g} taken",
            lambda of: of["large first"] - 2 * of["large"],
            ours,
            each,
            strict=False,
        ),
        not_run("classes of the 100 clients at α = 1, 0.1, 0.01 (figure 8)", "a picture of the partition", "not drawn"),
    ]
    chunks = found[cells[0].name]["chunks"]
    one = {chunk["round"]: _ways(chunk)[0] for chunk in reversed(chunks)}  # the first client of every round
    line = [pair for t in sorted(one) for pair in one[t]]
    x = list(range(1, len(line) + 1))
    shown: dict[str, Callable[[Pair], float]] = {"taken": min, "first condition": _first, "second condition": _second}
    note = "The consecutive steps of one client per round."
    series = {name: (x, [pick(pair) for pair in line]) for name, pick in shown.items()}
    pictures = [curves("Step size conditions", note, series, x="local steps", y="step size", log=True)]
    return Outcome(claims, pictures, ours, about(lab))


def _seen(chunks: list[dict[str, Any]]) -> dict[str, float]:
    """Return the share of steps that the first condition decides; and of it alone and of the taken steps, how far
    they jump and what one in twenty exceeds."""
    ways = [way for chunk in chunks for way in _ways(chunk)]
    first, taken = ([[pick(pair) for pair in way] for way in ways] for pick in (_first, min))
    large, allowed = (statistics.quantiles([v for way in some for v in way], n=20)[-1] for some in (first, taken))
    return {
        "share": statistics.fmean(first < second for way in ways for first, second in way),
        **{"restless first": _restless(first), "restless": _restless(taken)},
        **{"large first": large, "large": allowed},
    }


def _first(pair: Pair) -> float:
    return pair[0]


def _second(pair: Pair) -> float:
    return pair[1]


def _ways(chunk: dict[str, Any]) -> list[list[Pair]]:
    """Return (first, second) of each step, for each client of a chunk."""
    first, second = (list(zip(*chunk[name], strict=True)) for name in ("first", "second"))
    return [list(zip(a, b, strict=True)) for a, b in zip(first, second, strict=True)]


def _restless(ways: list[list[float]]) -> float:
    """Return the geometric mean of the factor between successive steps of a client, always at least 1."""
    return math.exp(statistics.fmean(abs(math.log(b / a)) for way in ways for a, b in pairwise(way)))
