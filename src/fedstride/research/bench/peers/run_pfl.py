"""Apple's pfl-research: FederatedAveraging on a SimulatedBackend, one process per core (torchrun)."""

# mypy: ignore-errors
# Runs in an environment of its own, where pfl is installed.

from __future__ import annotations

import sys

import pfl
import torch
from nets import LOSSES, load, vector
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from serving import Stopwatch
from torch import nn


class Net(nn.Module):
    def __init__(self, net: nn.Module, loss: str) -> None:
        super().__init__()
        self.net, self._loss = net, LOSSES[loss]

    def loss(self, X, y, eval=False):
        self.train(not eval)
        return self._loss(self.net(X), y)

    @torch.no_grad()
    def metrics(self, X, y, eval=True):
        return {"loss": Weighted(self.loss(X, y, eval).item() * len(X), len(X))}


class Rounds(TrainingProcessCallback):
    """Count rounds; the first process also serves requests."""

    def __init__(self, pace) -> None:
        self.pace, self.round = pace, 0

    def on_train_begin(self, *, model):
        self._wait(model)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.round += 1
        self._wait(model)
        return False, Metrics()

    def _wait(self, model) -> None:
        if self.pace is not None:
            self.pace(lambda: vector(model.pytorch_model))


def main(folder: str) -> None:
    first = pytorch_ops.distributed.global_rank == 0
    pace = Stopwatch() if first else None
    work, net, clients, order = load(folder)
    rounds = Rounds(pace)

    def dataset(user: int) -> PyTorchTensorDataset:
        X, y = clients[user]
        if work["batch"] is None:
            return PyTorchTensorDataset([X, y], user_id=str(user))
        index = order[rounds.round, user].flatten()  # pfl takes batches from the front
        return PyTorchTensorDataset([X[index], y[index]], user_id=str(user))

    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(range(len(clients)))))
    model = Net(net, work["loss"])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work["rounds"],
            evaluation_frequency=work["rounds"] + 1,  # only in the first round, which is not timed
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work["steps"] if work["batch"] is None else 1,
            local_learning_rate=work["lr"],
            local_batch_size=work["batch"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work["batch"]),
        callbacks=[rounds],
    )
    if pace is not None:
        pace.reply(torch=torch.__version__, version=pfl.version.__version__, threads=torch.get_num_threads())


if __name__ == "__main__":
    main(sys.argv[1])
