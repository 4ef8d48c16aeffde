"""fs.personal_report(): does federation help each client? Its score alone, with the shared model, and personalised."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import sampler
from fedstride.client.objective import Plain
from fedstride.core.capabilities import declared
from fedstride.core.errors import FedstrideWarning, GivenUp, InvalidInput
from fedstride.core.files import replace_file
from fedstride.data.federation import Federation, Lazy, federation
from fedstride.training.evaluate import evaluate
from fedstride.training.fine_tune import FineTune
from fedstride.training.probe import found_elsewhere, tests_of
from fedstride.training.result import Run
from fedstride.training.round import drawn_clients
from fedstride.training.train import train
from fedstride.training.validate import algorithm_of

COLUMNS = ("alone", "shared", "personalised")
FILE = "personal.json"
PLAIN = {"metrics": None, "stop": None, "guard": None, "personal": None, "personal_steps": 0}
AGAIN = {**PLAIN, "engine": "local", "progress": False}  # for another training with the run's data


@dataclass(frozen=True)
class PersonalReport:
    """Scores of every client on its own test set, and their gain from the federation.

    Args:
        rows: one dict per client: "client", "samples", "alone", "shared", "personalised" and "gain".
        metric: "accuracy", or "loss" where there is none; a lower loss is a gain.

    Example:
        >>> row = {"client": "a", "samples": 9, "alone": 0.6, "shared": 0.7, "personalised": 0.8, "gain": 0.2}
        >>> fs.PersonalReport([row], "accuracy").gaining
        1
    """

    rows: list[dict[str, Any]]
    metric: str

    @property
    def means(self) -> dict[str, float]:
        """Means over the clients."""
        return {name: sum(row[name] for row in self.rows) / len(self.rows) for name in (*COLUMNS, "gain")}

    @property
    def gaining(self) -> int:
        """Number of clients whose personalised model is better than the one trained alone."""
        return sum(row["gain"] > 0 for row in self.rows)

    def __str__(self) -> str:
        width = max(6, *(len(str(row["client"])) for row in self.rows))
        head = f"{'client':<{width}}  samples     alone    shared  personalised      gain"
        mean = {"client": "mean", "samples": "", **self.means}
        lines = [
            f"{row['client']!s:<{width}}  {row['samples']!s:>7}  {row['alone']:8.4f}  {row['shared']:8.4f}"
            f"  {row['personalised']:12.4f}  {row['gain']:+8.4f}"
            for row in (*self.rows, mean)
        ]
        told = f"{self.metric}; {self.gaining} of {len(self.rows)} clients gain from the federation"
        return "\n".join([head, *lines, told])

    def save(self, folder: str | Path) -> Path:
        """Write personal.json, which only its owner can read, into the folder of a run, for its report.

        The report of a private run leaves it out.
        """
        path = Path(folder) / FILE
        replace_file(path, json.dumps({"metric": self.metric, "rows": self.rows}), private=True)
        return path


def personal_report(
    run: Run, tests: Any, fine_tune: FineTune | None = None, shared: nn.Module | None = None
) -> PersonalReport:
    """Compare, for every client, a model trained on its data alone, the shared model, and a personalised one.

    The model alone is trained by the same algorithm, with the same batches and local steps, in as many rounds as the client
    was drawn for. The personalised one is that of run.personal (personal= or Ditto), else the shared model after fine-tuning.

    Args:
        run: a run of fs.train() in this process: one from fs.load() has no data.
        tests: a test set for each client, in the order of the clients or by name.
        fine_tune: how to fine-tune a run without personalisation; None = ten steps, each with a line search.
        shared: the shared model. None = run.model; with personal=, where that one is incomplete, a model that is trained as
            the run was, but without personal=.

    Returns:
        The PersonalReport: .rows by client, .means, .gaining; print() shows a table, .save(folder) adds it to a run's report.

    Raises:
        InvalidInput: the run has no data, or the tests do not fit its clients.

    Example:
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3)
        >>> report = fs.personal_report(run, clients)  # with test sets of one's own instead
        >>> report.metric, len(report.rows)
        ('accuracy', 4)
    """
    given = _arguments(run)
    clients = federation(given["clients"], given["collate"])
    sets = _tests(tests, clients, given["collate"])
    loss, collate, own = given["loss"], given["collate"], run.personal
    personal = bool(given["personal"])
    if shared is None:
        shared = _trained({**given, **AGAIN}) if personal else run.model
    if own is not None and own.parameters:
        models = [own[i] for i in range(len(clients))]
    else:
        tuning = fine_tune or FineTune(clients, batch_size=given["batch_size"], seed=given["seed"])
        models = [tuning.adapted(shared, loss, client, collate) for client in clients]
    rounds = _rounds(given, run, clients)
    rows: list[dict[str, Any]] = []
    for i, test in enumerate(sets):
        alone = _trained(_alone(given, clients, i, rounds[i]))
        scores = [evaluate(model, test, loss) for model in (alone, shared, models[i])]
        rows.append({"client": clients.names[i] if clients.names else i, "samples": clients.sizes[i], "scores": scores})
    metric = "loss" if any(s["accuracy"] is None for row in rows for s in row["scores"]) else "accuracy"
    return PersonalReport([_row(row, metric) for row in rows], metric)


def _row(row: dict[str, Any], metric: str) -> dict[str, Any]:
    found = dict(zip(COLUMNS, (float(s[metric]) for s in row["scores"]), strict=True))
    gain = found["personalised"] - found["alone"]
    return {"client": row["client"], "samples": row["samples"], **found, "gain": -gain if metric == "loss" else gain}


def _arguments(run: Run) -> dict[str, Any]:
    if not isinstance(run, Run) or run.source is None:
        raise InvalidInput(
            "personal_report: expected the run that fs.train() returned; one from fs.load() has no data to train clients alone on."
        )
    given = dict(run.source.arguments)
    if isinstance(given["clients"], Lazy) and found_elsewhere(given["clients"]) is not None:
        raise InvalidInput("personal_report: the data is at the nodes of a Flower federation; ask each node.")
    return given


def _tests(tests: Any, clients: Federation | Lazy, collate: Any) -> list[Any]:
    found = tests_of(tests, clients, collate)
    if len(found) != len(clients):
        raise InvalidInput(
            f"personal_report: got one test set; expected one for each of the {len(clients)} clients, as a list or a dict."
        )
    return list(found)


def _rounds(given: dict[str, Any], run: Run, clients: Federation | Lazy) -> list[int]:
    """Return how many rounds each client was drawn for, at least one; in a private run, where that is secret, the mean."""
    draw, counts = sampler(given["cohort"], len(clients)), [0] * len(clients)
    if (privacy := algorithm_of(given["algorithm"]).privacy) is not None:
        mean = privacy.expected(draw, len(clients)) / len(clients) * len(run.history)
        return [max(1, round(mean))] * len(clients)
    for t in range(len(run.history)):
        for client in drawn_clients(draw, clients.sizes, given["seed"], t):
            counts[client] += 1
    return [max(1, n) for n in counts]


def _alone(given: dict[str, Any], clients: Federation | Lazy, i: int, rounds: int) -> dict[str, Any]:
    """Return the arguments for training on one client's data: the same, without those that only a federation needs."""
    steps = given["local_steps"]
    if callable(steps):
        ask = steps
        steps = lambda round, client: ask(round, i)  # noqa: E731
    elif steps is not None and not isinstance(steps, int):
        steps = int(steps[i])
    algorithm = _algorithm_alone(algorithm_of(given["algorithm"]))
    own = {"clients": [clients[i]], "algorithm": algorithm, "rounds": rounds, "local_steps": steps}
    return {**given, **AGAIN, **own, "cohort": None, "weights": "uniform"}


def _algorithm_alone(a: Algorithm) -> Algorithm:
    objective = Plain() if declared(a.objective, "trains_own") else a.objective
    return replace(
        a, objective=objective, drift=None, up=None, down=None, error_feedback=None, aggregate=None, privacy=None
    )


def _trained(arguments: dict[str, Any]) -> nn.Module:
    """Return the model of a training, or the last good one of a training that diverged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedstrideWarning)  # already given by the run itself
        try:
            return train(**arguments).model
        except GivenUp as error:
            return error.run.model
