"""fedstride, called as by a user; also in the processes that torchrun starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from serving import Stopwatch, read  # type: ignore[import-not-found]

from fedstride import data
from fedstride.algorithm import recipes
from fedstride.engine.torchrun import Torchrun, launched
from fedstride.research.bench.workloads import Workload
from fedstride.training.train import train


def main(folder: str) -> None:
    pace = Stopwatch() if not launched() or Torchrun().leads else None  # the first process serves requests
    work = json.loads((Path(folder) / "work.json").read_text())
    name = work.pop("loss")
    workload = Workload(**work)
    run = train(
        workload.build().to(getattr(torch, workload.dtype)),
        name,
        _clients(workload, folder),
        recipes.fedsls() if workload.algorithm == "fedsls" else getattr(recipes, workload.algorithm)(workload.lr),
        rounds=workload.rounds,
        cohort=None if workload.federation is None else workload.clients,
        local_steps=workload.steps,
        batch_size=workload.batch,
        precision=workload.precision,
        engine="torchrun" if launched() else "auto",
        callbacks=[] if pace is None else [lambda event: pace(lambda: event.x)],
    )
    if pace is None:
        return
    trials = [row["trials"] for row in run.history[1:] or run.history]  # the first round is a warm-up
    pace.reply(torch=torch.__version__, engine=getattr(run, "engine", None), trials=sum(trials) / len(trials))


def _clients(workload: Workload, folder: str) -> Any:
    if workload.federation is not None:
        return data.Lazy([workload.samples] * workload.federation, workload.client)
    dtype = getattr(torch, workload.dtype)
    parts = (torch.from_numpy(read(folder)[1][name]) for name in ("X", "y"))
    X, y = (t.to(dtype) if t.is_floating_point() else t for t in parts)
    return list(zip(X, y, strict=True))


if __name__ == "__main__":
    main(sys.argv[1])
