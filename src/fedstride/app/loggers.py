"""Where the rows of a run go besides its history: JSON lines, TensorBoard, MLflow; callbacks of fs.train."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any

from fedstride.core.errors import InvalidInput
from fedstride.training.history import Row
from fedstride.training.train import Event

QUARTILES = ("min", "q25", "median", "q75", "max")  # of the history's client_steps


def numbers_of(row: Row) -> Iterator[tuple[str, float]]:
    """Every number of a row under its name; those of a list as name/median or name/0, of a table as name/key; what is None has none."""
    for name, value in row.items():
        if isinstance(value, list | tuple):
            parts = QUARTILES if name == "client_steps" else map(str, range(len(value)))
            yield from numbers_of({f"{name}/{part}": v for part, v in zip(parts, value, strict=True)})
        elif isinstance(value, dict):
            yield from numbers_of({f"{name}/{part}": v for part, v in value.items()})
        elif isinstance(value, Real) and name != "round":  # the round is what the others are logged under
            yield name, float(value)


class JsonLines:
    """One line per round, appended to a file and flushed, so that it can be followed while the run goes on."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (close() does)
        except OSError as error:
            raise InvalidInput(f"JsonLines: {path} cannot be written: {error.strerror}.") from error

    def __call__(self, event: Event) -> None:
        if event.round > 0:  # before the first round nothing was measured
            self.file.write(json.dumps(event.metrics) + "\n")
            self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoard:
    """Scalars for TensorBoard, one per number of a row; a run that is resumed into the same folder goes on there."""

    def __init__(self, folder: str | Path) -> None:
        self.writer = _imported("torch.utils.tensorboard", self).SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        for name, value in numbers_of(event.metrics):
            self.writer.add_scalar(name, value, event.round)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """Metrics of one new MLflow run; where MLflow's own environment variables say, unless an argument does.

    Through MLflow's client: its global active run and experiment stay as they are.
    """

    def __init__(
        self, experiment: str | None = None, run_name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        mlflow = _imported("mlflow", self)
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
        """End the run; "FAILED" is MLflow's word for one that did not get through."""
        self.client.set_terminated(self.run_id, status)


def _imported(module: str, logger: object) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = type(logger).__name__
        raise InvalidInput(f"{name} is not installed ({error}): pip install 'fedstride[track]'.") from error
