"""Your own tensors: a list of (inputs, targets), any nn.Module, and no learning rate."""

import torch
from torch import nn

import fedstride as fs

torch.manual_seed(0)


def hospital(shift: float, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Patients with four measurements; the risk is the same function everywhere, the patients are not."""
    inputs = torch.randn(samples, 4) + shift
    targets = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] > 0).long()
    return inputs, targets


clients = [hospital(shift, samples) for shift, samples in [(-1.0, 200), (-0.5, 80), (0.0, 150), (0.5, 60), (1.0, 300)]]
test = hospital(0.0, 1000)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

run = fs.train(model, "cross_entropy", clients, rounds=40, batch_size=20, test=test, weights="samples")

run.save("runs/own-tensors")
trained = fs.load("runs/own-tensors", model).model
print(f"test accuracy {fs.evaluate(trained, test)['accuracy']:.3f}")
print(f"accuracy of the most frequent class {run.facts['constant']['accuracy']:.3f}")
