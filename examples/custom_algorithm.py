"""A custom algorithm: a server rule of your own, composed with the parts that are there. It works on every engine."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import fedstride as fs


@dataclass(frozen=True)
class SignServer:
    """x -= lr sign(Dbar): every coordinate moves by the same amount, which shrinks with the square root of time."""

    lr: float = 0.01
    needs: ClassVar[tuple[str, ...]] = ()  # what clients upload beside their update

    def init(self, x):
        return {"eta": x.new_tensor(self.lr), "round": x.new_zeros(())}

    def broadcast(self, state):
        return {}  # what clients get beside the model

    def step(self, x, mean, state):
        state["round"] = state["round"] + 1
        state["eta"] = self.lr / state["round"].sqrt()  # the step size, in run.history["server_step"]
        return x - state["eta"] * mean.update.sign()

    def output(self, x, state):
        return x  # the model that is evaluated and returned


table = fs.data.load("digits")
clients = fs.data.federate(table, fs.data.partition.dirichlet_split(table.train[1], 10, seed=0, alpha=0.3))
algorithms = {
    "sign at the server, line search at the clients": fs.Algorithm(step=fs.Armijo(), server=SignServer(lr=0.02)),
    "the same with SCAFFOLD's drift correction": fs.Algorithm(
        step=fs.Armijo(), server=SignServer(lr=0.02), drift=fs.Scaffold()
    ),
    "auto": "auto",
}
for name, algorithm in algorithms.items():
    torch.manual_seed(0)
    model = fs.models.build("mlp", table.train[0].shape[1:], classes=table.classes)
    run = fs.train(model, "cross_entropy", clients, algorithm, rounds=20, cohort=5, batch_size=32, test=table.test)
    print(f"{name:48} test accuracy {run.history[-1]['test_accuracy']:.3f}")
