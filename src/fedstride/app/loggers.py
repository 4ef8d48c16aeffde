"""Loggers: callbacks of fs.train that write the metrics of each round to JSON lines, TensorBoard, MLflow or W&B, or serve them."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any

from fedstride.app.audit import Audit
from fedstride.app.monitor import Prometheus
from fedstride.core.errors import InvalidInput
from fedstride.training.history import Row
from fedstride.training.rounds import Event

QUARTILES = ("min", "q25", "median", "q75", "max")  # names of the entries of client_steps in the history

MODULES = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "torch.utils.tensorboard"}  # by name of the logger

__all__ = ["Audit", "JsonLines", "MLflow", "Prometheus", "TensorBoard", "Wandb"]


def numbers_of(row: Row) -> Iterator[tuple[str, float]]:
    """Yield (name, number) for every number of a row.

    Numbers in lists are named name/median or name/0, those in dicts name/key. None and the round are skipped.
    """
    for name, value in row.items():
        if isinstance(value, list | tuple):
            parts = QUARTILES if name == "client_steps" else map(str, range(len(value)))
            yield from numbers_of({f"{name}/{part}": v for part, v in zip(parts, value, strict=True)})
        elif isinstance(value, dict):
            yield from numbers_of({f"{name}/{part}": v for part, v in value.items()})
        elif isinstance(value, Real) and name != "round":  # the round is the x-axis of the others
            yield name, float(value)


class JsonLines:
    """Append one JSON line per round to a file. Each line is flushed, so the file can be followed during the run.

    Args:
        path: the file to append to; missing folders are created.

    Raises:
        InvalidInput: if the file cannot be written.

    Example:
        >>> log = fs.loggers.JsonLines("logs/first.jsonl")
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3, callbacks=[log])
        >>> log.close()
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (close() does)
        except OSError as error:
            raise InvalidInput(f"JsonLines: {path} cannot be written: {error.strerror}.") from error

    def __call__(self, event: Event) -> None:
        if event.round > 0:  # there are no metrics before the first round
            self.file.write(json.dumps(event.metrics) + "\n")
            self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class TensorBoard:
    """Log every number of a round as a TensorBoard scalar. A resumed run can continue in the same folder.

    Args:
        folder: TensorBoard's log directory.

    Raises:
        InvalidInput: if TensorBoard is not installed.

    Example:
        >>> log = fs.loggers.TensorBoard("logs/first")  # doctest: +SKIP
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3, callbacks=[log])  # doctest: +SKIP
        >>> log.close()  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.writer = _imported("tensorboard", type(self).__name__).SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        for name, value in numbers_of(event.metrics):
            self.writer.add_scalar(name, value, event.round)
        self.writer.flush()

    def close(self) -> None:
        """Close TensorBoard's writer."""
        self.writer.close()


class MLflow:
    """Log every number of a round as a metric of a new MLflow run.

    Uses MLflow's client, so the global active run and experiment do not change.

    Args:
        experiment: name of the experiment, created if missing. Default: MLFLOW_EXPERIMENT_NAME, else "Default".
        run_name: name of the run. Default: chosen by MLflow.
        tracking_uri: address of the tracking server. Default: MLflow's environment variables.

    Raises:
        InvalidInput: if MLflow is not installed.

    Example:
        >>> log = fs.loggers.MLflow("digits", "first")  # doctest: +SKIP
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3, callbacks=[log])  # doctest: +SKIP
        >>> log.close()  # doctest: +SKIP
    """

    def __init__(
        self, experiment: str | None = None, run_name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        mlflow = _imported("mlflow", type(self).__name__)
        self.metric = mlflow.entities.Metric
        self.client = mlflow.MlflowClient(tracking_uri)
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        known = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if known is None else known.experiment_id
        self.run_id: str = self.client.create_run(number, run_name=run_name).info.run_id

    def __call__(self, event: Event) -> None:
        now = int(time.time() * 1000)
        found = [self.metric(name, value, now, event.round) for name, value in numbers_of(event.metrics)]
        if found:
            self.client.log_batch(self.run_id, metrics=found)

    def close(self, status: str = "FINISHED") -> None:
        """End the MLflow run.

        Args:
            status: MLflow's status, such as "FINISHED" or "FAILED".
        """
        self.client.set_terminated(self.run_id, status)


class Wandb:
    """Log every number of a round to a new run of Weights & Biases.

    Args:
        project: name of the project. Default: W&B's environment variables.
        run_name: name of the run. Default: chosen by W&B.

    Raises:
        InvalidInput: if wandb is not installed.

    Example:
        >>> log = fs.loggers.Wandb("digits", "first")  # doctest: +SKIP
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=3, callbacks=[log])  # doctest: +SKIP
        >>> log.close()  # doctest: +SKIP
    """

    def __init__(self, project: str | None = None, run_name: str | None = None) -> None:
        self.run = _imported("wandb", type(self).__name__).init(project=project, name=run_name)

    def __call__(self, event: Event) -> None:
        found = dict(numbers_of(event.metrics))
        if found:
            self.run.log(found, step=event.round)

    def close(self) -> None:
        """End the run of W&B."""
        self.run.finish()


def check_installed(name: str) -> None:
    """Refuse a logger, one of MODULES, whose package is not installed."""
    _imported(name, f"--logger {name}")


def _imported(name: str, owner: str) -> Any:
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        raise InvalidInput(f"{owner} is not installed ({error}): pip install 'fedstride[track]'.") from error
