"""Images and BatchNorm: the statistics of all clients are averaged, or none are changed. Each client has two digits."""

import torch
from torch import nn

import fedstride as fs

torch.manual_seed(0)
table = fs.data.load("digits")  # 1797 images of 8 x 8 pixels, inside scikit-learn
parts = fs.data.partition.pathological(table.train[1], 10, seed=0, classes=2)
clients = fs.data.federate(table, parts)


def network(norm) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


for name, norm, buffers in [
    ("BatchNorm, averaged statistics", nn.BatchNorm2d, "average"),
    ("BatchNorm, frozen statistics", nn.BatchNorm2d, "frozen"),
    ("GroupNorm", groups, "average"),
]:
    run = fs.train(
        network(norm),
        "cross_entropy",
        clients,
        rounds=15,
        batch_size=16,
        test=table.test,
        evaluate_every=15,
        buffers=buffers,
    )
    print(f"{name:32} test accuracy {run.history[-1]['test_accuracy']:.3f}")
